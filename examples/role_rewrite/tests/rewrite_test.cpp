// The answer of the stage before goes to the model with the instruction; what the model says is the
// answer. Quotes and line ends reach the model as they are.
#include "../src/rewrite.cpp"

#include <cstdio>

static luna_status collect(void* context, const luna_item* item) {
  auto& said = *static_cast<std::string*>(context);
  said += std::to_string(item->kind) + ":" + std::string(luna::view(item->text)) + ";";
  return LUNA_OK;
}

int main() {
  Rewrite role("Shorter:", 9);
  std::string said;
  const luna_item_sink sink = {sizeof(luna_item_sink), 0, &said, collect};
  luna::ItemSink out(&sink);
  const auto item = [&](luna::ItemKind kind, std::string_view text) {
    role.on_item({7, kind, 0, text, {}}, out);
  };
  item(luna::ItemKind::request, "{}");
  item(luna::ItemKind::text, "A \"long\"\n");
  item(luna::ItemKind::text, "answer.");
  item(luna::ItemKind::end, "stop");
  item(luna::ItemKind::model_text, "An answer.");
  item(luna::ItemKind::model_end, "stop");
  role.drop(7);
  const std::string expected =
      R"(4:{"messages":[{"role":"user","content":"Shorter:\u000a\u000aA \"long\"\u000aanswer."}],)"
      R"("max_tokens":9};2:An answer.;3:stop;)";
  if (said == expected) return 0;
  std::printf("it said: %s\n", said.c_str());
  return 1;
}

// A request through the role: it asks the model, and passes the answer on without '*'.
#include "../src/@NAME@.cpp"

#include <cstdio>
#include <string>

static luna_status collect(void* context, const luna_item* item) {
  auto& said = *static_cast<std::string*>(context);
  said += std::to_string(item->kind) + ":" + std::string(luna::view(item->text)) + " ";
  return LUNA_OK;
}

int main() {
  @CLASS@ role("*");
  std::string said;
  const luna_item_sink sink = {sizeof(luna_item_sink), 0, &said, collect};
  luna::ItemSink out(&sink);
  role.on_item({7, luna::ItemKind::request, 0, "{}", {}}, out);
  role.on_item({7, luna::ItemKind::model_text, 0, "*bo*ld", {}}, out);
  role.on_item({7, luna::ItemKind::model_end, 0, "stop", {}}, out);
  role.drop(7);
  if (said == "4:{} 2:bold 3:stop ") return 0;
  std::printf("it said: %s\n", said.c_str());
  return 1;
}

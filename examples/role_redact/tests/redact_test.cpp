// A mail address that comes in three items is gone from the answer; the rest is as it was.
#include "../src/redact.cpp"

#include <cstdio>

static luna_status collect(void* context, const luna_item* item) {
  auto& said = *static_cast<std::string*>(context);
  said += std::to_string(item->kind) + ":" + std::string(luna::view(item->text)) + ";";
  return LUNA_OK;
}

int main() {
  std::string list = std::string("[a-z]+@[a-z.]+") + '\0' + "[0-9]{4}" + '\0';
  const luna_kv rows[] = {
      {luna::to_abi("patterns"), LUNA_TYPE_STRING_LIST, 0, 0, 0.0, luna::to_abi(list)},
      {luna::to_abi("replacement"), LUNA_TYPE_STRING, 0, 0, 0.0, luna::to_abi("***")}};
  const auto role = Redact::create(luna::Host(nullptr), luna::Settings(rows, 2));
  if (!role) return 1;
  std::string said;
  const luna_item_sink sink = {sizeof(luna_item_sink), 0, &said, collect};
  luna::ItemSink out(&sink);
  const auto item = [&](luna::ItemKind kind, std::string_view text) {
    (*role)->on_item({7, kind, 0, text, {}}, out);
  };
  item(luna::ItemKind::request, "{}");
  item(luna::ItemKind::text, "Write to ann");
  item(luna::ItemKind::text, "@exam");
  item(luna::ItemKind::text, "ple.org!\nCode 1234");
  item(luna::ItemKind::end, "stop");
  (*role)->drop(7);
  const luna_kv wrong[] = {{luna::to_abi("patterns"),
                            LUNA_TYPE_STRING_LIST,
                            0,
                            0,
                            0.0,
                            luna::to_abi(std::string_view("(\0", 2))}};
  const bool refused = !Redact::create(luna::Host(nullptr), luna::Settings(wrong, 1));
  if (refused && said == "2:Write to ***!\n;2:Code ***;3:stop;") return 0;
  std::printf("refused %d, it said: %s\n", refused, said.c_str());
  return 1;
}

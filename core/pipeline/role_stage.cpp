#include "core/pipeline/role_stage.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace luna::pipeline {
namespace {

luna_status keep(void* context, const luna_item* item) {
  return fenced(nullptr, [&] {
    static_cast<std::vector<StageItem>*>(context)->push_back(
        {item->request, item->kind, item->flags, std::string(view(item->text))});
    return LUNA_OK;
  });
}

}  // namespace

std::vector<std::string> RoleStage::choices() const {
  std::vector<std::string> texts;
  const auto* extension = static_cast<const luna_role_choices_if*>(
      role_->head.ext(role_.self(), LUNA_EXT_ROLE_CHOICES));
  if (extension == nullptr) return texts;
  std::string_view rest = view(extension->choices(role_.self()));
  while (!rest.empty()) {
    const std::size_t end = rest.find('\0');
    texts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return texts;
}

RoleStage::Batch RoleStage::run() {
  Batch batch;
  batch.in = std::exchange(waiting_, {});
  std::vector<luna_item> rows;
  rows.reserve(batch.in.size());
  for (const StageItem& item : batch.in)
    rows.push_back({item.request, item.kind, item.flags, to_abi(item.text), nullptr, 0, 0});
  const luna_item_sink sink{sizeof(luna_item_sink), 0, &batch.out, keep};
  luna_err err = make_err();
  const luna_status status =
      role_->run(role_.self(), rows.data(), static_cast<std::uint32_t>(rows.size()), &sink, &err);
  batch.verdict = to_result(status, err, "role " + name());
  return batch;
}

void RoleStage::drop(std::span<const std::uint64_t> requests) {
  std::erase_if(waiting_, [&](const StageItem& item) {
    return std::find(requests.begin(), requests.end(), item.request) != requests.end();
  });
  role_->drop(role_.self(), requests.data(), static_cast<std::uint32_t>(requests.size()));
}

}  // namespace luna::pipeline

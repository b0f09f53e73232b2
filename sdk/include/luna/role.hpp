// The C++ side of a stage role: derive from luna::Role and name the class in LUNA_DEFINE_ROLE.
//
// JSON of the items (UTF-8 objects; absent keys are absent, never null):
//
// REQUEST, core to role: the request as it enters the stage.
//   "id"           string, the client's view of the request
//   "endpoint"     "chat" or "completion"
//   "stage"        integer, 0 for the first
//   "choice"       integer, 0 .. n - 1
//   "n"            integer, how many choices the client wants
//   "messages"     chat: array, as the client sent it; "content" is a string or an array of parts
//   "prompt"       completion: string; absent where the client sent token ids
//   "max_tokens"   integer, the most the client's own prompt may generate
//   "temperature", "top_p", "min_p"   numbers; "top_k" integer
//   "stop"         array of strings
//   any other key  what earlier stages put there with UPDATE ("intent": "code")
//
// MODEL_REQUEST, role to core: runs the stage's model. {} runs it on the client's own prompt with
// the request's limits and sampling. Each key given replaces one of them for this run only:
//   "messages"     array of {"role": string, "content": string}: a prompt of the role's own, put
//                  through the model's chat template; nothing in it becomes a control token
//   "prompt"       string: a prompt of the role's own, as it stands
//   "allowed_text" array of strings, at least one: the model may only answer with one of them,
//                  decided by its first token; one token is generated, and MODEL_TEXT is the whole
//                  chosen string. With luna.ext.role_choices/1 core checks them at the start.
//   "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop"    as in REQUEST
// A run on a prompt of the role's own starts from temperature 0 and the client's seed, with none of
// the client's other sampling, stops and biases, and must say max_tokens unless it has
// allowed_text. One run at a time for each request of a stage, 64 in all. A run that cannot start
// or breaks ends with MODEL_END "failed: why".
//
// Log-probabilities reach the client with their text, up to where a stage changed that text.
//
// UPDATE, role to core: merged into REQUEST for the stages after this one.
//   "max_tokens"   integer; only ever lowers what the client asked for
//   "temperature", "top_p", "top_k", "min_p"    replace the client's
//   any other key  string, number or boolean: kept as it is; "intent" is also logged and counted
// The other names of REQUEST are core's: an UPDATE with one of them fails the request.
#pragma once

#include <luna/plugin.hpp>

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>

namespace luna {

enum class ItemKind : std::uint32_t {
  request = LUNA_ITEM_REQUEST,
  text = LUNA_ITEM_TEXT,
  end = LUNA_ITEM_END,
  model_request = LUNA_ITEM_MODEL_REQUEST,
  model_text = LUNA_ITEM_MODEL_TEXT,
  model_end = LUNA_ITEM_MODEL_END,
  update = LUNA_ITEM_UPDATE,
  error = LUNA_ITEM_ERROR,
};

/// One item as a role gets it; its bytes are borrowed until run() returns.
struct Item {
  std::uint64_t request = 0;
  ItemKind kind = ItemKind::request;
  std::uint32_t flags = 0;
  std::string_view text;
  std::span<const std::uint32_t> ids;

  [[nodiscard]] bool is_streaming() const { return (flags & LUNA_ITEM_STREAMING) != 0; }
};

/// Where a role puts its output. The host copies each item at once.
class ItemSink {
 public:
  explicit ItemSink(const luna_item_sink* sink) : sink_(sink) {}

  /// A host that has no room fails the whole run; nothing is emitted after that.
  void emit(std::uint64_t request, ItemKind kind, std::string_view text) {
    if (status_ != LUNA_OK) return;
    const luna_item item{request, static_cast<std::uint32_t>(kind), 0, to_abi(text), nullptr, 0, 0};
    status_ = sink_->emit(sink_->context, &item);
  }
  [[nodiscard]] luna_status status() const { return status_; }

 private:
  const luna_item_sink* sink_;
  luna_status status_ = LUNA_OK;
};

/// One stage's role. An interface; one object per instance, owned by the host. A subclass also has
/// `static Result<std::unique_ptr<T>> create(Host, const Settings&)`.
class Role {
 public:
  virtual ~Role() = default;

  /// One item of a batch; those of one request come in their order. [step]
  virtual void on_item(const Item& item, ItemSink& out) = 0;
  /// The request ended or was cancelled, in whatever state: forget it. [step]
  virtual void drop(std::uint64_t request) = 0;
  /// Texts for allowed_text, each followed by a zero byte (luna.ext.role_choices/1). [main]
  [[nodiscard]] virtual std::string_view choices() const { return {}; }
};

/// What a role remembers of each request, from its first item to its drop.
template <typename State>
class RequestStates {
 public:
  State& at(std::uint64_t request) { return states_[request]; }
  [[nodiscard]] bool contains(std::uint64_t request) const { return states_.contains(request); }
  void erase(std::uint64_t request) { states_.erase(request); }
  [[nodiscard]] std::size_t size() const { return states_.size(); }

 private:
  std::unordered_map<std::uint64_t, State> states_;
};

namespace detail {

template <typename T>
struct RoleThunks {
  static luna_status run(void* self,
                         const luna_item* items,
                         std::uint32_t n_items,
                         const luna_item_sink* sink,
                         luna_err* err) noexcept {
    return fenced(err, [&] {
      ItemSink out(sink);
      for (const luna_item& item : std::span(items, n_items)) {
        static_cast<T*>(self)->on_item({item.request,
                                        static_cast<ItemKind>(item.kind),
                                        item.flags,
                                        view(item.text),
                                        {item.ids, item.n_ids}},
                                       out);
        if (out.status() != LUNA_OK)
          return report(err, out.status(), "the host took no more items");
      }
      return LUNA_OK;
    });
  }
  static void drop(void* self, const std::uint64_t* requests, std::uint32_t n) noexcept {
    for (const std::uint64_t request : std::span(requests, n))
      static_cast<T*>(self)->drop(request);
  }
  static luna_str choices(void* self) noexcept {
    return to_abi(static_cast<const T*>(self)->choices());
  }
  static constexpr luna_role_choices_if kChoices = {sizeof(luna_role_choices_if), 0, choices};

  static const void* extension(void* /*self*/, const char* id) noexcept {
    return std::string_view(id) == LUNA_EXT_ROLE_CHOICES ? &kChoices : nullptr;
  }
};

}  // namespace detail

/// The C table of role T.
template <typename T>
constexpr luna_role_if role_table(std::span<const luna_param> params = {}) {
  using Thunks = detail::RoleThunks<T>;
  luna_if head = make_head<T, luna_role_if>(params);
  head.ext = Thunks::extension;
  return {head, Thunks::run, Thunks::drop};
}

}  // namespace luna

/// Makes the shared library a role: LUNA_DEFINE_ROLE("org.luna.role.generate", "generate", "0.1.0",
/// "What it does.", GenerateRole, kParams). PARAMS is an array of luna_param or
/// std::span<const luna_param>{}.
#define LUNA_DEFINE_ROLE(ID, NAME, VERSION, SUMMARY, CLASS, PARAMS)                  \
  static constexpr luna_role_if luna_role_table = ::luna::role_table<CLASS>(PARAMS); \
  LUNA_DEFINE_PLUGIN(ID, NAME, VERSION, SUMMARY, LUNA_KIND_ROLE, luna_role_table)

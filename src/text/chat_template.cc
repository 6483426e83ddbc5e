#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "text/jinja/interp.h"
#include "text/jinja/parser.h"

namespace firesteel {

namespace {
constexpr size_t kMaxSource = 4u << 20;
}

struct ChatTemplate::Impl {
  jinja::Template tree;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, const std::string& path) {
  if (source.size() > kMaxSource)
    return Error{ErrorCode::kInvalidFile, path + ": a chat template of more than 4 MiB"};
  auto impl = std::make_unique<Impl>();
  try {
    impl->tree = jinja::parse_template(source);
  } catch (const jinja::SyntaxError& e) {
    return Error{ErrorCode::kInvalidFile, path + ", line " + std::to_string(e.line) + ": " + e.message};
  }
  return ChatTemplate(std::move(impl));
}

Result<MarkedText> ChatTemplate::render(const nlohmann::ordered_json& variables,
                                        const TemplateLimits& limits) const {
  jinja::Interpreter interpreter(impl_->tree, variables, limits);
  try {
    return interpreter.run();
  } catch (const jinja::Failure& e) {
    return Error{e.code, "chat template, line " + std::to_string(interpreter.line()) + ": " + e.message};
  }
}

}  // namespace firesteel

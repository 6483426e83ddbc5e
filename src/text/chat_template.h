// The checkpoint's own chat_template.jinja, interpreted in a sandbox: what chat templates use of Jinja 3.1,
// with its exact semantics (loops that call themselves, inheritance, includes and HTML escaping are left
// out), and limits on steps, output bytes and depth. Immutable after parse; render() from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "text/marked_text.h"

namespace firesteel {

struct TemplateLimits {
  uint64_t steps = 200'000'000;  // a few seconds; long tool loops are quadratic in some templates
  size_t output_bytes = 256u << 20;
  int depth = 64;
};

class ChatTemplate {
 public:
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  /// kInvalidFile with a line number for what does not parse.
  static Result<ChatTemplate> parse(std::string_view source, const std::string& path);

  /// Renders with `variables`, an object of top-level names (messages, tools, add_generation_prompt, …).
  /// Every string in it is a caller's. Errors: kTemplate (the template refused or misused a value), kLimit.
  Result<MarkedText> render(const nlohmann::ordered_json& variables, const TemplateLimits& limits = {}) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel

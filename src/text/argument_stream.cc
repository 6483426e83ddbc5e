#include "text/argument_stream.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {

void ArgumentStream::advance(const ToolCallScanner& scanner, std::string_view text, bool whole,
                             std::string* out) {
  if (!begun()) {
    if (!scanner.has_keys()) return;
    tool_ = tools_->find(scanner.name());
    if (!begun()) return;
  }
  const auto& arguments = scanner.arguments();
  for (; values_ < arguments.size(); ++values_) {
    const ToolCallScanner::Argument& a = arguments[values_];
    const std::string_view value = text.substr(a.begin, a.end - a.begin);
    if (!in_text_) begin_value(a.key, out);
    if (in_text_) {
      add_text(value, value.size(), out);
      *out += '"';
      in_text_ = false;
    } else {
      *out += dump_json(tools_->value(tool_, a.key, value));
    }
  }
  if (const auto open = scanner.open_value(text); open && tools_->is_text(tool_, open->key)) {
    if (!in_text_) begin_value(open->key, out);
    const std::string_view value = text.substr(open->begin, open->end - open->begin);
    size_t until = value.size();  // what is certain may end inside a character
    while (until > text_bytes_ && (text[open->begin + until] & 0xC0) == 0x80) --until;
    add_text(value, until, out);
  }
  if (whole) *out += values_ == 0 ? "{}" : "}";
}

/// The key; of a text also its opening quote.
void ArgumentStream::begin_value(std::string_view key, std::string* out) {
  *out += values_ == 0 ? '{' : ',';
  append_json_string(key, false, out);
  *out += ':';
  in_text_ = tools_->is_text(tool_, key);
  text_bytes_ = 0;
  if (in_text_) *out += '"';
}

void ArgumentStream::add_text(std::string_view value, size_t until, std::string* out) {
  std::string quoted;
  append_json_string(value.substr(text_bytes_, until - text_bytes_), false, &quoted);
  out->append(quoted, 1, quoted.size() - 2);
  text_bytes_ = until;
}

}  // namespace firesteel

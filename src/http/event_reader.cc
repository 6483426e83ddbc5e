#include "http/event_reader.h"

#include <algorithm>
#include <utility>

namespace firesteel::http {

bool EventReader::push(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size() && !failed_;) {
    if (std::exchange(after_cr_, false) && bytes[at] == '\n') {  // a pair is one line end
      ++at;
      continue;
    }
    const size_t end = std::min(bytes.find_first_of("\r\n", at), bytes.size());
    line_.append(bytes.substr(at, end - at));
    if (line_.size() + event_.data.size() > limit_) failed_ = true;
    if (end == bytes.size() || failed_) break;
    after_cr_ = bytes[end] == '\r';
    at = end + 1;
    line();
    line_.clear();
  }
  return !failed_;
}

void EventReader::line() {
  std::string_view text = line_;
  if (std::exchange(first_line_, false) && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.empty()) {
    const Event done = std::exchange(event_, {});
    if (std::exchange(has_data_, false)) on_event_(done);
    return;
  }
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view field = text.substr(0, colon);  // empty: a comment
  std::string_view value = text.substr(std::min(colon + 1, text.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "event") event_.name = value;
  if (field != "data") return;
  if (std::exchange(has_data_, true)) event_.data.push_back('\n');
  event_.data.append(value);
}

}  // namespace firesteel::http

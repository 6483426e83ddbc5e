// Reads a text/event-stream: bytes cut anywhere in, events out. The other half of what connections write.
// One thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace firesteel::http {

class EventReader {
 public:
  struct Event {
    std::string name;  // of its "event:" line, "" without one
    std::string data;  // its "data:" lines, joined by line feeds
  };
  using OnEvent = std::function<void(const Event&)>;

  /// An event of more than `limit` bytes ends the reading.
  explicit EventReader(OnEvent on_event, size_t limit = 16u << 20)
      : on_event_(std::move(on_event)), limit_(limit) {}

  /// Calls back for every event that became complete; comments and events without data are passed over. False
  /// once an event was too large.
  bool push(std::string_view bytes);

 private:
  void line();

  const OnEvent on_event_;
  const size_t limit_;
  std::string line_;
  Event event_;
  bool has_data_ = false, after_cr_ = false, first_line_ = true, failed_ = false;
};

}  // namespace firesteel::http

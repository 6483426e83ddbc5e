// Who may use the server: API keys and the origins of web pages.
//
// Keys are kept as digests and compared in constant time, all of them for every request. A key file is read
// again when it changes; while it cannot be read or is damaged, the keys that were last good stay. Any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/message.h"

namespace firesteel::api {

struct AccessOptions {
  std::vector<std::string> keys;  // "KEY" or "LABEL: KEY"
  std::string key_file;           // one of these a line, '#' comments; must be readable by its owner only
  std::vector<std::string> cors_origins;  // "https://host[:port]", or "*" alone
  bool open_metrics = false;              // /metrics needs no key
};

class Access {
 public:
  /// kInvalidArgument, kInvalidFile, kIo: with the key's number or the line, never the key.
  static Result<std::unique_ptr<Access>> create(AccessOptions options);

  bool keys_required() const;
  bool open_metrics() const { return options_.open_metrics; }
  bool cors() const { return !options_.cors_origins.empty(); }
  /// The label of the key that a request carries (a key without one is "key-N"); nullopt: none or a wrong
  /// one.
  std::optional<std::string> authenticate(const http::RequestHead& head);

  /// The answer to a preflight, without the headers that every reply gets.
  http::Response preflight(const http::RequestHead& head) const;
  void add_cors_headers(const http::RequestHead& head, http::Headers* out) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Key {
    Digest digest;
    std::string label;
  };
  struct FileStamp {
    int64_t seconds = 0, nanoseconds = 0, size = -1, inode = 0;
    bool operator==(const FileStamp&) const = default;
  };

  explicit Access(AccessOptions options) : options_(std::move(options)) {}
  static Result<Key> read_key(std::string_view line, size_t number);
  Result<std::vector<Key>> read_file(FileStamp* stamp) const;
  void reload_if_changed();

  const AccessOptions options_;
  std::vector<Key> fixed_;
  mutable std::mutex mutex_;
  std::vector<Key> from_file_;  // under mutex_
  FileStamp stamp_;             // under mutex_
  int64_t next_look_ns_ = 0;    // under mutex_
};

}  // namespace firesteel::api

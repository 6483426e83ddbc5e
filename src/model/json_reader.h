// JsonReader: typed, bounded reads of one JSON object's keys, with the first problem kept as one line that
// names the file and the key. Used by the parsers of small configuration files. Plain value; the JSON must
// outlive it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace firesteel {

/// Parses a JSON object of at most `max_bytes` bytes. Errors are kInvalidFile and name `path`.
Result<nlohmann::ordered_json> parse_json_object(std::string_view text, size_t max_bytes,
                                                 const std::string& path);
/// Reads a whole file of at most `max_bytes`. kNotFound when it does not exist.
Result<std::string> read_small_file(const std::string& path, size_t max_bytes);

class JsonReader {
 public:
  /// `scope` prefixes key names in messages ("text_config."). `object` must be a JSON object.
  JsonReader(const nlohmann::ordered_json& object, std::string path, std::string scope)
      : object_(&object), path_(std::move(path)), scope_(std::move(scope)) {}

  bool has(const char* key) const;      // present, null included
  bool is_null(const char* key) const;  // present and null

  // Each returns the value, or a harmless one after noting the first error. `need` = the key must be present.
  int32_t need_int(const char* key, int32_t lo, int32_t hi);
  int32_t int_or(const char* key, int32_t fallback, int32_t lo, int32_t hi);  // null counts as absent
  double need_number(const char* key, double lo, double hi);
  double number_or(const char* key, double fallback, double lo, double hi);
  bool bool_or(const char* key, bool fallback);
  std::string string_or(const char* key, const std::string& fallback);
  /// Arrays of strings or integers; nothing when absent or null. At most `max_size` elements.
  std::optional<std::vector<std::string>> strings(const char* key, size_t max_size);
  std::optional<std::vector<int32_t>> ints(const char* key, size_t max_size, int32_t lo, int32_t hi);

  /// Notes an error about `key`; only the first is kept.
  void fail(const char* key, const std::string& what, ErrorCode code = ErrorCode::kInvalidFile);
  bool ok() const { return !error_; }
  Status status() const;

 private:
  const nlohmann::ordered_json* get(const char* key) const;
  bool to_int(const nlohmann::ordered_json& v, const char* key, int32_t lo, int32_t hi, int32_t& out);

  const nlohmann::ordered_json* object_;
  std::string path_, scope_;
  std::optional<Error> error_;
};

}  // namespace firesteel

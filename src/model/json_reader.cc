#include "model/json_reader.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {
namespace {

std::string number_text(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", v);
  return buffer;
}

}  // namespace

Result<nlohmann::ordered_json> parse_json_object(std::string_view text, size_t max_bytes,
                                                 const std::string& path) {
  if (text.size() > max_bytes)
    return Error{ErrorCode::kInvalidFile, path + ": too large for a configuration file"};
  auto parsed = parse_json(text);
  if (!parsed.ok()) return Error{ErrorCode::kInvalidFile, path + ": " + parsed.error().message};
  if (!parsed->is_object()) return Error{ErrorCode::kInvalidFile, path + ": not a JSON object"};
  return parsed;
}

Result<std::string> read_small_file(const std::string& path, size_t max_bytes) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, path + ": cannot be opened: " + std::strerror(errno)};
  }
  std::string text;
  char buffer[1 << 14];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, got);
    if (text.size() > max_bytes) return Error{ErrorCode::kInvalidFile, path + ": larger than expected"};
  }
  if (std::ferror(file.get()))
    return Error{ErrorCode::kIo, path + ": cannot be read: " + std::strerror(errno)};
  return text;
}

const nlohmann::ordered_json* JsonReader::get(const char* key) const {
  const auto it = object_->find(key);
  return it == object_->end() ? nullptr : &*it;
}

bool JsonReader::has(const char* key) const { return get(key) != nullptr; }
bool JsonReader::is_null(const char* key) const { return get(key) != nullptr && get(key)->is_null(); }

void JsonReader::fail(const char* key, const std::string& what, ErrorCode code) {
  if (!error_) error_ = Error{code, path_ + ": " + scope_ + key + ": " + what};
}

Status JsonReader::status() const { return error_ ? Status(*error_) : Status::success(); }

bool JsonReader::to_int(const nlohmann::ordered_json& v, const char* key, int32_t lo, int32_t hi,
                        int32_t& out) {
  const std::string range = "must be an integer from " + std::to_string(lo) + " to " + std::to_string(hi);
  if (!v.is_number_integer()) {
    fail(key, range);
    return false;
  }
  // An unsigned value beyond int64 would wrap when read as signed.
  const bool fits = v.is_number_unsigned() ? v.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX) : true;
  const int64_t value = fits ? v.get<int64_t>() : INT64_MAX;
  if (!fits || value < lo || value > hi) {
    fail(key, range + ", not " + v.dump());
    return false;
  }
  out = static_cast<int32_t>(value);
  return true;
}

int32_t JsonReader::need_int(const char* key, int32_t lo, int32_t hi) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) {
    fail(key, "missing");
    return lo;
  }
  int32_t out = lo;
  to_int(*v, key, lo, hi, out);
  return out;
}

int32_t JsonReader::int_or(const char* key, int32_t fallback, int32_t lo, int32_t hi) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) return fallback;
  int32_t out = fallback;
  to_int(*v, key, lo, hi, out);
  return out;
}

double JsonReader::need_number(const char* key, double lo, double hi) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) {
    fail(key, "missing");
    return lo;
  }
  return number_or(key, lo, lo, hi);
}

double JsonReader::number_or(const char* key, double fallback, double lo, double hi) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) return fallback;
  if (!v->is_number()) {
    fail(key, "must be a number");
    return fallback;
  }
  const double value = v->get<double>();
  if (!std::isfinite(value) || value < lo || value > hi) {
    fail(key, "must be from " + number_text(lo) + " to " + number_text(hi) + ", not " + v->dump());
    return fallback;
  }
  return value;
}

bool JsonReader::bool_or(const char* key, bool fallback) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) return fallback;
  if (!v->is_boolean()) {
    fail(key, "must be true or false");
    return fallback;
  }
  return v->get<bool>();
}

std::string JsonReader::string_or(const char* key, const std::string& fallback) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) return fallback;
  if (!v->is_string()) {
    fail(key, "must be a string");
    return fallback;
  }
  return v->get<std::string>();
}

std::optional<std::vector<std::string>> JsonReader::strings(const char* key, size_t max_size) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) return std::nullopt;
  if (!v->is_array() || v->size() > max_size) {
    fail(key, "must be a list of at most " + std::to_string(max_size) + " strings");
    return std::nullopt;
  }
  std::vector<std::string> out;
  for (const auto& element : *v) {
    if (!element.is_string()) {
      fail(key, "must hold strings only");
      return std::nullopt;
    }
    out.push_back(element.get<std::string>());
  }
  return out;
}

std::optional<std::vector<int32_t>> JsonReader::ints(const char* key, size_t max_size, int32_t lo,
                                                     int32_t hi) {
  const nlohmann::ordered_json* v = get(key);
  if (v == nullptr || v->is_null()) return std::nullopt;
  if (!v->is_array() || v->size() > max_size) {
    fail(key, "must be a list of at most " + std::to_string(max_size) + " integers");
    return std::nullopt;
  }
  std::vector<int32_t> out;
  for (const auto& element : *v) {
    int32_t value = lo;
    if (!to_int(element, key, lo, hi, value)) return std::nullopt;
    out.push_back(value);
  }
  return out;
}

}  // namespace firesteel

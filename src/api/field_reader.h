// Reads typed fields out of a request's JSON object. The first fault sticks: later reads do nothing, so that
// a translator reads all its fields in a row and asks once. An absent field and null are the same: the value
// stays.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api/errors.h"

namespace firesteel::api {

using Json = nlohmann::ordered_json;

/// The member, or null when it is absent, JSON null, or `object` is no object.
const Json* find_field(const Json& object, std::string_view name);
/// The member when it is a string, else "".
std::string find_string(const Json& object, std::string_view name);

class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  const Json& object() const { return object_; }
  const Json* find(std::string_view name) const { return find_field(object_, name); }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  void boolean(std::string_view name, bool* out);
  void integer(std::string_view name, int64_t low, int64_t high, int64_t* out);
  /// Also takes numbers written as strings, as clients of the reference may send them.
  void number(std::string_view name, double low, double high, double* out);
  void string(std::string_view name, std::string* out);
  /// A string, or a list of them.
  void strings(std::string_view name, std::vector<std::string>* out);
  /// Any integer, of any size, modulo 2^64.
  void seed(std::string_view name, std::optional<uint64_t>* out);

  void fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  void fail_value(std::string_view name, std::string message) {
    fail(invalid_value(std::string(name), std::move(message)));
  }
  bool ok() const { return !error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  std::optional<ApiError> error_;
};

}  // namespace firesteel::api

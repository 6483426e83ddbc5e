#include "api/field_reader.h"

#include <charconv>
#include <cmath>

#include "base/json.h"

namespace firesteel::api {
namespace {

std::string_view trim(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string_view text = trim(value.get_ref<const std::string&>());
  double out = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (ec != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return out;
}

std::string shortest(double v) {
  std::string out;
  if (v == std::floor(v) && std::abs(v) < 1e15) return std::to_string(static_cast<int64_t>(v));
  append_python_float(v, &out);
  return out;
}

}  // namespace

const Json* find_field(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string find_string(const Json& object, std::string_view name) {
  const Json* v = find_field(object, name);
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

void FieldReader::boolean(std::string_view name, bool* out) {
  const Json* v = find(name);
  if (v == nullptr || !ok()) return;
  if (!v->is_boolean()) return fail_value(name, std::string(name) + " must be true, false or null");
  *out = v->get<bool>();
}

void FieldReader::integer(std::string_view name, int64_t low, int64_t high, int64_t* out) {
  const Json* v = find(name);
  if (v == nullptr || !ok()) return;
  const bool fits = v->is_number_integer() &&
                    !(v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || v->get<int64_t>() < low || v->get<int64_t>() > high) {
    std::string range = "an integer";
    if (low != INT64_MIN && high != INT64_MAX) {
      range += " from " + std::to_string(low) + " to " + std::to_string(high);
    } else if (low != INT64_MIN) {
      range += " of at least " + std::to_string(low);
    }
    return fail_value(name, std::string(name) + " must be " + range + ", or null");
  }
  *out = v->get<int64_t>();
}

void FieldReader::number(std::string_view name, double low, double high, double* out) {
  const Json* v = find(name);
  if (v == nullptr || !ok()) return;
  const auto number = as_number(*v);
  if (!number || !std::isfinite(*number)) {
    return fail_value(name, std::string(name) + " must be a finite number or null");
  }
  if (*number < low || *number > high) {
    return fail_value(name, std::string(name) + " must be from " + shortest(low) + " to " + shortest(high));
  }
  *out = *number;
}

void FieldReader::string(std::string_view name, std::string* out) {
  const Json* v = find(name);
  if (v == nullptr || !ok()) return;
  if (!v->is_string()) return fail_value(name, std::string(name) + " must be a string or null");
  *out = v->get<std::string>();
}

void FieldReader::strings(std::string_view name, std::vector<std::string>* out) {
  const Json* v = find(name);
  if (v == nullptr || !ok()) return;
  if (v->is_string()) {
    *out = {v->get<std::string>()};
    return;
  }
  std::vector<std::string> list;
  bool good = v->is_array();
  for (size_t i = 0; good && i < v->size(); ++i) {
    good = (*v)[i].is_string();
    if (good) list.push_back((*v)[i].get<std::string>());
  }
  if (!good) return fail_value(name, std::string(name) + " must be a string or a list of strings");
  *out = std::move(list);
}

void FieldReader::seed(std::string_view name, std::optional<uint64_t>* out) {
  const Json* v = find(name);
  if (v == nullptr || !ok()) return;
  if (v->is_number_unsigned()) {
    *out = v->get<uint64_t>();
  } else if (v->is_number_integer()) {
    *out = static_cast<uint64_t>(v->get<int64_t>());
  } else if (is_big_integer(*v)) {
    uint64_t value = 0;
    const std::string_view digits = big_integer_digits(*v);
    for (char c : digits) {
      if (c >= '0' && c <= '9') value = value * 10 + static_cast<uint64_t>(c - '0');
    }
    *out = digits.starts_with('-') ? 0 - value : value;
  } else {
    fail_value(name, std::string(name) + " must be an integer or null");
  }
}

}  // namespace firesteel::api

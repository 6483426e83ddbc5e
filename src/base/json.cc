#include "base/json.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/json_writer.h"

namespace firesteel {

namespace {

using Json = nlohmann::ordered_json;

/// Value of the four hex digits at `at`, or -1.
int hex4(std::string_view s, size_t at) {
  if (s.size() < at + 4) return -1;
  int v = 0;
  for (size_t i = at; i < at + 4; ++i) {
    const char c = s[i];
    const int d = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
    if (d < 0) return -1;
    v = v * 16 + d;
  }
  return v;
}

/// Rewrites escapes of lone surrogates to \ufffd, which has the same length, so that byte offsets stay true.
/// A backslash means something in strings only, so anywhere else the parser refuses it anyway. False: nothing
/// to do.
bool repair_surrogates(std::string_view text, std::string* out) {
  bool changed = false;
  for (size_t at = text.find('\\'); at != std::string_view::npos; at = text.find('\\', at)) {
    const int unit = at + 1 < text.size() && text[at + 1] == 'u' ? hex4(text, at + 2) : -1;
    if (unit < 0xD800 || unit > 0xDFFF) {
      at += 2;  // also steps over an escaped backslash
      continue;
    }
    if (unit < 0xDC00 && text.substr(std::min(at + 6, text.size()), 2) == "\\u") {
      const int low = hex4(text, at + 8);
      if (low >= 0xDC00 && low <= 0xDFFF) {
        at += 12;
        continue;
      }
    }
    if (!changed) out->assign(text);
    changed = true;
    out->replace(at + 2, 4, "fffd");
    at += 6;
  }
  return changed;
}

/// Builds the document. The members of an open object are kept beside it and moved in at its end:
/// ordered_json would compare each new key with all before it, and copy all values whenever it grows.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool b) override { return put(b); }
  bool number_integer(number_integer_t i) override { return put(i); }
  bool number_unsigned(number_unsigned_t u) override { return put(u); }
  bool number_float(number_float_t d, const string_t& digits) override {
    const bool whole = digits.find_first_not_of("-0123456789") == std::string::npos;
    return whole ? put(make_big_integer(digits)) : put(d);
  }
  bool string(string_t& s) override { return put(std::move(s)); }
  bool binary(binary_t&) override { return refuse("binary"); }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }

  bool key(string_t& name) override {
    Frame& f = stack_.back();
    constexpr size_t kIndexFrom = 16;
    f.slot = f.members.size();
    if (f.members.size() < kIndexFrom) {
      for (size_t i = 0; i < f.members.size(); ++i)
        if (f.members[i].first == name) f.slot = i;
    } else {
      if (f.index.empty())
        for (size_t i = 0; i < f.members.size(); ++i) f.index.emplace(f.members[i].first, i);
      f.slot = f.index.emplace(name, f.slot).first->second;
    }
    if (f.slot == f.members.size()) f.members.emplace_back(std::move(name), nullptr);
    return true;
  }

  bool end_object() override {
    Json::object_t object;
    object.reserve(stack_.back().members.size());
    for (auto& [name, value] : stack_.back().members) object.emplace_back(std::move(name), std::move(value));
    stack_.pop_back();
    return put(std::move(object));
  }

  bool end_array() override {
    Json::array_t items = std::move(stack_.back().items);
    stack_.pop_back();
    return put(std::move(items));
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    // what() is "[json.exception.…] parse error at line 1, column 2: REASON; last read: '…'": only the reason
    // is free of the caller's bytes.
    const std::string_view what = e.what();
    std::string_view reason = what;
    if (const size_t colon = what.find(": "); colon != std::string_view::npos)
      reason = what.substr(colon + 2);
    if (what.find("out_of_range.406") != std::string_view::npos)
      reason = "a number is beyond the range of a double";
    reason = reason.substr(0, reason.find("; last read"));
    position_ = position;
    return refuse(std::string(reason));
  }

  Json take() { return std::move(root_); }
  const std::string& reason() const { return reason_; }
  size_t position() const { return position_; }

 private:
  struct Frame {
    bool is_object;
    size_t slot = 0;  // where an object's next value goes
    std::vector<std::pair<std::string, Json>> members;
    std::unordered_map<std::string, size_t> index;  // of members, once there are more than a few
    Json::array_t items;
  };

  bool put(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (Frame& f = stack_.back(); f.is_object) {
      f.members[f.slot].second = std::move(value);
    } else {
      f.items.push_back(std::move(value));
    }
    return true;
  }
  bool open(bool is_object) {
    if (static_cast<int>(stack_.size()) >= max_depth_) return refuse("nested too deeply");
    stack_.push_back(Frame{is_object, 0, {}, {}, {}});
    return true;
  }
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  int max_depth_;
  Json root_;
  std::vector<Frame> stack_;
  std::string reason_;
  size_t position_ = 0;
};

void write(const Json& value, const JsonStyle& style, JsonWriter* w) {
  switch (value.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded:
      return w->raw("null");
    case Json::value_t::boolean:
      return w->raw(value.get<bool>() ? "true" : "false");
    case Json::value_t::number_integer:
      return w->integer(value.get<int64_t>());
    case Json::value_t::number_unsigned:
      return w->unsigned_integer(value.get<uint64_t>());
    case Json::value_t::number_float:
      return w->real(value.get<double>());
    case Json::value_t::string:
      return w->string(value.get_ref<const std::string&>());
    case Json::value_t::binary:
      return is_big_integer(value) ? w->raw(big_integer_digits(value)) : w->raw("null");
    case Json::value_t::array:
      w->begin_array();
      for (const Json& item : value) write(item, style, w);
      return w->end_array();
    case Json::value_t::object: {
      w->begin_object();
      const auto& object = value.get_ref<const Json::object_t&>();
      std::vector<const Json::object_t::value_type*> order;
      order.reserve(object.size());
      for (const auto& kv : object) order.push_back(&kv);
      if (style.sort_keys)
        std::stable_sort(order.begin(), order.end(),
                         [](const auto* a, const auto* b) { return a->first < b->first; });
      for (const auto* kv : order) {
        w->key(kv->first);
        write(kv->second, style, w);
      }
      return w->end_object();
    }
  }
}

}  // namespace

JsonStyle python_style() {
  JsonStyle style;
  style.item_separator = ", ";
  style.key_separator = ": ";
  return style;
}

Result<Json> parse_json(std::string_view text, int max_depth) {
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    return Error{ErrorCode::kInvalidArgument, "invalid UTF-8 at byte " + std::to_string(bad)};
  // The library takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    return Error{ErrorCode::kInvalidArgument,
                 "invalid JSON at byte " + std::to_string(zero) + ": a zero byte"};
  std::string repaired;
  if (repair_surrogates(text, &repaired)) text = repaired;
  Builder builder(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    std::string at;
    if (builder.position() > 0) at = " at byte " + std::to_string(builder.position() - 1);
    return Error{ErrorCode::kInvalidArgument, "invalid JSON" + at + ": " + builder.reason()};
  }
  return builder.take();
}

std::string dump_json(const Json& value, const JsonStyle& style) {
  std::string out;
  JsonWriter writer(style, &out);
  write(value, style, &writer);
  return out;
}

bool is_big_integer(const Json& value) {
  return value.is_binary() && value.get_binary().has_subtype() &&
         value.get_binary().subtype() == kBigIntegerSubtype;
}

std::string_view big_integer_digits(const Json& value) {
  if (!is_big_integer(value)) return {};
  const auto& bytes = value.get_binary();
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Json make_big_integer(std::string_view digits) {
  return Json::binary(std::vector<uint8_t>(digits.begin(), digits.end()), kBigIntegerSubtype);
}

}  // namespace firesteel

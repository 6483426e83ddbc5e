#include "text/tokenizer_json.h"

#include <new>

namespace firesteel {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxText = 512u << 20;
constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxKeys = 4096;  // of one object of the tree: look-ups in it are linear

/// Takes the parser's events. A handler returns false to stop; error_ then says why.
class Reader {
 public:
  using number_integer_t = ordered_json::number_integer_t;
  using number_unsigned_t = ordered_json::number_unsigned_t;
  using number_float_t = ordered_json::number_float_t;
  using string_t = ordered_json::string_t;
  using binary_t = ordered_json::binary_t;

  explicit Reader(TokenizerJson& out) : out_(out) {}
  const std::string& error() const { return error_; }

  bool null() { return value(nullptr); }
  bool boolean(bool v) { return value(v); }
  bool number_float(number_float_t v, const string_t&) { return value(v); }
  bool binary(binary_t&) { return fail("it holds binary data"); }
  bool number_integer(number_integer_t v) {
    if (place_ == Place::kVocab) return fail("a token id is negative");
    return value(v);
  }
  bool number_unsigned(number_unsigned_t v) {
    if (place_ != Place::kVocab) return value(v);
    if (v > static_cast<number_unsigned_t>(kMaxTokenId)) return fail("a token id is too large");
    out_.vocab.push_back({token_, static_cast<int32_t>(v)});
    return true;
  }
  bool string(string_t& v) {
    switch (place_) {
      case Place::kMerges:
        return spaced_merge(v);
      case Place::kPair:
        if (pair_size_ == 2) return fail("a merge has more than two parts");
        pair_[pair_size_++] = keep(v);
        return true;
      case Place::kVocab:
        return fail("a token id is not a number");
      case Place::kTree:
        break;
    }
    return value(std::move(v));
  }

  bool start_object(std::size_t) {
    if (place_ == Place::kTree && at_model("vocab")) {
      place_ = Place::kVocab;
      return once(seen_vocab_, "model.vocab");
    }
    return open(ordered_json::object());
  }
  bool key(string_t& k) {
    if (place_ == Place::kVocab) {
      token_ = keep(k);
      return true;
    }
    ordered_json& object = *stack_.back();
    if (object.size() >= kMaxKeys) return fail("an object has too many keys");
    if (object.contains(k)) return fail("a key is there twice");
    key_ = std::move(k);
    return true;
  }
  bool end_object() {
    if (place_ == Place::kVocab) {
      place_ = Place::kTree;
      return true;
    }
    stack_.pop_back();
    return true;
  }
  bool start_array(std::size_t) {
    if (place_ == Place::kMerges) {
      place_ = Place::kPair;
      pair_size_ = 0;
      return true;
    }
    if (place_ == Place::kTree && at_model("merges")) {
      place_ = Place::kMerges;
      return once(seen_merges_, "model.merges");
    }
    return open(ordered_json::array());
  }
  bool end_array() {
    switch (place_) {
      case Place::kPair:
        if (pair_size_ != 2) return fail("a merge has fewer than two parts");
        out_.merges.push_back({pair_[0], pair_[1]});
        place_ = Place::kMerges;
        return true;
      case Place::kMerges:
        place_ = Place::kTree;
        return true;
      default:
        stack_.pop_back();
        return true;
    }
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    return fail("it is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { kTree, kVocab, kMerges, kPair };

  bool fail(std::string why) {
    error_ = std::move(why);
    return false;
  }
  bool once(bool& seen, const char* what) {
    if (seen) return fail(std::string(what) + " is there twice");
    seen = true;
    return true;
  }
  TokenizerJson::Text keep(std::string_view s) {
    const auto begin = static_cast<uint32_t>(out_.block.size());
    out_.block.append(s);
    return {begin, static_cast<uint32_t>(out_.block.size())};
  }
  /// The value to come is top.model.<name>.
  bool at_model(std::string_view name) const {
    return stack_.size() == 2 && in_model_ && stack_.back()->is_object() && key_ == name;
  }
  /// "l r": exactly one blank, which no byte symbol is.
  bool spaced_merge(std::string_view s) {
    const size_t blank = s.find(' ');
    if (blank == s.npos || s.find(' ', blank + 1) != s.npos)
      return fail("a merge is not two symbols and a blank");
    const auto left = keep(s.substr(0, blank));
    out_.merges.push_back({left, keep(s.substr(blank + 1))});
    return true;
  }
  ordered_json* put(ordered_json v) {
    if (stack_.empty()) {
      out_.rest = std::move(v);
      return &out_.rest;
    }
    ordered_json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    return &(parent[key_] = std::move(v));
  }
  bool value(ordered_json v) {
    if (place_ == Place::kVocab) return fail("a token id is not a whole number");
    if (place_ == Place::kMerges || place_ == Place::kPair) return fail("a merge is not made of strings");
    if (stack_.empty()) return fail("it is not a JSON object");
    put(std::move(v));
    return true;
  }
  bool open(ordered_json v) {
    if (place_ != Place::kTree) return value(std::move(v));
    if (stack_.empty() && !v.is_object()) return fail("it is not a JSON object");
    if (stack_.size() >= kMaxDepth) return fail("it is nested too deeply");
    if (stack_.size() == 1) in_model_ = key_ == "model";
    stack_.push_back(put(std::move(v)));
    return true;
  }

  TokenizerJson& out_;
  std::string error_;
  Place place_ = Place::kTree;
  std::vector<ordered_json*>
      stack_;  // containers that are open, outermost first; a parent does not grow meanwhile
  std::string key_;
  bool in_model_ = false, seen_vocab_ = false, seen_merges_ = false;
  TokenizerJson::Text token_{}, pair_[2]{};
  int pair_size_ = 0;
};

}  // namespace

Result<TokenizerJson> read_tokenizer_json(std::string_view text) {
  if (text.size() > kMaxText) return Error{ErrorCode::kInvalidFile, "it is larger than 512 MiB"};
  TokenizerJson out;
  out.block.reserve(text.size() / 4);
  Reader reader(out);
  try {
    if (!ordered_json::sax_parse(text, &reader)) return Error{ErrorCode::kInvalidFile, reader.error()};
  } catch (const std::exception&) {
    return Error{ErrorCode::kInvalidFile, "it is too large"};
  }
  return out;
}

}  // namespace firesteel

// Python's string operations on text that remembers its provenance. Positions are code points where Python
// counts them. A byte of a result is the template's own only if the byte it comes from was. Pure functions of
// one rendering.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace firesteel::jinja {

/// A text under construction, charged to the budget and held to its limits. Also the output of a rendering.
class TextBuilder {
 public:
  explicit TextBuilder(Budget* budget) : budget_(budget) {}
  ~TextBuilder() { budget_->release(charged_); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  void add(std::string_view s, bool trusted);
  void add(const MarkedText& text) { add(text, 0, text.size()); }
  void add(const MarkedText& text, size_t begin, size_t end);
  size_t size() const { return text_.size(); }
  Budget* budget() const { return budget_; }
  MarkedText take() { return std::move(text_); }
  Value value() { return make_string(budget_, take()); }

 private:
  void grow(size_t bytes);
  Budget* budget_;
  MarkedText text_;
  size_t charged_ = 0;
};

int64_t length(const StringObject& s);
Values characters(const Value& s, Budget* budget);

/// s[start:stop:step] with Python's rules; nullopt is an omitted bound. step is not 0.
Value slice_text(const StringObject& s, std::optional<int64_t> start, std::optional<int64_t> stop,
                 int64_t step, Budget* budget);
/// Bounds of a Python slice over `length` items: the first index and how many follow.
struct SliceRange {
  int64_t start, count;
};
SliceRange resolve_slice(std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
                         int64_t length);

/// Strips white space, or the characters of `chars` when it is given.
Value strip(const StringObject& s, const StringObject* chars, bool left, bool right, Budget* budget);
/// `separator` null: on runs of white space. `limit` < 0: no limit.
Value split(const StringObject& s, const StringObject* separator, int64_t limit, bool from_right,
            Budget* budget);
Value split_lines(const StringObject& s, bool keep_ends, Budget* budget);
/// What is put in counts as the template's own only where the text that it replaces was entirely so:
/// otherwise a caller could spell the search text and have a control token written for it.
Value replace(const StringObject& s, const StringObject& from, const StringObject& to, int64_t limit,
              Budget* budget);
/// Byte offset of the first or last occurrence, or npos; linear time.
size_t find_text(std::string_view haystack, std::string_view needle, size_t from = 0);
size_t rfind_text(std::string_view haystack, std::string_view needle);
int64_t count_text(std::string_view haystack, std::string_view needle);

Value lower(const StringObject& s, Budget* budget);
Value upper(const StringObject& s, Budget* budget);
Value capitalize(const StringObject& s, Budget* budget);   // str.capitalize
Value title(const StringObject& s, Budget* budget);        // str.title
Value title_words(const StringObject& s, Budget* budget);  // the filter, which splits words by its own rule
/// The integer that a double of whole value stands for, in decimal; "" if it is not whole or not finite.
std::string double_as_digits(double d);

}  // namespace firesteel::jinja

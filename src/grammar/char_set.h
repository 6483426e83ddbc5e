// Sets of Unicode scalar values, as sorted disjoint ranges. Values, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace firesteel::grammar {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

struct CharRange {
  uint32_t low = 0, high = 0;  // both included
  bool operator==(const CharRange&) const = default;
};

class CharSet {
 public:
  CharSet() = default;
  /// Everything but surrogates.
  static CharSet all();
  static CharSet of(uint32_t code_point);

  /// Surrogates within the range are left out. Call normalize() after the last add().
  void add(uint32_t low, uint32_t high);
  void add(const CharSet& other);
  void normalize();

  CharSet complement() const;
  CharSet intersect(const CharSet& other) const;
  CharSet minus(const CharSet& other) const { return intersect(other.complement()); }
  bool contains(uint32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CharRange>& ranges() const { return ranges_; }
  bool operator==(const CharSet&) const = default;

 private:
  std::vector<CharRange> ranges_;
};

/// The byte ranges of one run of code points that share a UTF-8 form: `length` bytes, byte i within
/// [low[i], high[i]].
struct Utf8Run {
  int length = 0;
  uint8_t low[4] = {}, high[4] = {};
};

/// All runs of a set, in ascending order; together they match exactly the UTF-8 of its members.
std::vector<Utf8Run> utf8_runs(const CharSet& set);

/// Reads one scalar value at `*at` and moves past it; -1 (and one byte further) where there is none.
int32_t read_utf8(std::string_view s, size_t* at);
int encode_utf8(uint32_t code_point, uint8_t out[4]);

}  // namespace firesteel::grammar

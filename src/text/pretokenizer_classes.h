// The three character classes that pre-tokenizer patterns are made of: letters (\p{L}), numbers (\p{N}) and
// blanks (\s).
//
// The tables are our own and of one fixed Unicode version, because a token border must not move with the
// version of a system library. Immutable, any thread.
#pragma once

#include <cstdint>
#include <span>

namespace firesteel {

struct CodePointRange {
  uint32_t first, last;  // both included
};

std::span<const CodePointRange> letter_ranges();  // \p{L}
std::span<const CodePointRange> number_ranges();  // \p{N}
std::span<const CodePointRange> blank_ranges();   // \s: White_Space

enum class CharClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kBlank = 3 };

/// Class of every code point in two look-ups; built once, about 40 KB.
class CharClassTable {
 public:
  static const CharClassTable& get();
  /// `code_point` is a scalar value.
  CharClass of(uint32_t code_point) const {
    return static_cast<CharClass>(
        classes_[block_[code_point >> kBlockBits] * kBlockSize + (code_point & (kBlockSize - 1))]);
  }

 private:
  CharClassTable();
  static constexpr uint32_t kBlockBits = 7, kBlockSize = 1u << kBlockBits, kBlocks = 0x110000 >> kBlockBits;
  static constexpr uint32_t kMaxDistinct = 1024;
  uint16_t block_[kBlocks];
  uint8_t classes_[kMaxDistinct * kBlockSize];
};

}  // namespace firesteel

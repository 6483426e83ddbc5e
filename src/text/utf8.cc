#include "text/utf8.h"

#include <cstring>

#include "text/tokenizer.h"

namespace firesteel {

namespace {
constexpr std::string_view kReplacement = "\xef\xbf\xbd";
}

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};

  // Only the second byte has a range that depends on the lead (no overlong forms, surrogates or values too
  // large).
  uint8_t size = 0;
  uint32_t low = 0x80, high = 0xbf, code_point = 0;
  if (lead >= 0xc2 && lead <= 0xdf) {
    size = 2;
    code_point = lead & 0x1f;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    size = 3;
    code_point = lead & 0x0f;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    size = 4;
    code_point = lead & 0x07;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {0, 1, false, false};
  }
  for (uint8_t i = 1; i < size; ++i) {
    if (i == text.size()) return {0, i, false, true};
    const uint32_t b = byte(i);
    if (b < low || b > high) return {0, i, false, false};
    code_point = code_point << 6 | (b & 0x3f);
    low = 0x80;
    high = 0xbf;
  }
  return {code_point, size, true, false};
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    while (at + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if (word & 0x8080808080808080u) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Utf8Step step = utf8_step(text.substr(at));
    if (!step.valid) break;
    at += step.size;
  }
  return at;
}

void utf8_append(std::string& out, uint32_t cp) {
  const auto put = [&](uint32_t b) { out.push_back(static_cast<char>(b)); };
  if (cp < 0x80) {
    put(cp);
  } else if (cp < 0x800) {
    put(0xc0 | cp >> 6);
    put(0x80 | (cp & 0x3f));
  } else if (cp < 0x10000) {
    put(0xe0 | cp >> 12);
    put(0x80 | (cp >> 6 & 0x3f));
    put(0x80 | (cp & 0x3f));
  } else {
    put(0xf0 | cp >> 18);
    put(0x80 | (cp >> 12 & 0x3f));
    put(0x80 | (cp >> 6 & 0x3f));
    put(0x80 | (cp & 0x3f));
  }
}

std::string utf8_lossy(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    out.append(kReplacement);
    text.remove_prefix(utf8_step(text).size);
  }
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string joined;
  std::string_view text = bytes;
  if (!held_.empty()) {
    joined.swap(held_);
    joined.append(bytes);
    text = joined;
  }
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    const Utf8Step step = utf8_step(text);
    if (step.incomplete) {
      held_.assign(text);
      break;
    }
    out.append(kReplacement);
    text.remove_prefix(step.size);
  }
  return out;
}

std::string Utf8Stream::finish() {
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

}  // namespace firesteel

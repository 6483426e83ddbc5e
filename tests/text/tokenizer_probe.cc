// Answers the oracle test (tests/oracle/tokenizer_oracle.mjs): loads a tokenizer.json, then reads requests
// from standard input and writes the results to standard output, all integers as 32 bits, little-endian.
//   'E' runs { trusted, length, bytes }…   ->  count, ids      (count -1: the encoder refused)
//   'D' count, ids                          ->  length, bytes
#include <cstdio>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace {

bool read_bytes(void* to, size_t n) { return std::fread(to, 1, n, stdin) == n; }
bool read_u32(uint32_t& v) { return read_bytes(&v, sizeof v); }
void write_bytes(const void* from, size_t n) { std::fwrite(from, 1, n, stdout); }
void write_u32(uint32_t v) { write_bytes(&v, sizeof v); }

bool encode(const firesteel::Tokenizer& tokenizer) {
  uint32_t runs = 0;
  if (!read_u32(runs)) return false;
  firesteel::MarkedText text;
  for (uint32_t i = 0; i < runs; ++i) {
    uint32_t trusted = 0, length = 0;
    if (!read_u32(trusted) || !read_u32(length)) return false;
    std::string bytes(length, '\0');
    if (!read_bytes(bytes.data(), length)) return false;
    text.append(bytes, trusted != 0);
  }
  const auto ids = tokenizer.encode(text);
  if (!ids) {
    write_u32(~0u);
    return true;
  }
  write_u32(static_cast<uint32_t>(ids->size()));
  write_bytes(ids->data(), ids->size() * sizeof(int32_t));
  return true;
}

bool decode(const firesteel::Tokenizer& tokenizer) {
  uint32_t count = 0;
  if (!read_u32(count)) return false;
  std::vector<int32_t> ids(count);
  if (!read_bytes(ids.data(), count * sizeof(int32_t))) return false;
  const std::string text = tokenizer.decode(ids);
  write_u32(static_cast<uint32_t>(text.size()));
  write_bytes(text.data(), text.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_probe TOKENIZER.json\n");
    return 2;
  }
  const auto tokenizer = firesteel::Tokenizer::load(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  for (char what; read_bytes(&what, 1);) {
    if (!(what == 'E' ? encode(*tokenizer) : what == 'D' && decode(*tokenizer))) {
      std::fprintf(stderr, "tokenizer_probe: a damaged request\n");
      return 1;
    }
  }
  return 0;
}

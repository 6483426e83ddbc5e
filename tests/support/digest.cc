#include "support/digest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace firesteel::test {
namespace {

/// The round constants: the first 32 fraction bits of the cube roots of the first 64 primes, found in
/// integers.
std::array<uint32_t, 64> round_constants() {
  std::array<uint32_t, 64> out = {};
  size_t found = 0;
  for (uint64_t p = 2; found < out.size(); ++p) {
    bool prime = true;
    for (uint64_t d = 2; d * d <= p; ++d) prime = prime && p % d != 0;
    if (!prime) continue;
    // The largest r with r^3 <= p·2^96.
    uint64_t r = 0;
    for (int bit = 36; bit >= 0; --bit) {
      const uint64_t t = r | (1ull << bit);
      const auto square = static_cast<unsigned __int128>(t) * t;
      if (square <= (static_cast<unsigned __int128>(p) << 96) / t) r = t;
    }
    out[found++] = static_cast<uint32_t>(r);
  }
  return out;
}

}  // namespace

void Sha256::block(const uint8_t* at) {
  static const std::array<uint32_t, 64> k = round_constants();
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = static_cast<uint32_t>(at[4 * i]) << 24 | at[4 * i + 1] << 16 | at[4 * i + 2] << 8 | at[4 * i + 3];
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    const uint32_t s0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3;
    const uint32_t s1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += add[i];
}

void Sha256::add(const void* data, size_t bytes) {
  auto* at = static_cast<const uint8_t*>(data);
  total_ += bytes;
  while (bytes > 0) {
    if (held_ == 0 && bytes >= 64) {
      block(at);
      at += 64, bytes -= 64;
      continue;
    }
    const size_t n = std::min(bytes, 64 - held_);
    std::memcpy(pending_.data() + held_, at, n);
    held_ += n, at += n, bytes -= n;
    if (held_ == 64) {
      block(pending_.data());
      held_ = 0;
    }
  }
}

std::string Sha256::hex() {
  const uint64_t bits = total_ * 8;
  const uint8_t one = 0x80, zero = 0;
  add(&one, 1);
  while (held_ != 56) add(&zero, 1);
  for (int i = 7; i >= 0; --i) {
    const auto byte = static_cast<uint8_t>(bits >> (8 * i));
    add(&byte, 1);
  }
  std::string out;
  for (const uint32_t word : state_) {
    for (int i = 28; i >= 0; i -= 4) out += "0123456789abcdef"[word >> i & 15];
  }
  return out;
}

std::string sha256_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  Sha256 sha;
  std::vector<char> piece(1 << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    sha.add(piece.data(), static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) throw std::runtime_error("cannot read " + path);
  return sha.hex();
}

uint32_t crc32(const void* data, size_t bytes) {
  auto* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~0u;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= at[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

}  // namespace firesteel::test

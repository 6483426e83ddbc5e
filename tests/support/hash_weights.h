// Test weights as a function of a tensor's name and an element's index: what manifest.json of a golden model
// lists becomes a complete model directory. Integers and IEEE doubles only, so every machine writes the same
// bytes.
//
// key = FNV-1a-64 of the name (or of the entry's "key"); z(i) = the splitmix64 finaliser of key +
// (i+1)·golden ratio; f0..f3 = the four 16-bit fields of z(i), f0 lowest. Kinds of element:
//   normal   mean + (std · ((f0+f1+f2+f3 − 131070) / 65536)) · √3     (mean 0 and variance 1 before scaling)
//   f8       sign = bit 63, magnitude (f0·127) >> 16: a finite E4M3 byte
//   f8scale  value · (f0/65536 · 0.5 + 1), never a power of two
//   bits16   f0
//   sign     ±value · ((f0/65536 − 0.5) · jitter + 1), sign = bit 63
//   const    value
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace firesteel::test {

uint64_t hash_key(std::string_view name);
/// z(i) of a key.
uint64_t hash_at(uint64_t key, uint64_t index);

/// Writes the model that MANIFEST_DIR/manifest.json describes into OUT_DIR (which exists). Throws
/// std::runtime_error.
void generate_model(const std::string& manifest_dir, const std::string& out_dir);

}  // namespace firesteel::test

// Golden data: recorded results as named arrays, and golden models generated into the build tree.
//
// Everything here throws std::runtime_error when data is missing or has another type, which a test reports as
// a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace firesteel::test {

/// The repository's root, and a path under tests/data/golden.
std::string source_dir();
std::string golden_path(const std::string& relative);

/// The complete model directory of a golden model ("tiny", "tiny-variant", "tiny-fp8", "tiny-exl3"). It is
/// generated once into the build tree; several test programs may ask at the same time. Treat it as read-only.
std::string golden_model_dir(const std::string& name);
/// The same under another root folder.
std::string golden_model_dir_in(const std::string& root, const std::string& name);

/// A safetensors file held in memory.
class Golden {
 public:
  static Golden load(const std::string& path);
  /// tests/data/golden/NAME/goldens.safetensors
  static Golden of(const std::string& name) { return load(golden_path(name + "/goldens.safetensors")); }

  struct Array {
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
  };

  bool has(const std::string& name) const { return arrays_.count(name) != 0; }
  const std::map<std::string, Array>& arrays() const { return arrays_; }
  const Array& at(const std::string& name) const;
  const std::vector<int64_t>& shape(const std::string& name) const { return at(name).shape; }
  /// Row-major values of an F32, F16 or BF16 array.
  std::vector<float> floats(const std::string& name) const;
  /// Row-major values of an I32, I16 or I64 array that fit 32 bits.
  std::vector<int32_t> ints(const std::string& name) const;
  /// The 16-bit patterns of an F16, BF16 or I16 array.
  std::vector<uint16_t> words(const std::string& name) const;

 private:
  std::map<std::string, Array> arrays_;
};

/// Largest |a - b|; NaN anywhere, or different sizes, give infinity.
double max_abs_diff(std::span<const float> a, std::span<const float> b);

}  // namespace firesteel::test

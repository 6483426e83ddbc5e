// From tensor names to EXL3 matrices: which tensors of a checkpoint belong together, and whether they fit.
//
// A matrix called PREFIX is a group PREFIX.trellis (I16 [k/16, n/16, 16·bits]), .suh (F16 [k]) or the older
// .su (I16 [k/16]), .svh (F16 [n]) or .sv (I16 [n/16]), at most one marker .mcg or .mul1 (one I32) and
// perhaps .bias (F16 or F32 [n]). Headers alone decide: nothing is read from the tensors, and lists in config
// files are not consulted. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quant/codebook.h"
#include "tensor/safetensors.h"

namespace firesteel {

/// One matrix. The pointers are the caller's TensorInfos. k and n are multiples of 128; bits is 1 to 8.
struct Exl3Linear {
  std::string prefix;
  int64_t k = 0, n = 0;
  int bits = 0;
  Codebook codebook = Codebook::k3Inst;
  const TensorInfo* trellis = nullptr;
  const TensorInfo* input_scale = nullptr;   // F16 [k], or packed signs: I16 [k/16]
  const TensorInfo* output_scale = nullptr;  // F16 [n], or packed signs: I16 [n/16]
  const TensorInfo* marker = nullptr;        // null for 3inst
  const TensorInfo* bias = nullptr;          // null without one
};

/// Finds a tensor by its whole name; null if there is none.
using TensorFinder = std::function<const TensorInfo*(std::string_view name)>;

/// The group of one prefix. Errors name the tensor at fault, not the file (the caller knows which it is):
/// kNotFound for a missing part, kUnsupported for forms that exist but are not read (half rates, `scale`),
/// else kInvalidFile.
Result<Exl3Linear> describe_exl3(const std::string& prefix, const TensorFinder& find);

struct Exl3Inventory {
  std::vector<Exl3Linear> matrices;      // in the order of their trellises
  std::vector<const TensorInfo*> plain;  // every other tensor, in order
};

/// Sorts all tensors of a checkpoint (of all its files together). Errors as above; also a part without a
/// trellis, a matrix that has a plain .weight as well, and a name that two files hold.
Result<Exl3Inventory> group_exl3(std::span<const TensorInfo* const> tensors);

}  // namespace firesteel

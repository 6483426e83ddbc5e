#include "quant/exl3_group.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "quant/exl3.h"
#include "quant/hadamard.h"

namespace firesteel {
namespace {

constexpr std::string_view kTrellis = ".trellis";
/// Parts that nothing but an EXL3 matrix has.
constexpr std::array<std::string_view, 6> kOwnParts = {".suh", ".svh", ".su", ".sv", ".mcg", ".mul1"};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out(1, '[');
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out += ']';
}

Error wrong(const TensorInfo& t, const std::string& what, ErrorCode code = ErrorCode::kInvalidFile) {
  std::string message = "tensor ";
  message.append(t.name).append(": ").append(what);
  return Error{code, std::move(message)};
}

Error missing(const std::string& name, const std::string& why) {
  std::string message = "tensor ";
  message.append(name).append(" is missing: ").append(why);
  return Error{ErrorCode::kNotFound, std::move(message)};
}

Status expect(const TensorInfo& t, DType type, const std::vector<int64_t>& shape) {
  if (t.dtype == type && t.shape == shape) return {};
  std::string what = "is ";
  what.append(dtype_name(t.dtype)).append(" ").append(shape_text(t.shape)).append(", an EXL3 matrix needs ");
  return wrong(t, what.append(dtype_name(type)).append(" ").append(shape_text(shape)));
}

/// k, n and bits from the trellis.
Status read_trellis(const TensorInfo& t, Exl3Linear& out) {
  if (t.dtype != DType::kI16 || t.shape.size() != 3) {
    return wrong(t, "an EXL3 trellis is I16 [k/16, n/16, 16*bits], this is " +
                        std::string(dtype_name(t.dtype)) + " " + shape_text(t.shape));
  }
  const int64_t words = t.shape[2];
  if (words == 24 || words == 40 || words == 56) {
    return wrong(t, "half rates (1.5, 2.5, 3.5 bits) are not supported", ErrorCode::kUnsupported);
  }
  if (words % kExl3Tile != 0 || words < kExl3Tile || words > kExl3Tile * kExl3MaxBits) {
    return wrong(t,
                 "tiles of " + std::to_string(words) + " words; 1 to 8 bits need 16 to 128 in steps of 16");
  }
  constexpr int64_t kTiles = kHadamardBlock / kExl3Tile;
  for (const int64_t tiles : {t.shape[0], t.shape[1]}) {
    if (tiles == 0 || tiles % kTiles != 0) {
      return wrong(t, "is not made of 128x128 blocks: " + shape_text(t.shape) + " tiles");
    }
  }
  out.trellis = &t;
  out.k = t.shape[0] * kExl3Tile;
  out.n = t.shape[1] * kExl3Tile;
  out.bits = static_cast<int>(words / kExl3Tile);
  return {};
}

/// The scale vector of one side: `full` holds fp16 values, `packed` signs only.
Result<const TensorInfo*> read_scale(const std::string& prefix, const char* full, const char* packed,
                                     int64_t channels, const TensorFinder& find) {
  const TensorInfo* values = find(prefix + full);
  const TensorInfo* signs = find(prefix + packed);
  if (values != nullptr && signs != nullptr) {
    return wrong(*signs, std::string("there is ") + full + " as well; only one may give the scale");
  }
  if (values != nullptr) {
    RETURN_IF_ERROR(expect(*values, DType::kF16, {channels}));
    return values;
  }
  if (signs != nullptr) {
    RETURN_IF_ERROR(expect(*signs, DType::kI16, {channels / 16}));
    return signs;
  }
  return missing(prefix + full, "the EXL3 matrix " + prefix + " needs it");
}

std::optional<std::string_view> prefix_before(std::string_view name, std::string_view part) {
  if (!name.ends_with(part)) return std::nullopt;
  return name.substr(0, name.size() - part.size());
}

}  // namespace

Result<Exl3Linear> describe_exl3(const std::string& prefix, const TensorFinder& find) {
  Exl3Linear out;
  out.prefix = prefix;
  const TensorInfo* trellis = find(prefix + std::string(kTrellis));
  if (trellis == nullptr) return missing(prefix + std::string(kTrellis), "an EXL3 matrix needs it");
  RETURN_IF_ERROR(read_trellis(*trellis, out));

  if (const TensorInfo* scale = find(prefix + ".scale")) {
    return wrong(*scale, "per-matrix scales of early EXL3 versions are not supported",
                 ErrorCode::kUnsupported);
  }
  ASSIGN_OR_RETURN(out.input_scale, read_scale(prefix, ".suh", ".su", out.k, find));
  ASSIGN_OR_RETURN(out.output_scale, read_scale(prefix, ".svh", ".sv", out.n, find));

  const TensorInfo* mcg = find(prefix + ".mcg");
  const TensorInfo* mul1 = find(prefix + ".mul1");
  if (mcg != nullptr && mul1 != nullptr)
    return wrong(*mul1, "there is a .mcg marker as well; only one is legal");
  out.marker = mcg != nullptr ? mcg : mul1;
  if (out.marker != nullptr) {
    if (out.marker->shape != std::vector<int64_t>{1}) RETURN_IF_ERROR(expect(*out.marker, DType::kI32, {}));
    if (out.marker->dtype != DType::kI32) return wrong(*out.marker, "an EXL3 marker is one I32");
    out.codebook = mcg != nullptr ? Codebook::kMcg : Codebook::kMul1;
  }

  out.bias = find(prefix + ".bias");
  if (out.bias != nullptr && out.bias->dtype != DType::kF32) {
    RETURN_IF_ERROR(expect(*out.bias, DType::kF16, {out.n}));
  } else if (out.bias != nullptr) {
    RETURN_IF_ERROR(expect(*out.bias, DType::kF32, {out.n}));
  }
  return out;
}

Result<Exl3Inventory> group_exl3(std::span<const TensorInfo* const> tensors) {
  std::unordered_map<std::string_view, const TensorInfo*> by_name;
  by_name.reserve(tensors.size());
  for (const TensorInfo* t : tensors) {
    if (!by_name.emplace(t->name, t).second) return wrong(*t, "two files hold a tensor of this name");
  }
  const TensorFinder find = [&](std::string_view name) -> const TensorInfo* {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
  };

  Exl3Inventory out;
  std::set<const TensorInfo*> used;
  for (const TensorInfo* t : tensors) {
    const auto prefix = prefix_before(t->name, kTrellis);
    if (!prefix) continue;
    ASSIGN_OR_RETURN(Exl3Linear matrix, describe_exl3(std::string(*prefix), find));
    if (const TensorInfo* weight = find(matrix.prefix + ".weight")) {
      return wrong(*weight, "the matrix is there in EXL3 form as well");
    }
    for (const TensorInfo* part :
         {matrix.trellis, matrix.input_scale, matrix.output_scale, matrix.marker, matrix.bias}) {
      if (part != nullptr) used.insert(part);
    }
    out.matrices.push_back(std::move(matrix));
  }
  for (const TensorInfo* t : tensors) {
    if (used.count(t) != 0) continue;
    for (const std::string_view part : kOwnParts) {
      const auto prefix = prefix_before(t->name, part);
      if (prefix) return missing(std::string(*prefix) + std::string(kTrellis), "there is " + t->name);
    }
    out.plain.push_back(t);
  }
  return out;
}

}  // namespace firesteel

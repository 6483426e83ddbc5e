#include "model/tensor_lookup.h"

#include <algorithm>

#include "quant/exl3_group.h"
#include "quant/narrow.h"

namespace firesteel {
namespace {

constexpr int32_t kBlock = 128;  // of FP8 scales and of EXL3's Hadamard transforms

std::string types_text(std::initializer_list<DType> types) {
  std::string out;
  for (const DType t : types) out += (out.empty() ? "" : " or ") + std::string(dtype_name(t));
  return out;
}

/// By the unsliced width: every rank decides alike, and its columns begin and end with groups of the whole.
MatrixKeep keep_of(const MatrixWanted& want, DenseFormat dense) {
  if (dense == DenseFormat::kStored || want.narrowing == Narrowing::kNever) return MatrixKeep::kStored;
  const bool q4 = dense == DenseFormat::kQ4 && want.narrowing == Narrowing::kDense && want.k % kQ4Group == 0;
  return q4 ? MatrixKeep::kQ4 : MatrixKeep::kFp8;
}

/// True when a cut of [0, full) keeps blocks of 128 whole.
bool keeps_blocks(Range r, int32_t full) {
  return r.begin % kBlock == 0 && (r.end % kBlock == 0 || r.end == full);
}

}  // namespace

Result<TensorRef> TensorLookup::need(const std::string& name, std::initializer_list<DType> types,
                                     std::initializer_list<std::vector<int64_t>> shapes) const {
  const TensorRef t = checkpoint_.find(name);
  if (!t) {
    return Error{ErrorCode::kInvalidFile, checkpoint_.expected_file(name) + ": tensor " + name + ": missing"};
  }
  if (std::find(types.begin(), types.end(), t.info->dtype) == types.end()) {
    return tensor_error(
        t, "has type " + std::string(dtype_name(t.info->dtype)) + ", needs " + types_text(types));
  }
  if (std::find(shapes.begin(), shapes.end(), t.info->shape) == shapes.end()) {
    return tensor_error(t,
                        "has shape " + shape_text(t.info->shape) + ", needs " + shape_text(*shapes.begin()));
  }
  return t;
}

Status TensorLookup::matrix(const std::string& name, const MatrixWanted& want, MatrixRef& out) const {
  out = MatrixRef{};
  out.rows = want.rows;
  out.cols = want.cols;
  out.full_n = want.n;
  out.full_k = want.k;
  out.spec.n = want.rows.size();
  out.spec.k = want.cols.size();
  out.spec.slice_end[0] = out.spec.k;
  if (want.sliced) set_slices(out.spec, want.k, placement_);

  const std::string plain = want.bare_name ? name : name + ".weight";
  const TensorRef trellis = checkpoint_.find(name + ".trellis");
  if (!trellis) return plain_matrix(plain, want, out);
  if (checkpoint_.find(plain)) return tensor_error(trellis, "a plain " + plain + " is there as well");
  if (want.only_plain) return tensor_error(trellis, "may not be quantized", ErrorCode::kUnsupported);
  return exl3_matrix(name, want, out);
}

Status TensorLookup::plain_matrix(const std::string& name, const MatrixWanted& want, MatrixRef& out) const {
  if (want.only_plain) {
    ASSIGN_OR_RETURN(out.weight, need(name, {DType::kBf16, DType::kF32}, {{want.n, want.k}}));
  } else {
    ASSIGN_OR_RETURN(out.weight, need(name, {DType::kBf16, DType::kF32, DType::kF8E4M3}, {{want.n, want.k}}));
  }
  out.spec.format = out.weight.info->dtype == DType::kF32 ? MatrixFormat::kF32 : MatrixFormat::kBf16;
  if (out.weight.info->dtype != DType::kF8E4M3) {
    out.spec.keep = keep_of(want, dense_);
    return Status::success();
  }
  out.spec.format = MatrixFormat::kFp8Block;
  const auto blocks = [](int32_t size) { return static_cast<int64_t>((size + kBlock - 1) / kBlock); };
  ASSIGN_OR_RETURN(out.scale, need(name + "_scale_inv", {DType::kF32}, {{blocks(want.n), blocks(want.k)}}));
  if (!keeps_blocks(want.rows, want.n) || !keeps_blocks(want.cols, want.k)) {
    return tensor_error(out.weight, "this rank's part would cut a 128×128 block", ErrorCode::kUnsupported);
  }
  return Status::success();
}

Status TensorLookup::exl3_matrix(const std::string& name, const MatrixWanted& want, MatrixRef& out) const {
  out.weight = checkpoint_.find(name + ".trellis");
  const auto described =
      describe_exl3(name, [&](std::string_view part) { return checkpoint_.find(part).info; });
  if (!described.ok()) {
    // Its errors name the tensor; every part of a group is expected where the trellis lies.
    return Error{described.error().code, out.weight.file->path() + ": " + described.error().message};
  }
  if (described->n != want.n || described->k != want.k) {
    return tensor_error(out.weight, "has shape " + shape_text(out.weight.info->shape) + ", needs [" +
                                        std::to_string(want.k / 16) + ", " + std::to_string(want.n / 16) +
                                        ", 16·bits] for a matrix of " + std::to_string(want.k) + " by " +
                                        std::to_string(want.n));
  }
  if (described->bias != nullptr) {
    return tensor_error(checkpoint_.find(described->bias->name), "no matrix of this model has a bias",
                        ErrorCode::kUnsupported);
  }
  out.spec.format = MatrixFormat::kExl3;
  out.spec.bits = static_cast<uint8_t>(described->bits);
  out.spec.codebook = described->codebook;
  out.suh = checkpoint_.find(described->input_scale->name);
  out.svh = checkpoint_.find(described->output_scale->name);
  if (!keeps_blocks(want.rows, want.n) || !keeps_blocks(want.cols, want.k)) {
    return tensor_error(out.weight, "this rank's part would cut a 128-wide block", ErrorCode::kUnsupported);
  }
  return Status::success();
}

Status TensorLookup::vector(const std::string& name, std::initializer_list<std::vector<int64_t>> shapes,
                            Range rows, int64_t inner, VectorRef& out) const {
  ASSIGN_OR_RETURN(const TensorRef t, need(name, {DType::kF32, DType::kBf16, DType::kF16}, shapes));
  out.pieces.push_back({t, rows.begin * inner, rows.size() * inner});
  return Status::success();
}

}  // namespace firesteel

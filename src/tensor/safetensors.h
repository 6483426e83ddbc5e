// safetensors files: a checked header, reads of byte ranges, and a writer.
//
// The header is validated before anything is allocated from it: its size against a cap and the file, dtype,
// shape (no overflow, bytes = elements × size), offsets in range and not overlapping. Tensors may start at
// any byte. A SafetensorsFile owns its descriptor; reads (pread) may run on several threads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace firesteel {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty = scalar
  uint64_t begin = 0;          // absolute file offset of the first byte
  uint64_t bytes = 0;
  int64_t elements() const;
};

/// Parses and checks a header. `header` is the JSON text, `data_start` its absolute end, `file_size` the
/// whole file. Errors are kInvalidFile and name `path` and the tensor. Never allocates more than a small
/// multiple of header.size().
Result<std::vector<TensorInfo>> parse_safetensors_header(std::string_view header, uint64_t data_start,
                                                         uint64_t file_size, const std::string& path);

class SafetensorsFile {
 public:
  static constexpr uint64_t kMaxHeaderBytes = 100ull << 20;
  static Result<SafetensorsFile> open(const std::string& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  /// Reads `bytes` bytes of `tensor` from byte `offset` of it into `dst`; a short file is kInvalidFile naming
  /// the tensor.
  Status read(const TensorInfo& tensor, uint64_t offset, uint64_t bytes, void* dst) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  int fd_ = -1;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

/// One tensor to write; `data` holds elements × size bytes, row-major, little-endian.
struct TensorToWrite {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  const void* data;
};
/// Writes the tensors in the given order. The file appears under `path` only when it is complete (it is
/// written beside it as `path`.partial); what was there is replaced. A name twice or a bad shape is
/// kInvalidArgument, the rest kIo.
Status write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors);

}  // namespace firesteel

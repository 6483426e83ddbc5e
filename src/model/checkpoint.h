// Checkpoint: a directory of safetensors files seen as one set of tensors.
//
// Opening reads and checks headers only. With an index (model.safetensors.index.json) the files are those it
// names; without one, model.safetensors or else every *.safetensors file. The headers are authoritative: the
// index only says which files belong and where a tensor ought to be. Owns the open files; reads may run on
// several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "tensor/safetensors.h"

namespace firesteel {

/// Where one tensor lies. Points into a Checkpoint, which must outlive it.
struct TensorRef {
  const SafetensorsFile* file = nullptr;
  const TensorInfo* info = nullptr;
  explicit operator bool() const { return info != nullptr; }
};

class Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  /// Of every tensor the text model uses except the head: "model.language_model." or "model.".
  const std::string& text_prefix() const { return text_prefix_; }
  TensorRef find(std::string_view name) const;
  /// True when any tensor's name starts with `prefix`.
  bool has_prefix(std::string_view prefix) const;
  /// The file that should hold a tensor which find() does not know: from the index, or the directory.
  std::string expected_file(const std::string& name) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  uint64_t data_bytes() const;  // of all tensors in all files

 private:
  Checkpoint() = default;
  Status add_tensors();

  std::string dir_, text_prefix_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string_view, TensorRef> tensors_;
  std::unordered_map<std::string, std::string> index_;  // tensor name to file name
};

/// kInvalidFile: "FILE: tensor NAME: what".
Error tensor_error(const TensorRef& tensor, const std::string& what,
                   ErrorCode code = ErrorCode::kInvalidFile);
/// "[2, 3]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace firesteel

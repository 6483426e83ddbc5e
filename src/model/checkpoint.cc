#include "model/checkpoint.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "model/config_layers.h"
#include "model/json_reader.h"

namespace firesteel {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 256u << 20;
constexpr size_t kMaxFiles = 10000;
constexpr std::string_view kSuffix = ".safetensors";

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() < 256 && name.find('/') == std::string::npos && name[0] != '.' &&
         name.find('\0') == std::string::npos;
}

Result<std::vector<std::string>> list_files(const std::string& dir) {
  std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(dir.c_str()), &::closedir);
  if (!handle) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, dir + ": cannot open the model directory: " + std::strerror(errno)};
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(handle.get())) {
    const std::string_view name = entry->d_name;
    if (name == "model.safetensors") return std::vector<std::string>{std::string(name)};
    if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) names.emplace_back(name);
    if (names.size() > kMaxFiles)
      return Error{ErrorCode::kInvalidFile, dir + ": too many .safetensors files"};
  }
  if (names.empty()) return Error{ErrorCode::kNotFound, dir + ": holds no .safetensors file"};
  std::sort(names.begin(), names.end());
  return names;
}

/// Reads the index into `index` and returns the files that it names, in string order.
Result<std::vector<std::string>> read_index(const std::string& path, const std::string& text,
                                            std::unordered_map<std::string, std::string>& index) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json root, parse_json_object(text, kMaxIndexBytes, path));
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object() || map->empty()) {
    return Error{ErrorCode::kInvalidFile, path + ": weight_map: missing or empty"};
  }
  std::vector<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      return Error{ErrorCode::kInvalidFile,
                   path + ": weight_map: " + in_quotes(tensor) + " has no plain file name"};
    }
    index.emplace(tensor, file.get<std::string>());
    names.push_back(file.get<std::string>());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.size() > kMaxFiles) return Error{ErrorCode::kInvalidFile, path + ": names too many files"};
  return names;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

Error tensor_error(const TensorRef& tensor, const std::string& what, ErrorCode code) {
  return Error{code, tensor.file->path() + ": tensor " + tensor.info->name + ": " + what};
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& dir) {
  std::unique_ptr<Checkpoint> c(new Checkpoint);
  c->dir_ = dir;
  const std::string index_path = dir + "/" + kIndexName;
  std::vector<std::string> names;
  auto index = read_small_file(index_path, kMaxIndexBytes);
  if (index.ok()) {
    ASSIGN_OR_RETURN(names, read_index(index_path, *index, c->index_));
  } else if (index.error().code == ErrorCode::kNotFound) {
    ASSIGN_OR_RETURN(names, list_files(dir));
  } else {
    return std::move(index).error();
  }
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(dir + "/" + name));
    c->files_.push_back(std::move(file));
  }
  RETURN_IF_ERROR(c->add_tensors());
  c->text_prefix_ = c->has_prefix("model.language_model.") ? "model.language_model." : "model.";
  return c;
}

Status Checkpoint::add_tensors() {
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.tensors()) {
      const TensorRef here{&file, &info};
      const auto [it, added] = tensors_.emplace(info.name, here);
      if (added) continue;
      const auto listed = index_.find(info.name);
      if (listed == index_.end()) {
        return tensor_error(here, "is in " + base_name(it->second.file->path()) + " as well");
      }
      if (listed->second == base_name(file.path())) it->second = here;
    }
  }
  return Status::success();
}

TensorRef Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? TensorRef{} : it->second;
}

bool Checkpoint::has_prefix(std::string_view prefix) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const auto& t) { return t.first.starts_with(prefix); });
}

std::string Checkpoint::expected_file(const std::string& name) const {
  const auto it = index_.find(name);
  if (it != index_.end()) return dir_ + "/" + it->second;
  return files_.size() == 1 ? files_[0].path() : dir_;
}

uint64_t Checkpoint::data_bytes() const {
  uint64_t sum = 0;
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.tensors()) sum += info.bytes;
  }
  return sum;
}

}  // namespace firesteel

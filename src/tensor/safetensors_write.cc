#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/json.h"
#include "tensor/safetensors.h"

namespace firesteel {
namespace {

constexpr uint64_t kWritePiece = 64ull << 20;

/// A new file that becomes visible under its name only when complete.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), partial_(path + ".partial") {
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  }
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!published_) ::unlink(partial_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  bool is_open() const { return fd_ >= 0; }

  Status write(const void* data, uint64_t bytes) {
    auto* at = static_cast<const unsigned char*>(data);
    while (bytes > 0) {
      const ssize_t put = ::write(fd_, at, static_cast<size_t>(std::min(bytes, kWritePiece)));
      if (put < 0) {
        if (errno == EINTR) continue;
        return failed("write");
      }
      at += put;
      bytes -= static_cast<uint64_t>(put);
    }
    return {};
  }

  Status publish() {
    if (::fsync(fd_) != 0) return failed("flush");
    if (::close(std::exchange(fd_, -1)) != 0) return failed("close");
    if (::rename(partial_.c_str(), path_.c_str()) != 0) return failed("rename");
    published_ = true;
    return {};
  }

  Error failed(const char* what) const {
    return Error{ErrorCode::kIo, path_ + ": cannot " + what + ": " + std::strerror(errno)};
  }

 private:
  const std::string path_, partial_;
  int fd_ = -1;
  bool published_ = false;
};

}  // namespace

Status write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors) {
  const auto refused = [&](const TensorToWrite& t, const char* what) {
    return Error{ErrorCode::kInvalidArgument, path + ": tensor " + t.name + ": " + what};
  };
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::set<std::string_view> names;
  std::vector<uint64_t> sizes;
  uint64_t at = 0;
  for (const TensorToWrite& t : tensors) {
    if (t.name == "__metadata__" || !names.insert(t.name).second) return refused(t, "the name is taken");
    uint64_t bytes = dtype_size(t.dtype);
    uint64_t end = 0;
    for (const int64_t dim : t.shape) {
      if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
        return refused(t, "its shape is negative or overflows");
      }
    }
    if (__builtin_add_overflow(at, bytes, &end) || end > static_cast<uint64_t>(INT64_MAX)) {
      return refused(t, "the file would be too large");
    }
    if (find_invalid_utf8(t.name) != std::string_view::npos) return refused(t, "the name is not valid UTF-8");
    text += ',';
    append_json_string(t.name, false, &text);
    text.append(":{\"dtype\":\"").append(dtype_name(t.dtype)).append("\",\"shape\":[");
    for (size_t i = 0; i < t.shape.size(); ++i)
      text.append(i > 0 ? "," : "").append(std::to_string(t.shape[i]));
    text.append("],\"data_offsets\":[").append(std::to_string(at)).append(",");
    text.append(std::to_string(end)).append("]}");
    sizes.push_back(bytes);
    at = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > SafetensorsFile::kMaxHeaderBytes) {
    return Error{ErrorCode::kInvalidArgument, path + ": the header would be larger than 100 MiB"};
  }

  NewFile file(path);
  if (!file.is_open()) return file.failed("create");
  const uint64_t header_bytes = text.size();
  RETURN_IF_ERROR(file.write(&header_bytes, sizeof header_bytes));
  RETURN_IF_ERROR(file.write(text.data(), text.size()));
  for (size_t i = 0; i < tensors.size(); ++i) RETURN_IF_ERROR(file.write(tensors[i].data, sizes[i]));
  return file.publish();
}

}  // namespace firesteel

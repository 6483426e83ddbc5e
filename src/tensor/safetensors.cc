#include "tensor/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace firesteel {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is read without swapping");

// Linux moves at most 0x7ffff000 bytes a call; smaller pieces also keep a slow disk interruptible.
constexpr uint64_t kReadPiece = 64ull << 20;

enum class ReadEnd { kDone, kShort, kFailed };  // kFailed: errno tells

ReadEnd read_fully(int fd, uint64_t at, uint64_t bytes, void* dst) {
  auto* out = static_cast<unsigned char*>(dst);
  while (bytes > 0) {
    const ssize_t got =
        ::pread(fd, out, static_cast<size_t>(std::min(bytes, kReadPiece)), static_cast<off_t>(at));
    if (got == 0) return ReadEnd::kShort;
    if (got < 0) {
      if (errno == EINTR) continue;
      return ReadEnd::kFailed;
    }
    out += got;
    at += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return ReadEnd::kDone;
}

std::string errno_text() { return std::strerror(errno); }

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    const auto code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, path + ": cannot open: " + errno_text()};
  }
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) return Error{ErrorCode::kIo, path + ": cannot stat: " + errno_text()};
  const auto invalid = [&](const std::string& what) {
    return Error{ErrorCode::kInvalidFile, path + ": " + what};
  };
  if (!S_ISREG(info.st_mode)) return invalid("not a regular file");
  const auto size = static_cast<uint64_t>(info.st_size);
  uint64_t header_bytes = 0;
  if (size < sizeof header_bytes) return invalid("too short for a safetensors file: truncated or damaged");

  const auto read_start = [&](uint64_t at, uint64_t bytes, void* dst) -> Status {
    switch (read_fully(file.fd_, at, bytes, dst)) {
      case ReadEnd::kDone:
        return {};
      case ReadEnd::kShort:
        return invalid("the header ends early: the file is truncated");
      case ReadEnd::kFailed:
        break;
    }
    return Error{ErrorCode::kIo, path + ": cannot read: " + errno_text()};
  };
  RETURN_IF_ERROR(read_start(0, sizeof header_bytes, &header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    return invalid("claims a header of " + std::to_string(header_bytes) + " bytes, more than 100 MiB");
  }
  if (header_bytes > size - sizeof header_bytes) {
    return invalid("claims a header of " + std::to_string(header_bytes) + " bytes in a file of " +
                   std::to_string(size) + ": truncated or damaged");
  }
  std::string header(header_bytes, '\0');
  RETURN_IF_ERROR(read_start(sizeof header_bytes, header_bytes, header.data()));
  ASSIGN_OR_RETURN(file.tensors_,
                   parse_safetensors_header(header, sizeof header_bytes + header_bytes, size, path));
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.by_name_.emplace(file.tensors_[i].name, i);
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)),
      by_name_(std::move(other.by_name_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    tensors_ = std::move(other.tensors_);
    by_name_ = std::move(other.by_name_);
  }
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) ::close(fd_);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

Status SafetensorsFile::read(const TensorInfo& tensor, uint64_t offset, uint64_t bytes, void* dst) const {
  if (offset > tensor.bytes || bytes > tensor.bytes - offset) {
    return Error{ErrorCode::kInvalidArgument, path_ + ": tensor " + tensor.name + ": read past its end"};
  }
  switch (read_fully(fd_, tensor.begin + offset, bytes, dst)) {
    case ReadEnd::kDone:
      return {};
    case ReadEnd::kShort:
      return Error{ErrorCode::kInvalidFile,
                   path_ + ": tensor " + tensor.name + ": the file ends inside it: truncated"};
    case ReadEnd::kFailed:
      break;
  }
  return Error{ErrorCode::kIo, path_ + ": tensor " + tensor.name + ": cannot read: " + errno_text()};
}

}  // namespace firesteel

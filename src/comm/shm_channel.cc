#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "comm/channel.h"
#include "comm/ring.h"

namespace firesteel {
namespace {

size_t ring_stride(size_t capacity) { return (ring_bytes(capacity) + 4095) / 4096 * 4096; }

Error shm_error(const std::string& what, const std::string& name) {
  return {ErrorCode::kIo, what + " shared memory " + name + ": " + std::strerror(errno)};
}

class ShmChannel final : public ByteChannel {
 public:
  ShmChannel(std::byte* memory, size_t capacity, int side)
      : memory_(memory),
        bytes_(2 * ring_stride(capacity)),
        out_(memory + static_cast<size_t>(side) * ring_stride(capacity), capacity),
        in_(memory + static_cast<size_t>(1 - side) * ring_stride(capacity), capacity) {}
  ~ShmChannel() override {
    out_.close();
    in_.close();
    munmap(memory_, bytes_);
  }
  Result<size_t> write_some(std::span<const std::byte> bytes) override {
    if (out_.closed()) return Error{ErrorCode::kUnavailable, "the peer closed its end"};
    return out_.write_some(bytes);
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override {
    const bool closed = in_.closed();
    const size_t n = in_.read_some(bytes);
    if (n == 0 && closed && !bytes.empty()) return Error{ErrorCode::kUnavailable, "the peer closed its end"};
    return n;
  }

 private:
  std::byte* memory_;
  size_t bytes_;
  Ring out_, in_;
};

Result<std::unique_ptr<ByteChannel>> map_channel(int fd, const std::string& name, size_t capacity, int side) {
  void* p = mmap(nullptr, 2 * ring_stride(capacity), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return shm_error("cannot map", name);
  return std::unique_ptr<ByteChannel>(new ShmChannel(static_cast<std::byte*>(p), capacity, side));
}

}  // namespace

Result<std::unique_ptr<ByteChannel>> create_shm_channel(const std::string& name, size_t capacity) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return shm_error("cannot create", name);
  if (ftruncate(fd, static_cast<off_t>(2 * ring_stride(capacity))) != 0) {
    const Error error = shm_error("cannot size", name);
    close(fd);
    shm_unlink(name.c_str());
    return error;
  }
  return map_channel(fd, name, capacity, 0);
}

Result<std::unique_ptr<ByteChannel>> open_shm_channel(const std::string& name, size_t capacity) {
  const int fd = shm_open(name.c_str(), O_RDWR, 0600);
  if (fd < 0) return shm_error("cannot open", name);
  struct stat st {};
  if (fstat(fd, &st) != 0 || static_cast<size_t>(st.st_size) != 2 * ring_stride(capacity)) {
    close(fd);
    return Error{ErrorCode::kUnavailable, "shared memory " + name + " has another size"};
  }
  shm_unlink(name.c_str());  // both ends have it now: nothing stays behind whatever happens
  return map_channel(fd, name, capacity, 1);
}

}  // namespace firesteel

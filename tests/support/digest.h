// SHA-256 and CRC-32 for comparing files and tables with recorded digests. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace firesteel::test {

class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  /// The digest in lower-case hexadecimal; call once.
  std::string hex();

 private:
  void block(const uint8_t* at);

  std::array<uint32_t, 8> state_ = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
  std::array<uint8_t, 64> pending_ = {};
  size_t held_ = 0;
  uint64_t total_ = 0;
};

/// Throws std::runtime_error when the file cannot be read.
std::string sha256_of_file(const std::string& path);

/// CRC-32 as in zlib (reflected 0xEDB88320).
uint32_t crc32(const void* data, size_t bytes);

}  // namespace firesteel::test

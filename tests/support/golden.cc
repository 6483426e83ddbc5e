#include "support/golden.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "support/digest.h"
#include "support/hash_weights.h"
#include "tensor/safetensors.h"

namespace firesteel::test {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Distinguishes models generated from different inputs, so that a build tree never serves a stale one.
std::string inputs_digest(const fs::path& dir) {
  Sha256 sha;
  for (const char* name :
       {"manifest.json", "config.json", "generation_config.json", "quantization_config.json"}) {
    if (!fs::exists(dir / name)) continue;
    const std::string text = read_text(dir / name);
    sha.add(text.data(), text.size());
  }
  return sha.hex().substr(0, 12);
}

template <typename T>
std::vector<T> elements(const Golden::Array& array) {
  std::vector<T> out(array.bytes.size() / sizeof(T));
  std::memcpy(out.data(), array.bytes.data(), out.size() * sizeof(T));
  return out;
}

template <typename Out, typename In, typename Convert>
std::vector<Out> converted(const Golden::Array& array, Convert convert) {
  const std::vector<In> in = elements<In>(array);
  std::vector<Out> out;
  out.reserve(in.size());
  for (const In x : in) out.push_back(convert(x));
  return out;
}

[[noreturn]] void wrong_type(const std::string& name, DType type) {
  throw std::runtime_error(name + ": cannot be read as asked, it holds " + std::string(dtype_name(type)));
}

}  // namespace

std::string source_dir() { return FIRESTEEL_SOURCE_DIR; }

std::string golden_path(const std::string& relative) {
  return source_dir() + "/tests/data/golden/" + relative;
}

std::string golden_model_dir(const std::string& name) {
  return golden_model_dir_in(FIRESTEEL_BINARY_DIR "/golden-models", name);
}

std::string golden_model_dir_in(const std::string& root_dir, const std::string& name) {
  const fs::path from = golden_path(name);
  const fs::path root = root_dir;
  const fs::path final_dir = root / (name + "-" + inputs_digest(from));
  if (fs::exists(final_dir)) return final_dir.string();

  fs::create_directories(root);
  std::string pattern = (root / (name + ".XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw std::runtime_error("cannot make a folder in " + root.string());
  try {
    generate_model(from.string(), pattern);
    std::error_code error;
    fs::rename(pattern, final_dir, error);
    // Another program may have been faster; its folder holds the same bytes.
    if (error && !fs::exists(final_dir)) throw std::runtime_error("cannot rename to " + final_dir.string());
    if (error) fs::remove_all(pattern);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(pattern, ignored);
    throw;
  }
  return final_dir.string();
}

Golden Golden::load(const std::string& path) {
  auto file = SafetensorsFile::open(path);
  if (!file.ok()) throw std::runtime_error(file.error().message);
  Golden golden;
  for (const TensorInfo& info : file->tensors()) {
    Array array{info.dtype, info.shape, std::vector<uint8_t>(info.bytes)};
    const Status status = file->read(info, 0, info.bytes, array.bytes.data());
    if (!status.ok()) throw std::runtime_error(status.error().message);
    golden.arrays_.emplace(info.name, std::move(array));
  }
  return golden;
}

const Golden::Array& Golden::at(const std::string& name) const {
  const auto it = arrays_.find(name);
  if (it == arrays_.end()) throw std::runtime_error("no golden array " + name);
  return it->second;
}

std::vector<float> Golden::floats(const std::string& name) const {
  const Array& array = at(name);
  switch (array.dtype) {
    case DType::kF32:
      return elements<float>(array);
    case DType::kF16:
      return converted<float, uint16_t>(array, f16_to_f32);
    case DType::kBf16:
      return converted<float, uint16_t>(array, bf16_to_f32);
    default:
      wrong_type(name, array.dtype);
  }
}

std::vector<int32_t> Golden::ints(const std::string& name) const {
  const Array& array = at(name);
  switch (array.dtype) {
    case DType::kI32:
      return elements<int32_t>(array);
    case DType::kI16:
      return converted<int32_t, int16_t>(array, [](int16_t x) { return int32_t{x}; });
    case DType::kI64:
      return converted<int32_t, int64_t>(array, [&](int64_t x) {
        if (x != static_cast<int32_t>(x)) throw std::runtime_error(name + ": a value exceeds 32 bits");
        return static_cast<int32_t>(x);
      });
    default:
      wrong_type(name, array.dtype);
  }
}

std::vector<uint16_t> Golden::words(const std::string& name) const {
  const Array& array = at(name);
  if (dtype_size(array.dtype) != 2) wrong_type(name, array.dtype);
  return elements<uint16_t>(array);
}

double max_abs_diff(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= most)) most = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  return most;
}

}  // namespace firesteel::test

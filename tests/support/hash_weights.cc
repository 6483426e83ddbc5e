#include "support/hash_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "tensor/dtype.h"

namespace firesteel::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Entry {
  std::string name, kind, dtype_text;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t key = 0, elements = 1, bytes = 0;
  double mean = 0, std = 0, value = 0, jitter = 0;
  size_t file = 0;
};

Entry read_entry(const Json& j) {
  Entry e;
  e.name = j.at("name");
  e.kind = j.at("kind");
  e.dtype_text = j.at("dtype");
  const auto dtype = parse_dtype(e.dtype_text);
  if (!dtype) throw std::runtime_error(e.name + ": unknown dtype " + e.dtype_text);
  e.dtype = *dtype;
  e.shape = j.at("shape").get<std::vector<int64_t>>();
  for (const int64_t dim : e.shape) e.elements *= static_cast<uint64_t>(dim);
  e.bytes = e.elements * dtype_size(e.dtype);
  e.key = hash_key(j.value("key", e.name));
  e.mean = j.value("mean", 0.0);
  e.std = j.value("std", 0.0);
  e.value = j.value("value", 0.0);
  e.jitter = j.value("jitter", 0.0);
  e.file = j.value("file", size_t{0});
  return e;
}

/// The rank of a dtype in the order of tensors inside a file.
size_t dtype_rank(DType type) {
  constexpr std::array kOrder = {DType::kF32, DType::kI32, DType::kBf16,
                                 DType::kF16, DType::kI16, DType::kF8E4M3};
  return static_cast<size_t>(std::find(kOrder.begin(), kOrder.end(), type) - kOrder.begin());
}

double field(uint64_t z, int j) { return static_cast<double>(z >> (16 * j) & 0xFFFF); }

double real_element(const Entry& e, uint64_t z) {
  if (e.kind == "normal") {
    const double sum = field(z, 0) + field(z, 1) + field(z, 2) + field(z, 3);
    return e.mean + e.std * ((sum - 131070.0) / 65536.0) * 1.7320508075688772;
  }
  if (e.kind == "f8scale") return e.value * (field(z, 0) / 65536.0 * 0.5 + 1.0);
  if (e.kind == "sign") {
    return (z >> 63 ? -1.0 : 1.0) * e.value * ((field(z, 0) / 65536.0 - 0.5) * e.jitter + 1.0);
  }
  if (e.kind == "const") return e.value;
  throw std::runtime_error(e.name + ": kind " + e.kind + " has no real value");
}

template <typename T, typename Value>
void fill(const Entry& e, uint64_t first, uint64_t count, std::vector<char>& out, Value value) {
  out.resize(count * sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    const T element = value(hash_at(e.key, first + i));
    std::memcpy(out.data() + i * sizeof(T), &element, sizeof(T));
  }
}

/// Elements [first, first + count) as they stand in the file.
void make_elements(const Entry& e, uint64_t first, uint64_t count, std::vector<char>& out) {
  const auto real = [&](uint64_t z) { return static_cast<float>(real_element(e, z)); };
  switch (e.dtype) {
    case DType::kF32:
      return fill<float>(e, first, count, out, [&](uint64_t z) {
        const float f = real(z);
        if (e.kind == "f8scale" && (std::bit_cast<uint32_t>(f) & 0x7FFFFF) == 0) {
          return std::bit_cast<float>(std::bit_cast<uint32_t>(f) | 1);
        }
        return f;
      });
    case DType::kBf16:
      return fill<uint16_t>(e, first, count, out, [&](uint64_t z) { return f32_to_bf16(real(z)); });
    case DType::kF16:
      return fill<uint16_t>(e, first, count, out, [&](uint64_t z) { return f32_to_f16(real(z)); });
    case DType::kI32:
      return fill<int32_t>(e, first, count, out,
                           [&](uint64_t z) { return static_cast<int32_t>(real_element(e, z)); });
    case DType::kI16:
      if (e.kind != "bits16") break;
      return fill<uint16_t>(e, first, count, out, [](uint64_t z) { return static_cast<uint16_t>(z); });
    case DType::kF8E4M3:
      if (e.kind != "f8") break;
      return fill<uint8_t>(e, first, count, out, [](uint64_t z) {
        return static_cast<uint8_t>((z >> 63) * 128 + ((z & 0xFFFF) * 127 >> 16));
      });
    default:
      break;
  }
  throw std::runtime_error(e.name + ": no rule for kind " + e.kind + " as " + e.dtype_text);
}

void write_file(const fs::path& path, std::vector<Entry> entries, bool as_listed) {
  if (!as_listed) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      const size_t ra = dtype_rank(a.dtype), rb = dtype_rank(b.dtype);
      return ra != rb ? ra < rb : a.name < b.name;
    });
  }
  std::string header = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (const Entry& e : entries) {
    Json fields;
    fields["dtype"] = e.dtype_text;
    fields["shape"] = e.shape;
    fields["data_offsets"] = {at, at + e.bytes};
    header.append(",").append(Json(e.name).dump()).append(":").append(fields.dump());
    at += e.bytes;
  }
  header += '}';
  if (!as_listed) header.append((8 - header.size() % 8) % 8, ' ');

  std::ofstream out(path, std::ios::binary);
  const uint64_t header_bytes = header.size();
  out.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  out << header;
  std::vector<char> piece;
  constexpr uint64_t kPiece = 1 << 18;
  for (const Entry& e : entries) {
    for (uint64_t first = 0; first < e.elements; first += kPiece) {
      make_elements(e, first, std::min(kPiece, e.elements - first), piece);
      out.write(piece.data(), static_cast<std::streamsize>(piece.size()));
    }
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

uint64_t hash_key(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325;
  for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return h;
}

uint64_t hash_at(uint64_t key, uint64_t index) {
  uint64_t x = key + (index + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

void generate_model(const std::string& manifest_dir, const std::string& out_dir) {
  const fs::path from = manifest_dir, to = out_dir;
  std::ifstream in(from / "manifest.json");
  if (!in) throw std::runtime_error("cannot open " + (from / "manifest.json").string());
  const Json manifest = Json::parse(in);
  for (const std::string name : manifest.at("copy")) fs::copy_file(from / name, to / name);

  const auto files = manifest.at("files").get<std::vector<std::string>>();
  std::vector<std::vector<Entry>> parts(files.size());
  uint64_t total = 0;
  std::vector<std::pair<std::string, std::string>> where;
  for (const Json& j : manifest.at("tensors")) {
    Entry e = read_entry(j);
    total += e.bytes;
    where.emplace_back(e.name, files.at(e.file));
    parts[e.file].push_back(std::move(e));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    write_file(to / files[i], std::move(parts[i]), manifest.value("as_listed", false));
  }
  if (files.size() == 1) return;
  std::sort(where.begin(), where.end());
  Json index;
  index["metadata"]["total_size"] = total;
  Json& map = index["weight_map"];
  for (const auto& [name, file] : where) map[name] = file;
  std::ofstream(to / "model.safetensors.index.json") << index.dump(1);
}

}  // namespace firesteel::test

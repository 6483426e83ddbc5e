// The header reader against hostile and damaged headers, and files written, read back and cut short.
#include "tensor/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace firesteel {
namespace {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "fs_tensor_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

constexpr uint64_t kStart = 1000, kFile = 2000;

Result<std::vector<TensorInfo>> parse(std::string_view header, uint64_t file = kFile) {
  return parse_safetensors_header(header, kStart, file, "x.safetensors");
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

std::string header_of(std::initializer_list<std::string> entries) {
  std::string out(1, '{');
  for (const std::string& e : entries) out.append(out.size() > 1 ? "," : "").append(e);
  return out.append("}");
}

/// The header must be refused in one line that names the file and holds `part`.
void expect_refused(std::string_view header, const std::string& part) {
  const auto result = parse(header);
  ASSERT_FALSE(result.ok()) << header.substr(0, 200);
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidFile);
  const std::string& message = result.error().message;
  EXPECT_NE(message.find("x.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nwanted: " << part;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 600u);
}

TEST(SafetensorsHeader, ReadsWhatItShould) {
  const auto result =
      parse("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "BF16", "[3,5]", "[7,37]") + "," +
            entry("a", "I32", "[]", "[0,4]") + "," + entry("none", "F32", "[0,9]", "[4,4]") + "," +
            entry("f8", "F8_E4M3", "[3]", "[4,7]") + "}   ");
  ASSERT_TRUE(result.ok()) << result.error().message;
  const auto& t = *result;
  ASSERT_EQ(t.size(), 4u);  // in the header's order
  EXPECT_EQ(t[0].name, "b");
  EXPECT_EQ(t[0].dtype, DType::kBf16);
  EXPECT_EQ(t[0].shape, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(t[0].begin, kStart + 7);
  EXPECT_EQ(t[0].bytes, 30u);
  EXPECT_EQ(t[0].elements(), 15);
  EXPECT_EQ(t[1].elements(), 1);
  EXPECT_TRUE(t[1].shape.empty());
  EXPECT_EQ(t[2].elements(), 0);
  EXPECT_EQ(t[2].bytes, 0u);
  ASSERT_TRUE(parse("{}").ok());
  EXPECT_TRUE(parse("{}")->empty());
}

TEST(SafetensorsHeader, RefusesWhatIsNotAHeader) {
  expect_refused("", "not a JSON object");
  expect_refused("[]", "not a JSON object");
  expect_refused(" {}", "not a JSON object");
  expect_refused("\xEF\xBB\xBF{}", "not a JSON object");
  expect_refused("{", "not valid JSON");
  expect_refused("{}x", "not valid JSON");
  expect_refused("{\"a\":", "not valid JSON");
  expect_refused("{\"\xFF\":{}}", "not valid JSON");
  expect_refused(std::string_view("{}\0{}", 5), "zero byte");
  expect_refused("{\"a\":3}", "tensor a: found a number");
  expect_refused("{\"a\":null}", "tensor a: found null");
  expect_refused("{\"a\":true}", "tensor a: found a boolean");
  expect_refused("{\"__metadata__\":[]}", "__metadata__");
  expect_refused("{\"__metadata__\":{\"a\":1}}", "__metadata__");
  expect_refused("{\"__metadata__\":{\"a\":{}}}", "__metadata__");
  expect_refused("{\"__metadata__\":{},\"__metadata__\":{}}", "twice");
}

TEST(SafetensorsHeader, RefusesBadTensors) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return header_of({entry("layers.7.w", dtype, shape, offsets)});
  };
  ASSERT_TRUE(parse(one("F32", "[2]", "[0,8]")).ok());
  expect_refused(one("F31", "[2]", "[0,8]"), "tensor layers.7.w: unknown dtype \"F31\"");
  expect_refused(one("F32", "[3]", "[0,8]"), "tensor layers.7.w: shape and dtype need 12 bytes");
  expect_refused(one("F32", "[2]", "[0,9]"), "tensor layers.7.w: shape and dtype need 8 bytes");
  expect_refused(one("F32", "[-2]", "[0,8]"), "tensor layers.7.w: shape holds a negative number");
  expect_refused(one("F32", "[2.0]", "[0,8]"), "tensor layers.7.w: shape holds a number that is no");
  expect_refused(one("F32", "[\"2\"]", "[0,8]"), "tensor layers.7.w: shape holds a string");
  expect_refused(one("F32", "[[2]]", "[0,8]"), "tensor layers.7.w: shape holds an array");
  expect_refused(one("F32", "2", "[0,8]"), "tensor layers.7.w: found a number");
  expect_refused(one("F32", "[2]", "[8,0]"), "tensor layers.7.w: data_offsets run backwards");
  expect_refused(one("F32", "[2]", "[-8,0]"), "tensor layers.7.w: data_offsets holds a negative number");
  expect_refused(one("F32", "[2]", "[0]"), "tensor layers.7.w: data_offsets must hold two");
  expect_refused(one("F32", "[2]", "[0,8,8]"), "tensor layers.7.w: data_offsets holds more than two");
  expect_refused(one("F32", "[2]", "[996,1004]"), "tensor layers.7.w: ends at byte 1004");
  expect_refused(one("F32", "[2]", "[18446744073709551608,18446744073709551616]"), "tensor layers.7.w");
  expect_refused(one("F32", "[2]", "[18446744073709551607,18446744073709551615]"), "tensor layers.7.w: ends");
  expect_refused(one("F32", "[4294967296,4294967296]", "[0,0]"), "tensor layers.7.w: its shape overflows");
  expect_refused(one("F32", "[4611686018427387904,4]", "[0,0]"), "tensor layers.7.w: its shape overflows");
  expect_refused(one("I64", "[2305843009213693952]", "[0,0]"), "tensor layers.7.w: its shape overflows");
  expect_refused(one("F32", "[9223372036854775808]", "[0,0]"), "tensor layers.7.w: a dimension is too large");
  expect_refused(one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "tensor layers.7.w: more than 8 dimensions");
  expect_refused("{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", "tensor a: dtype is missing");
  expect_refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "tensor a: shape is missing");
  expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", "tensor a: data_offsets must");
  expect_refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "tensor a: field \"dtype\" appears twice");
  expect_refused("{\"a\":{\"extra\":1}}", "tensor a: unknown field \"extra\"");
}

TEST(SafetensorsHeader, RefusesConflicts) {
  expect_refused(header_of({entry("a", "F32", "[2]", "[0,8]"), entry("a", "F32", "[2]", "[8,16]")}),
                 "tensor a: appears twice");
  expect_refused(header_of({entry("a", "F32", "[2]", "[4,12]"), entry("b", "F32", "[2]", "[0,8]")}),
                 "overlap");
  expect_refused(header_of({entry("a", "F32", "[4]", "[0,16]"), entry("b", "U8", "[1]", "[7,8]")}),
                 "tensor b: its bytes overlap those of a");
  expect_refused(header_of({entry("a", "U8", "[1]", "[7,8]"), entry("b", "U8", "[1]", "[7,8]")}), "overlap");
  // Names that JSON spells differently but that are the same.
  expect_refused(header_of({entry("a", "U8", "[1]", "[0,1]"), entry("\\u0061", "U8", "[1]", "[1,2]")}),
                 "tensor a: appears twice");
  // Touching ranges, holes and empty tensors inside others are fine.
  EXPECT_TRUE(parse(header_of({entry("a", "U8", "[3]", "[0,3]"), entry("b", "U8", "[1]", "[3,4]"),
                               entry("e", "U8", "[0]", "[1,1]"), entry("c", "U8", "[1]", "[9,10]")}))
                  .ok());
}

TEST(SafetensorsHeader, DepthCostsNothing) {
  const std::string deep(1 << 20, '[');
  expect_refused("{\"a\":" + deep, "tensor a");
  expect_refused("{\"a\":{\"shape\":" + deep, "tensor a: shape holds an array");
  std::string objects = "{";
  for (int i = 0; i < 100000; ++i) objects += "\"a\":{";
  expect_refused(objects, "unknown field");
  expect_refused("{\"__metadata__\":" + objects, "__metadata__");
}

TEST(SafetensorsHeader, MessagesStayOneShortLine) {
  expect_refused(header_of({entry("a\\nb\\u0007", "F31", "[2]", "[0,8]")}), "tensor a?b?: unknown dtype");
  expect_refused(header_of({entry(std::string(5000, 'n'), "F31", "[2]", "[0,8]")}), "nnn...: unknown dtype");
}

TEST(SafetensorsFile, WritesAndReadsBack) {
  TempDir dir;
  std::vector<float> a(1000);
  std::iota(a.begin(), a.end(), -3.5f);
  const std::vector<uint8_t> b = {1, 2, 3};
  const uint16_t c = 0x3F80;
  const std::string path = dir.file("m.safetensors");
  const std::string odd = "na\"me \xC3\xA9";
  const Status written = write_safetensors(path, {{"b", DType::kU8, {3}, b.data()},
                                                  {odd, DType::kF32, {10, 100}, a.data()},
                                                  {"c", DType::kBf16, {}, &c},
                                                  {"empty", DType::kF32, {0, 4}, nullptr}});
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_FALSE(fs::exists(path + ".partial"));

  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  SafetensorsFile file = std::move(opened).value();
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "b");
  const TensorInfo* info = file.find(odd);
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->begin % 2, 1u) << "three bytes precede it: an odd start is what this test wants";
  EXPECT_EQ(info->shape, (std::vector<int64_t>{10, 100}));
  std::vector<float> back(1000);
  ASSERT_TRUE(file.read(*info, 0, info->bytes, back.data()).ok());
  EXPECT_EQ(back, a);
  std::vector<float> piece(10);
  ASSERT_TRUE(file.read(*info, 4 * 990, 40, piece.data()).ok());
  EXPECT_EQ(piece, std::vector<float>(a.end() - 10, a.end()));
  EXPECT_EQ(file.find("d"), nullptr);
  EXPECT_EQ(file.find("__metadata__"), nullptr);

  // Never past the tensor's own end, whatever follows in the file.
  EXPECT_EQ(file.read(*file.find("b"), 1, 3, back.data()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.read(*file.find("b"), ~0ull, 2, back.data()).error().code, ErrorCode::kInvalidArgument);
}

TEST(SafetensorsFile, WriterRefuses) {
  TempDir dir;
  const std::string path = dir.file("m.safetensors");
  const float x[4] = {};
  const auto code = [&](const std::vector<TensorToWrite>& t) {
    return write_safetensors(path, t).error().code;
  };
  EXPECT_EQ(code({{"a", DType::kF32, {4}, x}, {"a", DType::kF32, {4}, x}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"__metadata__", DType::kF32, {4}, x}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", DType::kF32, {-4}, x}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", DType::kF32, {1ll << 40, 1ll << 40}, x}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"\xFF", DType::kF32, {4}, x}}), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(path));
  const Status nowhere = write_safetensors(dir.file("no/such/dir"), {{"a", DType::kF32, {4}, x}});
  EXPECT_EQ(nowhere.error().code, ErrorCode::kIo);
}

void put(const std::string& path, uint64_t claimed, const std::string& header, size_t data) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&claimed), 8);
  out << header << std::string(data, 'd');
}

void expect_not_opened(const std::string& path, ErrorCode code, const std::string& part) {
  const auto result = SafetensorsFile::open(path);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code);
  EXPECT_NE(result.error().message.find(path), std::string::npos) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
}

TEST(SafetensorsFile, RefusesDamagedFiles) {
  TempDir dir;
  const std::string path = dir.file("m.safetensors");
  expect_not_opened(path, ErrorCode::kNotFound, "cannot open");
  fs::create_directory(dir.file("folder"));
  expect_not_opened(dir.file("folder"), ErrorCode::kInvalidFile, "not a regular file");
  std::ofstream(path) << "short";
  expect_not_opened(path, ErrorCode::kInvalidFile, "too short");

  const std::string header = header_of({entry("deep.w", "F32", "[8]", "[0,32]")});
  put(path, header.size(), header, 32);
  ASSERT_TRUE(SafetensorsFile::open(path).ok());
  put(path, header.size(), header, 31);
  expect_not_opened(path, ErrorCode::kInvalidFile, "tensor deep.w: ends at byte 32");
  put(path, header.size() + 100, header, 32);
  expect_not_opened(path, ErrorCode::kInvalidFile, "truncated or damaged");
  put(path, ~0ull, header, 32);
  expect_not_opened(path, ErrorCode::kInvalidFile, "more than 100 MiB");
  put(path, 1ull << 40, header, 32);
  expect_not_opened(path, ErrorCode::kInvalidFile, "more than 100 MiB");
  put(path, 0, header, 32);
  expect_not_opened(path, ErrorCode::kInvalidFile, "not a JSON object");
}

TEST(SafetensorsFile, NamesTheTensorWhenTheFileShrinksLater) {
  TempDir dir;
  const std::string path = dir.file("m.safetensors");
  const std::string header = header_of({entry("late.w", "F32", "[8]", "[0,32]")});
  put(path, header.size(), header, 32);
  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened.ok());
  fs::resize_file(path, fs::file_size(path) - 4);
  float x[8];
  const Status status = opened->read(opened->tensors()[0], 0, 32, x);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidFile);
  EXPECT_NE(status.error().message.find("late.w"), std::string::npos);
  EXPECT_TRUE(opened->read(opened->tensors()[0], 0, 28, x).ok());
}

TEST(SafetensorsFile, MovesKeepOneOwner) {
  TempDir dir;
  const uint8_t byte = 9;
  ASSERT_TRUE(write_safetensors(dir.file("a"), {{"t", DType::kU8, {1}, &byte}}).ok());
  auto first = SafetensorsFile::open(dir.file("a"));
  ASSERT_TRUE(first.ok());
  SafetensorsFile second = std::move(*first);
  auto third = SafetensorsFile::open(dir.file("a"));
  ASSERT_TRUE(third.ok());
  *third = std::move(second);
  uint8_t got = 0;
  ASSERT_TRUE(third->read(*third->find("t"), 0, 1, &got).ok());
  EXPECT_EQ(got, 9);
}

}  // namespace
}  // namespace firesteel

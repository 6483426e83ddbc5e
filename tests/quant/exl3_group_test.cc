// Grouping tensors into EXL3 matrices: real inventories, and every way in which a group can be wrong.
#include "quant/exl3_group.h"

#include <gtest/gtest.h>

#include <map>

#include "support/golden.h"

namespace firesteel {
namespace {

/// Tensors by name, edited by each test.
struct Tensors {
  std::map<std::string, TensorInfo> map;

  void add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    TensorInfo t;
    t.name = name;
    t.dtype = dtype;
    t.shape = std::move(shape);
    map[name] = t;
  }
  Result<Exl3Inventory> group() const {
    std::vector<const TensorInfo*> all;
    for (const auto& [name, t] : map) all.push_back(&t);
    return group_exl3(all);
  }
};

/// A good matrix "m" of 256 by 384 at 4 bits, and a plain tensor.
Tensors good() {
  Tensors t;
  t.add("m.trellis", DType::kI16, {16, 24, 64});
  t.add("m.suh", DType::kF16, {256});
  t.add("m.svh", DType::kF16, {384});
  t.add("m.mcg", DType::kI32, {});
  t.add("norm.weight", DType::kBf16, {256});
  return t;
}

void expect_refused(const Tensors& t, ErrorCode code, const std::string& part) {
  const auto result = t.group();
  ASSERT_FALSE(result.ok()) << part;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos)
      << result.error().message << "\nwanted: " << part;
}

TEST(Exl3Group, DescribesAMatrix) {
  Tensors t = good();
  const auto result = t.group();
  ASSERT_TRUE(result.ok()) << result.error().message;
  ASSERT_EQ(result->matrices.size(), 1u);
  const Exl3Linear& m = result->matrices[0];
  EXPECT_EQ(m.prefix, "m");
  EXPECT_EQ(m.k, 256);
  EXPECT_EQ(m.n, 384);
  EXPECT_EQ(m.bits, 4);
  EXPECT_EQ(m.codebook, Codebook::kMcg);
  EXPECT_EQ(m.input_scale->name, "m.suh");
  EXPECT_EQ(m.output_scale->name, "m.svh");
  EXPECT_EQ(m.bias, nullptr);
  ASSERT_EQ(result->plain.size(), 1u);
  EXPECT_EQ(result->plain[0]->name, "norm.weight");
}

TEST(Exl3Group, AlternativeForms) {
  Tensors t = good();
  t.map.erase("m.mcg");
  EXPECT_EQ(t.group()->matrices[0].codebook, Codebook::k3Inst);
  t.add("m.mul1", DType::kI32, {1});
  EXPECT_EQ(t.group()->matrices[0].codebook, Codebook::kMul1);
  t.add("m.bias", DType::kF32, {384});
  EXPECT_EQ(t.group()->matrices[0].bias->name, "m.bias");
  t.map.erase("m.suh");
  t.map.erase("m.svh");
  t.add("m.su", DType::kI16, {16});
  t.add("m.sv", DType::kI16, {24});
  const auto result = t.group();
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->matrices[0].input_scale->name, "m.su");
  EXPECT_EQ(result->matrices[0].output_scale->name, "m.sv");
  EXPECT_EQ(result->plain.size(), 1u);
  for (int bits = 1; bits <= 8; ++bits) {
    t.add("m.trellis", DType::kI16, {16, 24, 16 * bits});
    EXPECT_EQ(t.group()->matrices[0].bits, bits);
  }
}

TEST(Exl3Group, RefusesWrongGroups) {
  const auto with = [](const std::string& name, DType dtype, std::vector<int64_t> shape) {
    Tensors t = good();
    t.add(name, dtype, std::move(shape));
    return t;
  };
  const auto without = [](const std::string& name) {
    Tensors t = good();
    t.map.erase(name);
    return t;
  };
  const auto invalid = ErrorCode::kInvalidFile;
  expect_refused(with("m.mul1", DType::kI32, {}), invalid, "m.mul1: there is a .mcg marker as well");
  expect_refused(with("m.su", DType::kI16, {16}), invalid, "m.su: there is .suh as well");
  expect_refused(with("m.sv", DType::kI16, {24}), invalid, "m.sv: there is .svh as well");
  expect_refused(with("m.scale", DType::kF32, {}), ErrorCode::kUnsupported, "m.scale");
  expect_refused(with("m.weight", DType::kBf16, {384, 256}), invalid,
                 "m.weight: the matrix is there in EXL3 form");
  expect_refused(without("m.suh"), ErrorCode::kNotFound, "m.suh is missing");
  expect_refused(without("m.svh"), ErrorCode::kNotFound, "m.svh is missing");
  expect_refused(without("m.trellis"), ErrorCode::kNotFound, "m.trellis is missing: there is m.mcg");
  expect_refused(with("other.suh", DType::kF16, {128}), ErrorCode::kNotFound, "other.trellis is missing");

  expect_refused(with("m.trellis", DType::kI32, {16, 24, 64}), invalid, "m.trellis: an EXL3 trellis is I16");
  expect_refused(with("m.trellis", DType::kI16, {16, 24}), invalid, "m.trellis: an EXL3 trellis is I16");
  expect_refused(with("m.trellis", DType::kI16, {16, 24, 65}), invalid, "m.trellis: tiles of 65 words");
  expect_refused(with("m.trellis", DType::kI16, {16, 24, 0}), invalid, "m.trellis: tiles of 0 words");
  expect_refused(with("m.trellis", DType::kI16, {16, 24, 144}), invalid, "m.trellis: tiles of 144 words");
  for (const int64_t words : {24, 40, 56}) {
    expect_refused(with("m.trellis", DType::kI16, {16, 24, words}), ErrorCode::kUnsupported,
                   "m.trellis: half rates");
  }
  expect_refused(with("m.trellis", DType::kI16, {17, 24, 64}), invalid, "m.trellis: is not made of 128x128");
  expect_refused(with("m.trellis", DType::kI16, {16, 4, 64}), invalid, "m.trellis: is not made of 128x128");
  expect_refused(with("m.trellis", DType::kI16, {0, 24, 64}), invalid, "m.trellis: is not made of 128x128");
  expect_refused(with("m.trellis", DType::kI16, {8, 24, 64}), invalid,
                 "m.suh: is F16 [256], an EXL3 matrix needs F16 [128]");
  expect_refused(with("m.suh", DType::kBf16, {256}), invalid, "m.suh: is BF16 [256]");
  expect_refused(with("m.svh", DType::kF16, {385}), invalid, "m.svh: is F16 [385]");
  expect_refused(with("m.svh", DType::kF16, {384, 1}), invalid, "m.svh: is F16 [384, 1]");
  expect_refused(with("m.mcg", DType::kI32, {2}), invalid, "m.mcg");
  expect_refused(with("m.mcg", DType::kF32, {}), invalid, "m.mcg");
  expect_refused(with("m.mcg", DType::kF32, {1}), invalid, "m.mcg: an EXL3 marker is one I32");
  expect_refused(with("m.bias", DType::kF16, {256}), invalid, "m.bias");
  expect_refused(with("m.bias", DType::kBf16, {384}), invalid, "m.bias");

  const TensorInfo twice = good().map.at("norm.weight");
  const TensorInfo* const both[] = {&twice, &twice};
  EXPECT_NE(group_exl3(both).error().message.find("norm.weight: two files"), std::string::npos);
}

TEST(Exl3Group, RealInventories) {
  for (const std::string& path : {test::golden_model_dir("tiny-exl3") + "/model.safetensors",
                                  test::source_dir() + "/models/demo/model.safetensors"}) {
    auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    std::vector<const TensorInfo*> all;
    size_t trellises = 0, parts = 0;
    for (const TensorInfo& t : file->tensors()) {
      all.push_back(&t);
      trellises += t.name.ends_with(".trellis");
    }
    const auto result = group_exl3(all);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_GT(trellises, 0u);
    EXPECT_EQ(result->matrices.size(), trellises) << path;
    for (const Exl3Linear& m : result->matrices) {
      parts += 3 + (m.marker != nullptr) + (m.bias != nullptr);
      if (m.prefix == "lm_head") {
        EXPECT_EQ(m.bits, 6);
      }
      if (path.find("tiny") != std::string::npos && m.prefix.find(".experts.") != std::string::npos) {
        EXPECT_EQ(m.bits, 4);
        EXPECT_EQ(m.codebook, Codebook::kMcg);
      }
    }
    EXPECT_EQ(result->plain.size() + parts, all.size());
    for (const TensorInfo* t : result->plain) EXPECT_NE(t->dtype, DType::kI16) << t->name;
  }
}

}  // namespace
}  // namespace firesteel

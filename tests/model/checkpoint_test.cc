// Checkpoints: layouts that load, damage that is refused in one line naming tensor and file, dtypes kept, and
// the parts that a rank reads.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "model/matrix_source.h"
#include "model/model.h"
#include "model/random_model.h"
#include "support/golden.h"

namespace firesteel::test {
namespace {

constexpr char kLayer0[] = "model.language_model.layers.0.";

/// open_model_files must fail with one line that has all of `words`.
void expect_refused(const std::string& dir, std::initializer_list<std::string> words) {
  const auto files = open_model_files(dir);
  ASSERT_FALSE(files.ok());
  const std::string& m = files.error().message;
  for (const std::string& word : words) EXPECT_NE(m.find(word), std::string::npos) << word << " in: " << m;
  EXPECT_EQ(m.find('\n'), std::string::npos) << m;
}

std::string edited(std::function<void(std::vector<WrittenTensor>&)> edit, int files = 1) {
  RandomModelOptions options;
  options.files = files;
  options.edit = std::move(edit);
  return write_random_model(model_a_config(), options);
}

RandomModelOptions in_files(int count) {
  RandomModelOptions options;
  options.files = count;
  return options;
}
RandomModelOptions with_visual(int count) {
  RandomModelOptions options = in_files(count);
  options.visual = true;
  return options;
}
RandomModelOptions with_prefix(const char* prefix) {
  RandomModelOptions options;
  options.prefix = prefix;
  return options;
}

void must_open(const std::string& dir) {
  const auto files = open_model_files(dir);
  EXPECT_TRUE(files.ok()) << files.error().message;
}

TEST(Checkpoint, OneFileSeveralFilesAndBothPrefixes) {
  must_open(write_random_model(model_a_config()));
  must_open(write_random_model(model_a_config(), in_files(3)));
  must_open(write_random_model(model_a_config(), with_prefix("model.")));
  must_open(write_random_model(model_a_config(), with_visual(2)));
}

TEST(Checkpoint, SeveralFilesWithoutAnIndex) {
  const std::string dir = write_random_model(model_a_config(), in_files(3));
  std::filesystem::remove(dir + "/model.safetensors.index.json");
  must_open(dir);
}

TEST(Checkpoint, MissingTensorsAreNamedWithTheirFile) {
  for (const char* name :
       {"lm_head.weight", "embed_tokens.weight", "layers.0.hc_attn_fn", "layers.3.hc_ffn_base",
        "layers.0.self_attn.A_log", "layers.5.self_attn.dt_bias", "layers.1.self_attn.kv_b_proj.weight",
        "layers.1.self_attn.indexer.index_kpool_compress_ape",
        "layers.4.self_attn.indexer.index_kpool_compress_gate", "layers.4.self_attn.indexer.k_norm.bias",
        "layers.2.mlp.gate.e_score_correction_bias", "layers.5.mlp.experts.7.down_proj.weight",
        "layers.2.mlp.shared_experts.up_proj.weight", "layers.6.eh_proj.weight",
        "layers.6.shared_head.norm.weight", "layers.6.mlp.gate.weight"}) {
    SCOPED_TRACE(name);
    expect_refused(edited([&](auto& t) { drop_tensor(t, name); }), {name, "model.safetensors", "missing"});
  }
}

TEST(Checkpoint, MissingTensorsOfAnIndexAreNamedWithTheFileItPromises) {
  const std::string dir = write_random_model(model_a_config(), in_files(3));
  std::ifstream in(dir + "/model.safetensors.index.json");
  nlohmann::ordered_json index = nlohmann::ordered_json::parse(in);
  // Swap one file for another's content: what it promised is gone.
  std::filesystem::copy_file(dir + "/model-00001-of-00003.safetensors",
                             dir + "/model-00002-of-00003.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(dir, {"model-00002-of-00003.safetensors", "missing"});
}

TEST(Checkpoint, MtpLayerMayBeAbsentAsAWhole) {
  const auto whole = open_model_files(edited([](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name.find(".layers.6.") != std::string::npos; });
  }));
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_FALSE(whole->weights.mtp.has_value());
}

TEST(Checkpoint, WrongShapeIsNamedWithBothShapes) {
  expect_refused(edited([](auto& t) {
                   find_tensor(t, "layers.0.self_attn.q_proj.weight").shape = {32, 128};
                 }),
                 {"layers.0.self_attn.q_proj.weight", "[32, 128]", "[64, 64]", "model.safetensors"});
  expect_refused(edited([](auto& t) {
                   find_tensor(t, "layers.1.self_attn.indexer.index_kpool_compress_ape").shape = {2, 64};
                 }),
                 {"index_kpool_compress_ape", "[4, 32]"});
  expect_refused(edited([](auto& t) {
                   find_tensor(t, "layers.0.self_attn.A_log").shape = {2, 2};
                 }),
                 {"A_log", "[4]"});
}

TEST(Checkpoint, WrongTypeIsNamed) {
  expect_refused(edited([](auto& t) { find_tensor(t, "layers.0.self_attn.A_log").dtype = DType::kI32; }),
                 {"A_log", "I32", "F32"});
  expect_refused(
      edited([](auto& t) { find_tensor(t, "layers.0.self_attn.q_proj.weight").dtype = DType::kF16; }),
      {"q_proj.weight", "F16"});
}

TEST(Checkpoint, Fp8NeedsItsScales) {
  expect_refused(edited([](auto& tensors) {
                   WrittenTensor& t = find_tensor(tensors, "layers.0.mlp.up_proj.weight");
                   t.dtype = DType::kF8E4M3;
                   t.bytes.resize(t.bytes.size() / 2);
                 }),
                 {"layers.0.mlp.up_proj.weight_scale_inv", "missing"});
  expect_refused(edited([](auto& tensors) {
                   WrittenTensor& t = find_tensor(tensors, "layers.0.mlp.up_proj.weight");
                   t.dtype = DType::kF8E4M3;
                   t.bytes.resize(t.bytes.size() / 2);
                   tensors.push_back({kLayer0 + std::string("mlp.up_proj.weight_scale_inv"),
                                      DType::kF32,
                                      {2, 1},
                                      std::vector<std::byte>(8)});
                 }),
                 {"weight_scale_inv", "[2, 1]", "[1, 1]"});
  // The embedding, the router and the hyper-connections are read plain only.
  expect_refused(edited([](auto& tensors) {
                   WrittenTensor& t = find_tensor(tensors, "layers.2.mlp.gate.weight");
                   t.dtype = DType::kF8E4M3;
                   t.bytes.resize(t.bytes.size() / 2);
                 }),
                 {"layers.2.mlp.gate.weight", "F8_E4M3"});
}

/// A config whose dense MLP is wide enough for EXL3, and its down_proj replaced by an EXL3 group.
std::string exl3_edit(std::function<void(std::vector<WrittenTensor>&, const std::string&)> more) {
  nlohmann::ordered_json config = model_a_config();
  config["hidden_size"] = 128;
  config["intermediate_size"] = 256;
  RandomModelOptions options;
  options.edit = [&](std::vector<WrittenTensor>& t) {
    const std::string at = kLayer0 + std::string("mlp.down_proj");
    drop_tensor(t, at + ".weight");
    t.push_back({at + ".trellis", DType::kI16, {16, 8, 48}, std::vector<std::byte>(16 * 8 * 48 * 2)});
    t.push_back({at + ".suh", DType::kF16, {256}, std::vector<std::byte>(512)});
    t.push_back({at + ".svh", DType::kF16, {128}, std::vector<std::byte>(256)});
    more(t, at);
  };
  return write_random_model(config, options);
}

TEST(Checkpoint, Exl3GroupsAreFoundAndChecked) {
  const std::vector<std::byte> four(4);
  const auto plain = open_model_files(exl3_edit([&](auto& t, const std::string& at) {
    t.push_back({at + ".mul1", DType::kI32, {}, four});
  }));
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  const MatrixSpec& spec = plain->weights.layers[0].block.dense->down.spec;
  EXPECT_EQ(spec.format, MatrixFormat::kExl3);
  EXPECT_EQ(spec.bits, 3);
  EXPECT_EQ(spec.codebook, Codebook::kMul1);
  EXPECT_EQ(spec.slices, 4);
  expect_refused(exl3_edit([&](auto& t, const std::string& at) {
                   t.push_back({at + ".mul1", DType::kI32, {}, four});
                   t.push_back({at + ".mcg", DType::kI32, {}, four});
                 }),
                 {"down_proj.mul1", "mcg"});
  expect_refused(exl3_edit([&](auto& t, const std::string& at) { drop_tensor(t, at + ".svh"); }),
                 {"down_proj.svh", "missing"});
  expect_refused(exl3_edit([&](auto& t, const std::string& at) {
                   t.push_back({at + ".bias", DType::kF16, {2}, four});
                 }),
                 {"down_proj.bias"});
  expect_refused(exl3_edit([&](auto& t, const std::string& at) {
                   find_tensor(t, at + ".trellis").shape = {16, 4, 96};
                 }),
                 {"down_proj.trellis", "[16, 4, 96]"});
  expect_refused(exl3_edit([&](auto& t, const std::string& at) {
                   find_tensor(t, at + ".trellis").shape = {16, 48, 8};
                 }),
                 {"down_proj.trellis", "8 words"});
  expect_refused(exl3_edit([&](auto& t, const std::string& at) {
                   find_tensor(t, at + ".trellis").shape = {8, 16, 48};
                   find_tensor(t, at + ".suh").name = at + ".tmp";
                   find_tensor(t, at + ".svh").name = at + ".suh";
                   find_tensor(t, at + ".tmp").name = at + ".svh";
                 }),
                 {"down_proj.trellis", "[8, 16, 48]", "[16, 8, 16·bits]"});
  expect_refused(
      exl3_edit([&](auto& t, const std::string& at) {
        t.push_back({at + ".weight", DType::kBf16, {128, 256}, std::vector<std::byte>(128 * 256 * 2)});
      }),
      {"down_proj.trellis", "as well"});
}

TEST(Checkpoint, PackedSignsBecomeScales) {
  const auto files = open_model_files(exl3_edit([](auto& t, const std::string& at) {
    drop_tensor(t, at + ".suh");
    std::vector<std::byte> packed(32);
    packed[2] = std::byte{0x05};  // word 1: channels 16 and 18 are negative
    t.push_back({at + ".su", DType::kI16, {16}, packed});
  }));
  ASSERT_TRUE(files.ok()) << files.error().message;
  const MatrixRef& down = files->weights.layers[0].block.dense->down;
  std::vector<uint16_t> suh(256);
  ASSERT_TRUE(FileMatrixSource(down).read_rows(MatrixPart::kSuh, 0, 256, suh.data()).ok());
  for (size_t i = 0; i < suh.size(); ++i) EXPECT_EQ(suh[i], i == 16 || i == 18 ? 0xBC00 : 0x3C00) << i;
  std::vector<uint16_t> part(5);
  ASSERT_TRUE(FileMatrixSource(down).read_rows(MatrixPart::kSuh, 15, 5, part.data()).ok());
  EXPECT_EQ(part, (std::vector<uint16_t>{0x3C00, 0xBC00, 0x3C00, 0xBC00, 0x3C00}));
}

TEST(Checkpoint, DamagedFilesAndIndexes) {
  std::string dir = write_random_model(model_a_config());
  std::filesystem::resize_file(dir + "/model.safetensors",
                               std::filesystem::file_size(dir + "/model.safetensors") - 10);
  expect_refused(dir, {"model.safetensors"});
  std::filesystem::remove(dir + "/model.safetensors");
  expect_refused(dir, {dir, ".safetensors"});

  dir = write_random_model(model_a_config(), in_files(2));
  const auto index = [&](const std::string& text) {
    std::ofstream(dir + "/model.safetensors.index.json") << text;
  };
  for (const char* bad : {"", "[]", "{}", "{\"weight_map\": {}}", "{\"weight_map\": {\"a\": 5}}",
                          "{\"weight_map\": {\"a\": \"../x.safetensors\"}}",
                          "{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "{\"weight_map\": {\"a\": \"\"}}"}) {
    SCOPED_TRACE(bad);
    index(bad);
    expect_refused(dir, {"model.safetensors.index.json"});
  }
  index("{\"weight_map\": {\"a\": \"model-00009-of-00002.safetensors\"}}");
  expect_refused(dir, {"model-00009-of-00002.safetensors"});
}

TEST(Checkpoint, DuplicateTensorsAreRefusedWithoutAnIndex) {
  const std::string dir = write_random_model(model_a_config(), in_files(2));
  std::filesystem::remove(dir + "/model.safetensors.index.json");
  std::filesystem::copy_file(dir + "/model-00001-of-00002.safetensors", dir + "/other.safetensors");
  expect_refused(dir, {"as well"});
}

TEST(Checkpoint, Trap39NamesWithoutWeightAreNeeded) {
  // Everything that a loader which looks for ".weight" alone would miss is asked for by name (see the drops
  // above) and reaches the map.
  const auto files = open_model_files(write_random_model(model_a_config()));
  ASSERT_TRUE(files.ok()) << files.error().message;
  std::set<std::string> used;
  walk_weights(
      files->weights, [&](WeightGroup, const MatrixRef& m) { used.insert(m.weight.info->name); },
      [&](WeightGroup, const VectorRef& v) {
        for (const auto& piece : v.pieces) used.insert(piece.tensor.info->name);
      });
  size_t bare = 0;
  for (const SafetensorsFile& file : files->checkpoint->files()) {
    for (const TensorInfo& t : file.tensors()) {
      EXPECT_EQ(used.count(t.name), 1u) << t.name;
      bare += t.name.ends_with(".weight") ? 0 : 1;
    }
  }
  EXPECT_EQ(bare, 6u * 6 + 3 * 2 + 3 * 3 + 5);  // hc, KDA, indexers (k_norm.bias, ape, gate), router biases
}

TEST(Checkpoint, Trap1F32VectorsKeepTheirBits) {
  const auto files = open_model_files(write_random_model(model_a_config()));
  ASSERT_TRUE(files.ok()) << files.error().message;
  int vectors = 0;
  walk_weights(
      files->weights, [](WeightGroup, const MatrixRef&) {},
      [&](WeightGroup, const VectorRef& v) {
        const TensorRef& t = v.pieces[0].tensor;
        if (t.info->dtype != DType::kF32) return;
        std::vector<float> got(static_cast<size_t>(v.size()));
        std::vector<std::byte> raw(t.info->bytes);
        ASSERT_TRUE(read_vector(v, got.data()).ok());
        ASSERT_TRUE(t.file->read(*t.info, 0, raw.size(), raw.data()).ok());
        EXPECT_EQ(std::memcmp(got.data(), raw.data(), raw.size()), 0) << t.info->name;
        ++vectors;
      });
  EXPECT_EQ(vectors, 6 * 4 + 3 * 2 + 5);
}

/// All of one matrix's rows, part kWeight, as stored.
std::vector<std::byte> weight_bytes(const MatrixRef& m) {
  std::vector<std::byte> out(m.file_bytes());
  const int64_t rows = m.spec.format == MatrixFormat::kExl3 ? m.spec.k / 16 : m.spec.n;
  EXPECT_TRUE(FileMatrixSource(m).read_rows(MatrixPart::kWeight, 0, rows, out.data()).ok());
  return out;
}

class RankSlices : public testing::TestWithParam<const char*> {};

// The parts of 2 and of 4 ranks put together are the whole, element for element, in every storage form.
TEST_P(RankSlices, PartsMakeTheWhole) {
  const std::string dir = golden_model_dir(GetParam());
  const auto whole = open_model_files(dir);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  std::vector<const MatrixRef*> full;
  walk_weights(
      whole->weights, [&](WeightGroup, const MatrixRef& m) { full.push_back(&m); },
      [](WeightGroup, const VectorRef&) {});
  for (const int32_t ranks : {2, 4}) {
    std::vector<ModelFiles> parts;
    std::vector<std::vector<const MatrixRef*>> lists;
    for (int32_t r = 0; r < ranks; ++r) {
      auto part = open_model_files(dir, {r, ranks});
      ASSERT_TRUE(part.ok()) << part.error().message;
      parts.push_back(std::move(*part));
    }
    for (const ModelFiles& p : parts) {
      lists.emplace_back();
      walk_weights(
          p.weights, [&](WeightGroup, const MatrixRef& m) { lists.back().push_back(&m); },
          [](WeightGroup, const VectorRef&) {});
    }
    int cut = 0;
    for (size_t i = 0; i < full.size(); ++i) {
      const MatrixRef& m = *full[i];
      const bool by_rows = lists[0][i]->spec.n < m.spec.n, by_cols = lists[0][i]->spec.k < m.spec.k;
      ASSERT_FALSE(by_rows && by_cols);
      if (!by_rows && !by_cols) {
        EXPECT_EQ(weight_bytes(m), weight_bytes(*lists[1][i]));
        continue;
      }
      ++cut;
      const std::vector<std::byte> all = weight_bytes(m);
      const bool exl3 = m.spec.format == MatrixFormat::kExl3;
      // A row on disk: one output (plain), or one k-tile of all outputs (EXL3).
      const size_t disk_rows = static_cast<size_t>(exl3 ? m.spec.k / 16 : m.spec.n);
      const size_t stride = (exl3 ? static_cast<size_t>(m.spec.n / 16) * 32u * m.spec.bits
                                  : static_cast<size_t>(m.spec.k) * dtype_size(m.weight.info->dtype));
      const bool along_disk_rows = exl3 == by_cols;
      int32_t n = 0, k = 0;
      size_t at_row = 0, at_col = 0;
      for (int32_t r = 0; r < ranks; ++r) {
        const MatrixRef& p = *lists[static_cast<size_t>(r)][i];
        EXPECT_EQ(p.rows.begin, by_rows ? n : 0);
        EXPECT_EQ(p.cols.begin, by_cols ? k : 0);
        n += p.spec.n;
        k += p.spec.k;
        if (by_cols) {
          EXPECT_EQ(p.spec.slices, 4 / ranks);
          EXPECT_EQ(p.spec.slice_end[p.spec.slices - 1], p.spec.k);
        }
        const std::vector<std::byte> bytes = weight_bytes(p);
        const size_t rows =
            along_disk_rows ? static_cast<size_t>(exl3 ? p.spec.k / 16 : p.spec.n) : disk_rows;
        const size_t cols = along_disk_rows ? stride
                                            : stride * static_cast<size_t>(exl3 ? p.spec.n : p.spec.k) /
                                                  static_cast<size_t>(exl3 ? m.spec.n : m.spec.k);
        for (size_t row = 0; row < rows; ++row) {
          ASSERT_EQ(
              std::memcmp(bytes.data() + row * cols, all.data() + (at_row + row) * stride + at_col, cols), 0)
              << m.weight.info->name << " rank " << r << " row " << row;
        }
        (along_disk_rows ? at_row : at_col) += along_disk_rows ? rows : cols;
      }
      EXPECT_EQ(by_rows ? n : k, by_rows ? m.spec.n : m.spec.k);
    }
    EXPECT_GT(cut, 100);
  }
}

/// Rows [0, rows) of a part, `row_bytes` each.
std::vector<std::byte> part_bytes(const MatrixRef& m, MatrixPart part, int64_t rows, size_t row_bytes) {
  std::vector<std::byte> out(static_cast<size_t>(rows) * row_bytes);
  EXPECT_TRUE(FileMatrixSource(m).read_rows(part, 0, rows, out.data()).ok());
  return out;
}

// What goes with a slice: block scales, channel scales and vectors.
TEST_P(RankSlices, ScalesAndVectorsFollow) {
  const std::string dir = golden_model_dir(GetParam());
  const auto whole = open_model_files(dir);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  int scales = 0, channels = 0, cut_vectors = 0;
  for (int32_t r = 0; r < 4; ++r) {
    const auto part = open_model_files(dir, {r, 4});
    ASSERT_TRUE(part.ok()) << part.error().message;
    std::vector<const MatrixRef*> full, mine;
    std::vector<const VectorRef*> full_vectors, my_vectors;
    const auto collect = [](const WeightMap& map, auto& matrices, auto& vectors) {
      walk_weights(
          map, [&](WeightGroup, const MatrixRef& m) { matrices.push_back(&m); },
          [&](WeightGroup, const VectorRef& v) { vectors.push_back(&v); });
    };
    collect(whole->weights, full, full_vectors);
    collect(part->weights, mine, my_vectors);
    for (size_t i = 0; i < full.size(); ++i) {
      const MatrixRef &m = *full[i], &p = *mine[i];
      if (m.spec.format == MatrixFormat::kFp8Block) {
        const auto blocks = [](int32_t n) { return static_cast<size_t>((n + 127) / 128); };
        const size_t stride = blocks(m.spec.k) * 4, width = blocks(p.spec.k) * 4;
        const auto all = part_bytes(m, MatrixPart::kScale, static_cast<int64_t>(blocks(m.spec.n)), stride);
        const auto got = part_bytes(p, MatrixPart::kScale, static_cast<int64_t>(blocks(p.spec.n)), width);
        for (size_t row = 0; row < blocks(p.spec.n); ++row) {
          const size_t from = (static_cast<size_t>(p.rows.begin / 128) + row) * stride +
                              static_cast<size_t>(p.cols.begin / 128) * 4;
          ASSERT_EQ(std::memcmp(got.data() + row * width, all.data() + from, width), 0)
              << m.weight.info->name;
        }
        ++scales;
      } else if (m.spec.format == MatrixFormat::kExl3) {
        const auto suh = part_bytes(m, MatrixPart::kSuh, m.spec.k, 2),
                   svh = part_bytes(m, MatrixPart::kSvh, m.spec.n, 2);
        const auto my_suh = part_bytes(p, MatrixPart::kSuh, p.spec.k, 2),
                   my_svh = part_bytes(p, MatrixPart::kSvh, p.spec.n, 2);
        ASSERT_EQ(std::memcmp(my_suh.data(), suh.data() + p.cols.begin * 2, my_suh.size()), 0);
        ASSERT_EQ(std::memcmp(my_svh.data(), svh.data() + p.rows.begin * 2, my_svh.size()), 0);
        ++channels;
      }
    }
    for (size_t i = 0; i < full_vectors.size(); ++i) {
      const VectorRef &v = *full_vectors[i], &p = *my_vectors[i];
      std::vector<float> all(static_cast<size_t>(v.size())), got(static_cast<size_t>(p.size()));
      ASSERT_TRUE(read_vector(v, all.data()).ok());
      ASSERT_TRUE(read_vector(p, got.data()).ok());
      // Each piece (q, k, v of the convolution) is cut alike: quarter r of it, or all of it.
      size_t from = 0, at = 0;
      for (size_t j = 0; j < v.pieces.size(); ++j) {
        const auto size = static_cast<size_t>(v.pieces[j].count),
                   mine_size = static_cast<size_t>(p.pieces[j].count);
        const size_t skip = mine_size == size ? 0 : static_cast<size_t>(r) * mine_size;
        ASSERT_TRUE(mine_size == size || mine_size == size / 4);
        ASSERT_EQ(std::memcmp(got.data() + at, all.data() + from + skip, mine_size * 4), 0)
            << v.pieces[j].tensor.info->name << " rank " << r;
        cut_vectors += mine_size == size ? 0 : 1;
        from += size;
        at += mine_size;
      }
    }
  }
  EXPECT_EQ(cut_vectors, 4 * 4 * 5);  // four KDA layers: three convolutions, A_log, dt_bias
  EXPECT_EQ(scales > 0, std::string(GetParam()) == "tiny-fp8");
  EXPECT_EQ(channels > 0, std::string(GetParam()) == "tiny-exl3");
}

INSTANTIATE_TEST_SUITE_P(Models, RankSlices, testing::Values("tiny", "tiny-fp8", "tiny-exl3"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, 4) + std::to_string(info.index);
                         });

TEST(RankPlacement, ImpossibleOnesAreRefused) {
  const std::string dir = write_random_model(model_a_config());
  for (const Placement p : {Placement{0, 3}, Placement{2, 2}, Placement{-1, 2}, Placement{0, 0}}) {
    EXPECT_FALSE(open_model_files(dir, p).ok());
  }
  // 80 columns of 16-wide heads are one block of 128: the last rank gets them all, the others nothing.
  const auto last = open_model_files(dir, {1, 2});
  ASSERT_TRUE(last.ok()) << last.error().message;
  EXPECT_EQ(last->weights.layers[0].block.kda->heads, 4);
  const auto first = open_model_files(dir, {0, 2});
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(first->weights.layers[0].block.kda->heads, 0);
  EXPECT_TRUE(first->weights.layers[0].block.kda->o.empty());
  // Heads of 96: a slice boundary at 128 would cut one.
  nlohmann::ordered_json config = model_a_config();
  config["v_head_dim"] = 96;
  const auto cut = open_model_files(write_random_model(config), {0, 2});
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.error().message.find("do not split over 2 ranks"), std::string::npos) << cut.error().message;
}

}  // namespace
}  // namespace firesteel::test

// The golden models' files against their recorded digests, and the helpers against known values.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/digest.h"
#include "support/golden.h"
#include "support/hash_weights.h"
#include "support/random.h"
#include "tensor/safetensors.h"

namespace firesteel::test {
namespace {

namespace fs = std::filesystem;

TEST(Digest, KnownValues) {
  Sha256 empty;
  EXPECT_EQ(empty.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.add("abc", 3);
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // A million times 'a', in pieces that do not match the block size.
  Sha256 many;
  const std::string piece(1000, 'a');
  for (int i = 0; i < 1000; ++i) many.add(piece.data(), piece.size());
  EXPECT_EQ(many.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(crc32("123456789", 9), 0xCBF43926u);
}

TEST(HashWeights, WorkedValues) {
  const uint64_t key = hash_key("lm_head.weight");
  EXPECT_EQ(key, 0xAB67EB515E1B6F0Du);
  EXPECT_EQ(hash_at(key, 0), 0xFE26D58E17AADB45u);
  EXPECT_EQ(hash_at(key, 1), 0xFC17A7D9B777A837u);
  EXPECT_EQ(hash_at(key, 2), 0x0AB6A2E3D30D1F8Bu);
}

struct Expected {
  const char *model, *file, *sha256;
  uint64_t bytes;
};

TEST(HashWeights, GeneratedFilesHaveTheRecordedDigests) {
  const Expected table[] = {
      {"tiny", "model.safetensors", "585c2f677ae3e78740c60797b3851fb0a33f107a7f717700cf27ccdef1b254e5",
       62485760},
      {"tiny-variant", "model.safetensors",
       "34312435f98417f6909ed7e1072daaef1ca0828aade2df10877c0e84ad7408b6", 52485928},
      {"tiny-fp8", "model-00001-of-00003.safetensors",
       "faa3e86e4e514778f776e20477640f3cd324ad33017fa44f064745849214103f", 13640440},
      {"tiny-fp8", "model-00002-of-00003.safetensors",
       "b3634e30d8155609a47ed498cf1660b7f48499ddf3a5447ab1aa38f851e731d9", 11689440},
      {"tiny-fp8", "model-00003-of-00003.safetensors",
       "69c6a8b86b17b57a579be0c8a8e3b644e0c93409beb5dcbd6b6603c9636129d0", 15750552},
      {"tiny-fp8", "model.safetensors.index.json",
       "c284cc7abc7581f602f44d9bdc7372996bb623de4276da918fea0baa3598f3b0", 51527},
      {"tiny-exl3", "model.safetensors", "14d6e52157d200df6036ea7fa45120a2c5afc378198c578889c119d6ac702da0",
       38635397},
  };
  for (const Expected& e : table) {
    const fs::path path = fs::path(golden_model_dir(e.model)) / e.file;
    EXPECT_EQ(fs::file_size(path), e.bytes) << path;
    EXPECT_EQ(sha256_of_file(path.string()), e.sha256) << path;
  }
  EXPECT_TRUE(fs::exists(golden_model_dir("tiny-exl3") + "/quantization_config.json"));
  EXPECT_TRUE(fs::exists(golden_model_dir("tiny") + "/config.json"));
}

TEST(HashWeights, GeneratedTensorsStartAtOddBytesWhereListed) {
  auto file = SafetensorsFile::open(golden_model_dir("tiny-exl3") + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const TensorInfo* info = file->find("model.language_model.layers.0.mlp.down_proj.trellis");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->begin % 2, 1u);
  uint16_t first[3];
  ASSERT_TRUE(file->read(*info, 0, sizeof first, first).ok());
  EXPECT_EQ(first[0], 0x6C66);
  EXPECT_EQ(first[1], 0xE7BA);
  EXPECT_EQ(first[2], 0xFCEE);
}

TEST(HashWeights, AnotherNameGivesAnotherFile) {
  // The digests above would be worthless if they did not depend on every tensor's name.
  const fs::path dir = fs::temp_directory_path() / ("fs_support_" + std::to_string(::getpid()));
  fs::create_directories(dir / "a");
  fs::create_directories(dir / "b");
  const auto make = [&](const std::string& sub, const std::string& name) {
    std::ofstream(dir / "manifest.json")
        << R"({"copy": [], "files": ["m.safetensors"], "tensors": [{"name": ")" << name
        << R"(", "shape": [9], "dtype": "BF16", "kind": "normal", "mean": 0.0, "std": 1.0}]})";
    generate_model(dir.string(), (dir / sub).string());
    return sha256_of_file((dir / sub / "m.safetensors").string());
  };
  EXPECT_NE(make("a", "x.weight"), make("b", "x.weighs"));
  fs::remove_all(dir);
}

TEST(Golden, SeveralProgramsMayGenerateAtOnce) {
  // Children race to generate a model in an empty root; all must end with the same complete folder.
  const fs::path root = fs::temp_directory_path() / ("fs_race_" + std::to_string(::getpid()));
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      int code = 1;
      try {
        const std::string dir = golden_model_dir_in(root.string(), "tiny-fp8");
        code = fs::file_size(dir + "/model.safetensors.index.json") == 51527 ? 0 : 2;
      } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
      }
      ::_exit(code);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  const auto folders = std::distance(fs::directory_iterator(root), fs::directory_iterator());
  EXPECT_EQ(folders, 1) << "losers must clean up";
  fs::remove_all(root);
}

TEST(Golden, ReadsRecordedArrays) {
  const Golden golden = Golden::of("tiny");
  EXPECT_EQ(golden.shape("logits"), (std::vector<int64_t>{203, 512}));
  const std::vector<float> logits = golden.floats("logits");
  ASSERT_EQ(logits.size(), 203u * 512u);
  double sum = 0, square = 0;
  for (const float x : logits) sum += x, square += static_cast<double>(x) * x;
  const double mean = sum / static_cast<double>(logits.size());
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(logits.size()) - mean * mean), 1.50, 0.01);
  // The prompt is itself a hash.
  const std::vector<int32_t> ids = golden.ints("input_ids");
  ASSERT_EQ(ids.size(), 203u);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(ids[i], static_cast<int32_t>(2 + hash_at(hash_key("input_ids.9"), i) % 497));
  }
  EXPECT_THROW(golden.ints("logits"), std::runtime_error);
  EXPECT_THROW(golden.at("nothing"), std::runtime_error);
}

TEST(Golden, DifferencesSeeNaN) {
  const std::vector<float> a = {1, 2}, b = {1, 2.5f}, c = {NAN, 2}, d = {1};
  EXPECT_EQ(max_abs_diff(a, b), 0.5);
  EXPECT_TRUE(std::isinf(max_abs_diff(a, c)));
  EXPECT_TRUE(std::isinf(max_abs_diff(a, d)));
}

TEST(Random, RepeatsAndSpreads) {
  Random a(7), b(7), c(8);
  EXPECT_EQ(a.words(100), b.words(100));
  EXPECT_NE(a.words(100), c.words(100));
  Random r;
  double sum = 0, square = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = r.normal();
    sum += x, square += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.03);
  EXPECT_NEAR(square / n, 1, 0.03);
  for (int i = 0; i < 1000; ++i) {
    const int64_t x = r.between(-3, 3);
    ASSERT_TRUE(x >= -3 && x <= 3);
  }
}

}  // namespace
}  // namespace firesteel::test

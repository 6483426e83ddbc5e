// The bundled EXL3 model on CUDA: after every recorded prefix it chooses the recorded token wherever the
// recorded choice was clear by more than 0.05.
#include <fstream>
#include <nlohmann/json.hpp>

#include "cuda.h"
#include "model/harness.h"
#include "support/golden.h"

namespace firesteel::test {
namespace {

constexpr double kClear = 0.05;

TEST(CudaDemo, FollowsItsGoldens) {
  NEEDS_GPU();
  std::ifstream in(source_dir() + "/tests/data/demo/goldens.json");
  ASSERT_TRUE(in.good());
  const nlohmann::json goldens = nlohmann::json::parse(in);
  Harness h(source_dir() + "/models/demo", {512, 1, 14, 1}, try_cuda_ops());
  ASSERT_NE(h.model(), nullptr);
  int prompts = 0, clear = 0, close = 0, close_equal = 0;
  for (const auto& prompt : goldens["prompts"]) {
    if (prompt.contains("pictures")) continue;
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const auto ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    const auto want = prompt["greedy_ids"].get<std::vector<int32_t>>();
    const auto margins = prompt["margin"].get<std::vector<double>>();
    Sequence s = h.start(static_cast<int32_t>(ids.size() + want.size()));
    std::vector<float> last = h.last_logits(s, ids);
    for (size_t i = 0; i < want.size(); ++i) {
      const int32_t id = argmax(last.data(), h.vocab());
      if (margins[i] > kClear) {
        EXPECT_EQ(id, want[i]) << "step " << i << ", recorded margin " << margins[i];
        ++clear;
      } else {
        ++close;
        close_equal += id == want[i];
      }
      if (i + 1 < want.size()) last = h.last_logits(s, {want[i]});
    }
    h.release(s);
    ++prompts;
  }
  EXPECT_EQ(prompts, 24);
  EXPECT_GT(clear, 1000);
  std::printf("%d prompts: %d clear steps equal the goldens, of %d close ones %d do\n", prompts, clear, close,
              close_equal);
}

}  // namespace
}  // namespace firesteel::test

// A loaded model with sequences on it, for tests: pages and slots handed out by hand, one or several
// sequences a batch.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace firesteel::test {

/// One sequence: its slot, its pages and how far it has come.
struct Sequence {
  int32_t slot = 0;
  std::vector<int32_t> pages;
  int32_t length = 0;
};

class Harness {
 public:
  /// Loads `dir`; a failure is a test failure and leaves model() null.
  Harness(const std::string& dir, const ModelLimits& limits, std::unique_ptr<Ops> ops = make_cpu_ops(2));

  Model* model() { return model_.get(); }
  int32_t vocab() const { return model_->config().vocab; }

  /// A fresh sequence able to hold `tokens`; pages come from all over the pool so that order never helps.
  Sequence start(int32_t tokens);
  void release(const Sequence& s);

  struct Part {
    Sequence* sequence;
    std::vector<int32_t> tokens;
  };
  /// Runs one batch and returns the logits of all its rows, [rows, vocab], in the order of the parts.
  std::vector<float> forward(const std::vector<Part>& parts, ForwardHooks* hooks = nullptr);
  /// The next tokens of one sequence, in chunks that fit, and the logits of the last one alone.
  std::vector<float> last_logits(Sequence& s, const std::vector<int32_t>& ids);
  /// Final-normed rows of the last forward.
  std::vector<float> hidden(int32_t rows);

  /// Rows of the MTP layer for one sequence whose MTP cache holds `start` rows; `h` fp32 [rows, H].
  struct MtpRows {
    std::vector<float> hidden, logits;
  };
  MtpRows mtp(const Sequence& s, int32_t start, const std::vector<int32_t>& next_ids,
              const std::vector<float>& h, ForwardHooks* hooks = nullptr);

  /// A prompt in chunks: `split`, then the rest at once.
  std::vector<float> run(Sequence& s, const std::vector<int32_t>& ids,
                         const std::vector<int32_t>& split = {});
  /// Greedy continuation after the logits row `last`.
  std::vector<int32_t> greedy(Sequence& s, std::vector<float> last, int32_t count);

 private:
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> free_pages_, free_slots_;
  std::byte* h_upload_ = nullptr;
};

int32_t argmax(const float* row, int32_t n);
/// Row r of [rows, width].
std::vector<float> row(const std::vector<float>& values, int64_t r, int64_t width);
std::vector<int32_t> slice(const std::vector<int32_t>& v, size_t begin, size_t end);
/// Number of elements that differ in their bits (sizes must agree).
size_t differing_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace firesteel::test

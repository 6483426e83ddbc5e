#include "model/trace.h"

#include <algorithm>
#include <numeric>

#include "tensor/safetensors.h"

namespace firesteel {
namespace {

constexpr int32_t kChunk = 512;

void append(TraceTensor& t, std::vector<int64_t> row_shape, const std::vector<float>& rows, int32_t count) {
  if (t.shape.empty()) {
    t.shape = std::move(row_shape);
    t.shape.insert(t.shape.begin(), 0);
  }
  t.shape[0] += count;
  t.floats.insert(t.floats.end(), rows.begin(), rows.end());
}

void append(TraceTensor& t, int64_t width, const std::vector<int32_t>& rows, int32_t count) {
  if (t.shape.empty()) t.shape = {0, width};
  t.shape[0] += count;
  t.ints.insert(t.ints.end(), rows.begin(), rows.end());
}

/// Collects rows of one sequence; chunks come in order.
class TraceHooks : public ForwardHooks {
 public:
  TraceHooks(Model& model, Trace& trace, int32_t first_layer_row)
      : config_(model.config()), ops_(model.ops()), trace_(trace), first_row_(first_layer_row) {}

  void begin_chunk(int32_t start) { start_ = start; }

  void attention_output(int32_t layer, const float* y, int32_t rows) override {
    sublayer("attn.", layer, y, rows);
  }
  void mlp_output(int32_t layer, const float* y, int32_t rows) override { sublayer("mlp.", layer, y, rows); }

  void streams(int32_t layer, const Act* x, int32_t rows) override {
    const int32_t skip = skipped(rows);
    if (skip == rows) return;
    const int32_t width = config_.hc_mult * config_.hidden;
    std::vector<float> host(static_cast<size_t>(rows) * static_cast<size_t>(width));
    ops_.download_act(host.data(), x, host.size());
    host.erase(host.begin(), host.begin() + static_cast<int64_t>(skip) * width);
    append(trace_["streams." + std::to_string(layer)], {config_.hc_mult, config_.hidden}, host, rows - skip);
  }

  void selection(int32_t layer, Selection& sel, const Batch& batch) override {
    const auto rows = static_cast<size_t>(batch.rows), stride = static_cast<size_t>(sel.max_pools);
    std::vector<int32_t> pools(rows * stride), counts(rows);
    ops_.download(pools.data(), sel.pools, pools.size() * sizeof(int32_t));
    ops_.download(counts.data(), sel.count, counts.size() * sizeof(int32_t));
    const int32_t kpool = config_.kpool, width = config_.index_topk + kpool - 1;
    std::vector<int32_t> tokens(rows * static_cast<size_t>(width), -1);
    for (size_t r = 0; r < rows; ++r) {
      int32_t* out = tokens.data() + r * static_cast<size_t>(width);
      for (int32_t i = 0; i < counts[r]; ++i) {
        for (int32_t j = 0; j < kpool; ++j) *out++ = pools[r * stride + static_cast<size_t>(i)] * kpool + j;
      }
      const int32_t position = start_ + static_cast<int32_t>(r);
      for (int32_t t = (position + 1) / kpool * kpool; t <= position; ++t) *out++ = t;
    }
    append(trace_["index." + std::to_string(layer)], width, tokens, batch.rows);
  }

  void experts(int32_t layer, int32_t* idx, float* weight, int32_t rows) override {
    const int32_t k = config_.experts_per_token;
    std::vector<int32_t> ids(static_cast<size_t>(rows) * static_cast<size_t>(k));
    std::vector<float> weights(ids.size());
    ops_.download(ids.data(), idx, ids.size() * sizeof(int32_t));
    ops_.download(weights.data(), weight, weights.size() * sizeof(float));
    append(trace_["router_idx." + std::to_string(layer)], k, ids, rows);
    append(trace_["router_w." + std::to_string(layer)], {k}, weights, rows);
  }

 private:
  int32_t skipped(int32_t rows) const { return std::clamp(first_row_ - start_, 0, rows); }

  void sublayer(const char* name, int32_t layer, const float* y, int32_t rows) {
    const int32_t skip = skipped(rows);
    if (skip == rows) return;
    const auto width = static_cast<size_t>(config_.hidden);
    std::vector<float> host(static_cast<size_t>(rows - skip) * width);
    ops_.download(host.data(), y + static_cast<size_t>(skip) * width, host.size() * sizeof(float));
    append(trace_[name + std::to_string(layer)], {config_.hidden}, host, rows - skip);
  }

  const ModelConfig& config_;
  Ops& ops_;
  Trace& trace_;
  int32_t first_row_, start_ = 0;
};

Result<std::vector<int32_t>> chunks(int32_t total, const std::vector<int32_t>& split, int32_t largest) {
  std::vector<int32_t> out;
  int64_t left = total;
  const auto add = [&](int64_t rows) {
    left -= rows;
    for (; rows > 0; rows -= out.back())
      out.push_back(static_cast<int32_t>(std::min<int64_t>(rows, largest)));
  };
  for (const int32_t rows : split) {
    if (rows < 1 || rows > left) {
      return Error{ErrorCode::kInvalidArgument,
                   "split: chunks must be positive and add up to at most " + std::to_string(total) + " ids"};
    }
    add(rows);
  }
  add(left);
  return out;
}

}  // namespace

ModelLimits trace_limits(int64_t tokens) {
  ModelLimits limits;
  limits.max_rows = static_cast<int32_t>(std::clamp<int64_t>(tokens, 1, kChunk));
  limits.max_logit_rows = limits.max_rows;
  limits.pages =
      static_cast<int32_t>(std::clamp<int64_t>((tokens + kPageTokens - 1) / kPageTokens, 1, 1 << 20));
  limits.slots = 1;
  return limits;
}

Result<Trace> trace_prompt(Model& model, std::span<const int32_t> ids, const TraceOptions& options) {
  const ModelLimits& limits = model.limits();
  const int64_t pages = (static_cast<int64_t>(ids.size()) + kPageTokens - 1) / kPageTokens;
  if (ids.empty() || pages > limits.pages) {
    return Error{ErrorCode::kInvalidArgument,
                 "the prompt must have 1 to " + std::to_string(int64_t{limits.pages} * kPageTokens) + " ids"};
  }
  const auto total = static_cast<int32_t>(ids.size());
  ASSIGN_OR_RETURN(const std::vector<int32_t> sizes,
                   chunks(total, options.split, std::min(limits.max_rows, limits.max_logit_rows)));
  std::vector<int32_t> page_table(static_cast<size_t>(pages));
  std::iota(page_table.begin(), page_table.end(), 0);
  // A vocabulary cut over ranks has fewer logits here than ids.
  const auto vocab = static_cast<size_t>(model.logit_width());

  Trace trace;
  TraceTensor& logits = trace["logits"];
  logits.shape = {total, static_cast<int64_t>(vocab)};
  logits.floats.resize(static_cast<size_t>(total) * vocab);
  TraceHooks hooks(model, trace, options.layer_rows > 0 ? std::max(total - options.layer_rows, 0) : 0);
  model.reset_slot(0);
  int32_t start = 0;
  for (const int32_t rows : sizes) {
    const Segment segment{0, rows, start, 0, 0};
    const Batch batch{
        rows, ids.subspan(static_cast<size_t>(start), static_cast<size_t>(rows)), {&segment, 1}, page_table};
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    hooks.begin_chunk(start);
    RETURN_IF_ERROR(model.forward(batch, all, options.layers ? &hooks : nullptr));
    model.ops().download(logits.floats.data() + static_cast<size_t>(start) * vocab, model.logits(),
                         static_cast<size_t>(rows) * vocab * sizeof(float));
    start += rows;
  }
  return trace;
}

Status write_trace(const std::string& path, const Trace& trace) {
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, t] : trace) {
    const bool floats = t.ints.empty();
    tensors.push_back(
        {name, floats ? DType::kF32 : DType::kI32, t.shape,
         floats ? static_cast<const void*>(t.floats.data()) : static_cast<const void*>(t.ints.data())});
  }
  return write_safetensors(path, tensors);
}

}  // namespace firesteel

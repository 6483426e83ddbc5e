#include "app/bench_forward.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "model/synthetic.h"
#include "ops/random_source.h"

namespace firesteel {
namespace {

/// Counts the experts that the rows of a batch choose.
class ExpertCounter : public ForwardHooks {
 public:
  explicit ExpertCounter(Model& model) : model_(model) {}
  void experts(int32_t, int32_t* idx, float*, int32_t rows) override {
    std::vector<int32_t> ids(static_cast<size_t>(rows) *
                             static_cast<size_t>(model_.config().experts_per_token));
    model_.ops().download(ids.data(), idx, ids.size() * sizeof(int32_t));
    distinct_ += static_cast<double>(std::set<int32_t>(ids.begin(), ids.end()).size());
    ++layers_;
  }
  double average() const { return layers_ == 0 ? 0 : distinct_ / layers_; }

 private:
  Model& model_;
  double distinct_ = 0;
  int layers_ = 0;
};

}  // namespace

Result<std::unique_ptr<ForwardBench>> ForwardBench::open(const ModelOptions& model,
                                                         const SyntheticOptions& synthetic, int32_t streams,
                                                         int32_t tokens) {
  std::unique_ptr<ForwardBench> out(new ForwardBench);
  out->synthetic_ = synthetic;
  ASSIGN_OR_RETURN(const SyntheticShape shape, parse_synthetic(synthetic.shape));
  OpenRequest request;
  request.streams = streams;
  request.window = tokens;
  request.max_rows = kChunk;
  request.max_logit_rows = streams;
  request.placement = {0, synthetic.rank_of};
  ASSIGN_OR_RETURN(out->open_.ops, make_ops(model, 0));
  out->formats_ = formats_text(model_formats(model, *out->open_.ops));
  PlannedModel planned;
  ASSIGN_OR_RETURN(planned.files,
                   open_synthetic(shape, request.placement, model_formats(model, *out->open_.ops).dense));
  RETURN_IF_ERROR(plan_files(*out->open_.ops, request, usable_memory(*out->open_.ops, 1), planned));
  out->pages_each_ = (tokens + kPageTokens - 1) / kPageTokens;
  const int32_t pages = out->pages_each_ * streams;
  if (pages > planned.plan.pages)
    return Error{ErrorCode::kOutOfMemory, "so many tokens of so many streams do not fit"};
  RETURN_IF_ERROR(load_planned(planned, request, pages, out->open_));
  out->lengths_.assign(static_cast<size_t>(streams), 0);
  out->page_table_.resize(static_cast<size_t>(pages));
  std::iota(out->page_table_.begin(), out->page_table_.end(), 0);
  return out;
}

std::string ForwardBench::title() const {
  std::string out = synthetic_.shape;
  if (synthetic_.rank_of > 1) out += ", one rank of " + std::to_string(synthetic_.rank_of) + " alone";
  return out + " on " + std::string(open_.ops->device()) + ", " + formats_;
}

nlohmann::ordered_json ForwardBench::facts() const {
  return {{"model", synthetic_.shape},
          {"rank_of", synthetic_.rank_of},
          {"device", open_.ops->device()},
          {"formats", formats_},
          {"weight_bytes", open_.plan.needs.weights_total()}};
}

Status ForwardBench::forward(const std::vector<Segment>& segments, int32_t rows, int32_t logit_rows,
                             ForwardHooks* hooks) {
  tokens_.resize(static_cast<size_t>(rows));
  for (int32_t& id : tokens_)
    id = static_cast<int32_t>(random_bits(77, seed_++) % static_cast<uint64_t>(open_.config.vocab));
  logit_rows_.resize(static_cast<size_t>(logit_rows));
  std::iota(logit_rows_.begin(), logit_rows_.end(), rows - logit_rows);
  return open_.model->forward({rows, tokens_, segments, page_table_}, logit_rows_, hooks);
}

Result<std::vector<double>> ForwardBench::fill(int32_t stream, int32_t tokens) {
  std::vector<double> out;
  open_.model->reset_slot(stream);
  int32_t& length = lengths_[static_cast<size_t>(stream)];
  for (length = 0; length < tokens;) {
    const int32_t rows = std::min(kChunk, tokens - length);
    const int64_t start = now_ns();
    RETURN_IF_ERROR(forward({{0, rows, length, stream, stream * pages_each_}}, rows, 1, nullptr));
    out.push_back(static_cast<double>(now_ns() - start) * 1e-6);
    length += rows;
  }
  return out;
}

Result<double> ForwardBench::step(int32_t count) {
  std::vector<Segment> segments;
  for (int32_t i = 0; i < count; ++i)
    segments.push_back({i, 1, lengths_[static_cast<size_t>(i)], i, i * pages_each_});
  const int64_t start = now_ns();
  RETURN_IF_ERROR(forward(segments, count, count, nullptr));
  const double ms = static_cast<double>(now_ns() - start) * 1e-6;
  for (int32_t i = 0; i < count; ++i) ++lengths_[static_cast<size_t>(i)];
  return ms;
}

Result<double> ForwardBench::distinct_experts(int32_t count) {
  std::vector<Segment> segments;
  for (int32_t i = 0; i < count; ++i)
    segments.push_back({i, 1, lengths_[static_cast<size_t>(i)], i, i * pages_each_});
  ExpertCounter counter(*open_.model);
  RETURN_IF_ERROR(forward(segments, count, count, &counter));
  for (int32_t i = 0; i < count; ++i) ++lengths_[static_cast<size_t>(i)];
  return counter.average();
}

}  // namespace firesteel

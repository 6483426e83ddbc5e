#include "model/text_model.h"

#include <numeric>

#include "base/check.h"
#include "base/word_hash.h"
#include "model/loader.h"

namespace firesteel {
namespace {

constexpr int32_t kMaxRows = 1 << 16;

/// Names a pass, its input and the rows that give logits.
uint64_t pass_key(uint64_t pass, const void* input, std::span<const int32_t> rows) {
  WordHash key;
  key.add(pass);
  key.add(reinterpret_cast<uintptr_t>(input));
  for (const int32_t row : rows) key.add(static_cast<uint64_t>(row));
  return key.value();
}

Error bad_batch(const std::string& what) { return Error{ErrorCode::kInvalidArgument, "batch: " + what}; }

}  // namespace

TextModel::TextModel(const ModelConfig& config, const LocalWidths& local, Weights weights, Ops& ops,
                     const ModelLimits& limits)
    : config_(config),
      local_(local),
      weights_(std::move(weights)),
      ops_(ops),
      limits_(limits),
      act_size_(ops.act_size()),
      all_rows_(static_cast<size_t>(limits.max_rows)) {
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
}

Result<std::unique_ptr<TextModel>> TextModel::create(const ModelConfig& config, const LocalWidths& local,
                                                     Weights weights, Ops& ops, const ModelLimits& limits) {
  if (limits.max_rows < 1 || limits.max_rows > kMaxRows || limits.max_logit_rows < 1 ||
      limits.max_logit_rows > limits.max_rows || limits.pages < 1 || limits.slots < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 "model limits: rows, pages and slots must be positive and in range"};
  }
  std::unique_ptr<TextModel> m(new TextModel(config, local, std::move(weights), ops, limits));
  const bool mtp = m->has_mtp();
  m->page_bytes_ = page_layout(config, mtp, ops).bytes;
  m->slot_bytes_ = slot_layout(config, mtp, local, ops).bytes;
  ASSIGN_OR_RETURN(m->pages_, ops.allocate(m->page_bytes_ * static_cast<size_t>(limits.pages), "pages"));
  ASSIGN_OR_RETURN(m->slots_, ops.allocate(m->slot_bytes_ * static_cast<size_t>(limits.slots), "slots"));
  const auto carve = [&](std::byte* base) {
    return row_buffers(config, mtp, local, ops, limits.max_rows, limits.max_logit_rows, base);
  };
  ASSIGN_OR_RETURN(std::byte* const arena, ops.allocate(carve(nullptr).bytes, "forward buffers"));
  m->b_ = carve(arena);
  ops.set_exchange(m->b_.exchange, m->b_.exchange_bytes);
  m->place_planes(m->pages_, m->slots_);
  const size_t scratch_bytes = std::max(ops.scratch_bytes(limits.max_rows), m->measure_scratch());
  ASSIGN_OR_RETURN(std::byte* const scratch, ops.allocate(scratch_bytes, "scratch"));
  ops.set_scratch(scratch, scratch_bytes);
  return m;
}

size_t TextModel::measure_scratch() {
  // The longest contexts that pages can hold, and row counts on both sides of every choice of kernels that
  // depends on them.
  const int64_t positions = std::min<int64_t>(config_.max_positions, int64_t{limits_.pages} * kPageTokens);
  const std::vector<int32_t> pages(static_cast<size_t>((positions + kPageTokens - 1) / kPageTokens), 0);
  const std::vector<int32_t> tokens(static_cast<size_t>(limits_.max_rows), 0);
  size_t most = 0;
  const auto largest = static_cast<int32_t>(std::min<int64_t>(limits_.max_rows, positions));
  for (int32_t next = 1, rows = 0; rows < largest; next *= 2) {
    rows = std::min(next, largest);
    const Segment segment{0, rows, static_cast<int32_t>(positions - rows), 0, 0};
    const Batch batch{rows, std::span(tokens).first(static_cast<size_t>(rows)), {&segment, 1}, pages};
    const std::span<const int32_t> logit_rows(all_rows_.data(),
                                              static_cast<size_t>(std::min(rows, limits_.max_logit_rows)));
    most = std::max(most, ops_.measure_scratch(batch, [&] {
      issue(batch, logit_rows, nullptr);
      if (has_mtp()) issue_mtp(batch, b_.hidden, logit_rows, nullptr);
    }));
  }
  return most;
}

void TextModel::place_planes(std::byte* pages, std::byte* slots) {
  const PageLayout page = page_layout(config_, has_mtp(), ops_);
  const SlotLayout slot = slot_layout(config_, has_mtp(), local_, ops_);
  size_t dsa = 0, kda = 0;
  const auto place = [&](Block& block) {
    if (block.kda) block.kda->state = {slots + slot.kda[kda++], slot.bytes};
    if (!block.dsa) return;
    block.dsa->latents = {pages + page.latents[dsa], page.bytes};
    if (block.dsa->indexer) {
      block.dsa->indexer->pools = {pages + page.pools[dsa], page.bytes};
      block.dsa->indexer->tail = {slots + slot.tails[dsa], slot.bytes};
    }
    ++dsa;
  };
  for (Layer& layer : weights_.layers) place(layer.block);
  if (weights_.mtp) place(weights_.mtp->block);
}

std::byte* TextModel::slot_at(int32_t slot) const {
  CHECK(slot >= 0 && slot < limits_.slots);
  return slots_ + static_cast<size_t>(slot) * slot_bytes_;
}

void TextModel::reset_slot(int32_t slot) { ops_.zero(slot_at(slot), slot_bytes_); }
void TextModel::save_slot(int32_t slot, std::byte* host) { ops_.download(host, slot_at(slot), slot_bytes_); }
void TextModel::restore_slot(int32_t slot, const std::byte* host) {
  ops_.upload(slot_at(slot), host, slot_bytes_);
}

void TextModel::copy_page(int32_t dst, int32_t src) {
  CHECK(dst >= 0 && dst < limits_.pages && src >= 0 && src < limits_.pages);
  ops_.copy(pages_ + static_cast<size_t>(dst) * page_bytes_, pages_ + static_cast<size_t>(src) * page_bytes_,
            page_bytes_);
}

Status TextModel::check(const Batch& batch, std::span<const int32_t> logit_rows) const {
  if (batch.rows < 1 || batch.rows > limits_.max_rows) {
    return bad_batch(std::to_string(batch.rows) + " rows; 1 to " + std::to_string(limits_.max_rows) + " fit");
  }
  if (batch.tokens.size() != static_cast<size_t>(batch.rows))
    return bad_batch("tokens and rows differ in number");
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= config_.vocab)
      return bad_batch("token " + std::to_string(token) + " is not in the vocabulary");
  }
  int64_t next = 0;
  for (const Segment& s : batch.segments) {
    if (s.rows < 1 || s.first_row != next) return bad_batch("segments do not cover the rows in order");
    next += s.rows;
    if (s.slot < 0 || s.slot >= limits_.slots) return bad_batch("no slot " + std::to_string(s.slot));
    const int64_t end = int64_t{s.start} + s.rows;
    if (s.start < 0 || end > config_.max_positions) {
      return bad_batch("position " + std::to_string(end - 1) + " is beyond the model's " +
                       std::to_string(config_.max_positions));
    }
    const int64_t last_page = s.page_begin + (end - 1) / kPageTokens;
    if (s.page_begin < 0 || last_page >= static_cast<int64_t>(batch.page_table.size())) {
      return bad_batch("the page table is too short");
    }
    for (int64_t i = s.page_begin; i <= last_page; ++i) {
      const int32_t page = batch.page_table[static_cast<size_t>(i)];
      if (page < 0 || page >= limits_.pages) return bad_batch("no page " + std::to_string(page));
    }
  }
  if (next != batch.rows) return bad_batch("segments do not cover the rows in order");
  if (logit_rows.size() > static_cast<size_t>(limits_.max_logit_rows)) {
    return bad_batch("logits of " + std::to_string(logit_rows.size()) + " rows; at most " +
                     std::to_string(limits_.max_logit_rows) + " fit");
  }
  int32_t previous = -1;
  for (const int32_t row : logit_rows) {
    if (row <= previous || row >= batch.rows) return bad_batch("logit rows must ascend and exist");
    previous = row;
  }
  return Status::success();
}

void TextModel::exchange() {
  ops_.exchange_begin(Stage::kMain, b_.part, config_.hidden);
  ops_.exchange_end(Stage::kMain, b_.part, config_.hidden);
}

void TextModel::head(const Act* hidden, std::span<const int32_t> rows) {
  if (rows.empty()) return;
  ops_.gather(Stage::kMain, hidden, rows, config_.hidden, b_.head_rows);
  ops_.linear_f32(Stage::kMain, weights_.head, b_.head_rows, static_cast<int32_t>(rows.size()), b_.logits);
}

Status TextModel::forward(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks* hooks) {
  RETURN_IF_ERROR(check(batch, logit_rows));
  ops_.bind(batch);
  // What watches needs the ops issued one by one.
  if (hooks != nullptr || ops_.begin(pass_key(0, nullptr, logit_rows))) issue(batch, logit_rows, hooks);
  return ops_.finish();
}

void TextModel::issue(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks* hooks) {
  ops_.embed(Stage::kMain, weights_.embedding, b_.streams);
  // The end of a site and the start of the next go together: the streams are read and written once.
  ops_.hyper_pre(Stage::kMain, weights_.layers.front().attention_site, b_.streams, b_.x, b_.post, b_.comb);
  for (int32_t i = 0; i < config_.layers; ++i) {
    const Layer& layer = weights_.layers[static_cast<size_t>(i)];
    attention(i, layer.block, batch, hooks);
    ops_.hyper_next(Stage::kMain, layer.mlp_site, b_.part, b_.streams, b_.x, b_.post, b_.comb);
    feed_forward(i, layer.block, batch.rows, hooks);
    if (i + 1 < config_.layers) {
      ops_.hyper_next(Stage::kMain, weights_.layers[static_cast<size_t>(i) + 1].attention_site, b_.part,
                      b_.streams, b_.x, b_.post, b_.comb);
    } else {
      ops_.hyper_post(Stage::kMain, b_.part, b_.post, b_.comb, config_.hidden, b_.streams);
    }
    if (hooks != nullptr) hooks->streams(i, b_.streams, batch.rows);
  }
  const std::span<const int32_t> all(all_rows_.data(), static_cast<size_t>(batch.rows));
  ops_.head_input(Stage::kMain, b_.streams, all, config_.hidden, weights_.final_norm, config_.rms_eps,
                  b_.hidden);
  head(b_.hidden, logit_rows);
}

Status TextModel::mtp_forward(const Batch& batch, const Act* h, std::span<const int32_t> logit_rows,
                              ForwardHooks* hooks) {
  if (!has_mtp()) return Error{ErrorCode::kUnsupported, "this model has no multi-token prediction layer"};
  RETURN_IF_ERROR(check(batch, logit_rows));
  ops_.bind(batch);
  if (hooks != nullptr || ops_.begin(pass_key(1, h, logit_rows))) issue_mtp(batch, h, logit_rows, hooks);
  return ops_.finish();
}

void TextModel::issue_mtp(const Batch& batch, const Act* h, std::span<const int32_t> logit_rows,
                          ForwardHooks* hooks) {
  const MtpLayer& w = *weights_.mtp;
  const int32_t layer = config_.layers, hidden = config_.hidden;
  const auto count = static_cast<size_t>(batch.rows) * static_cast<size_t>(hidden);
  ops_.mtp_input(Stage::kMain, weights_.embedding, w.enorm, w.hnorm, config_.rms_eps, h, b_.mtp_cat);
  ops_.linear(Stage::kMain, {&w.eh_proj, 1}, b_.mtp_cat, b_.mtp_x);

  ops_.rms_norm(Stage::kMain, w.input_norm, config_.rms_eps, hidden, b_.mtp_x, hidden, b_.x);
  attention(layer, w.block, batch, hooks);
  ops_.add(Stage::kMain, b_.mtp_x, b_.part, count);
  ops_.rms_norm(Stage::kMain, w.post_norm, config_.rms_eps, hidden, b_.mtp_x, hidden, b_.x);
  feed_forward(layer, w.block, batch.rows, hooks);
  ops_.add(Stage::kMain, b_.mtp_x, b_.part, count);

  ops_.rms_norm(Stage::kMain, w.head_norm, config_.rms_eps, hidden, b_.mtp_x, hidden, b_.mtp_hidden);
  head(b_.mtp_hidden, logit_rows);
}

Result<ModelFiles> open_model_files(const std::string& dir, const Placement& placement, DenseFormat dense) {
  ModelFiles files;
  files.placement = placement;
  ASSIGN_OR_RETURN(files.config, load_model_config(dir));
  ASSIGN_OR_RETURN(files.checkpoint, Checkpoint::open(dir));
  ASSIGN_OR_RETURN(files.weights, map_weights(*files.checkpoint, files.config, placement, dense));
  return files;
}

Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, Ops& ops, const ModelLimits& limits,
                                          const LoadProgress& progress) {
  ASSIGN_OR_RETURN(Weights weights, load_weights(files, ops, progress));
  ASSIGN_OR_RETURN(
      std::unique_ptr<TextModel> model,
      TextModel::create(files.config, local_widths(files.weights), std::move(weights), ops, limits));
  return std::unique_ptr<Model>(std::move(model));
}

Result<std::unique_ptr<Model>> load_model(const std::string& dir, Ops& ops, const ModelLimits& limits,
                                          const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const ModelFiles files, open_model_files(dir));
  return load_model(files, ops, limits, progress);
}

}  // namespace firesteel

#include "model/harness.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace firesteel::test {

Harness::Harness(const std::string& dir, const ModelLimits& limits, std::unique_ptr<Ops> ops)
    : ops_(std::move(ops)) {
  auto loaded = load_model(dir, *ops_, limits, {});
  if (!loaded.ok()) {
    ADD_FAILURE() << loaded.error().message;
    return;
  }
  model_ = std::move(*loaded);
  for (int32_t i = 0; i < limits.slots; ++i) free_slots_.push_back(i);
  // Handed out from the back: odd pages downwards, then even ones.
  for (int32_t i = 0; i < limits.pages; i += 2) free_pages_.push_back(i);
  for (int32_t i = 1; i < limits.pages; i += 2) free_pages_.push_back(i);
  const size_t rows = static_cast<size_t>(limits.max_rows) * static_cast<size_t>(model_->config().hidden);
  auto buffer = ops_->allocate(rows * ops_->act_size(), "test rows");
  if (buffer.ok()) h_upload_ = *buffer;
}

Sequence Harness::start(int32_t tokens) {
  Sequence s;
  const auto pages = static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens);
  if (free_slots_.empty() || free_pages_.size() < pages) {
    ADD_FAILURE() << "the harness has no room for a sequence of " << tokens;
    return s;
  }
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  s.pages.assign(free_pages_.end() - static_cast<int64_t>(pages), free_pages_.end());
  free_pages_.resize(free_pages_.size() - pages);
  model_->reset_slot(s.slot);
  return s;
}

void Harness::release(const Sequence& s) {
  free_slots_.push_back(s.slot);
  free_pages_.insert(free_pages_.end(), s.pages.begin(), s.pages.end());
}

std::vector<float> Harness::forward(const std::vector<Part>& parts, ForwardHooks* hooks) {
  std::vector<int32_t> tokens, page_table;
  std::vector<Segment> segments;
  for (const Part& p : parts) {
    segments.push_back({static_cast<int32_t>(tokens.size()), static_cast<int32_t>(p.tokens.size()),
                        p.sequence->length, p.sequence->slot, static_cast<int32_t>(page_table.size())});
    tokens.insert(tokens.end(), p.tokens.begin(), p.tokens.end());
    page_table.insert(page_table.end(), p.sequence->pages.begin(), p.sequence->pages.end());
    p.sequence->length += static_cast<int32_t>(p.tokens.size());
  }
  std::vector<int32_t> all(tokens.size());
  std::iota(all.begin(), all.end(), 0);
  const Batch batch{static_cast<int32_t>(tokens.size()), tokens, segments, page_table};
  std::vector<float> logits(tokens.size() * static_cast<size_t>(vocab()));
  const Status status = model_->forward(batch, all, hooks);
  EXPECT_TRUE(status.ok()) << status.error().message;
  ops_->download(logits.data(), model_->logits(), logits.size() * sizeof(float));
  return logits;
}

std::vector<float> Harness::last_logits(Sequence& s, const std::vector<int32_t>& ids) {
  for (size_t at = 0; at < ids.size();) {
    const auto rows =
        static_cast<int32_t>(std::min(ids.size() - at, static_cast<size_t>(model_->limits().max_rows)));
    const std::vector<int32_t> tokens = slice(ids, at, at + static_cast<size_t>(rows));
    const Segment segment{0, rows, s.length, s.slot, 0};
    const int32_t last = rows - 1;
    const Status status = model_->forward({rows, tokens, {&segment, 1}, s.pages}, {&last, 1});
    EXPECT_TRUE(status.ok()) << status.error().message;
    s.length += rows;
    at += static_cast<size_t>(rows);
  }
  std::vector<float> logits(static_cast<size_t>(vocab()));
  ops_->download(logits.data(), model_->logits(), logits.size() * sizeof(float));
  return logits;
}

std::vector<float> Harness::hidden(int32_t rows) {
  std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(model_->config().hidden));
  ops_->download_act(out.data(), model_->hidden(), out.size());
  return out;
}

Harness::MtpRows Harness::mtp(const Sequence& s, int32_t start, const std::vector<int32_t>& next_ids,
                              const std::vector<float>& h, ForwardHooks* hooks) {
  const auto rows = static_cast<int32_t>(next_ids.size());
  const Segment segment{0, rows, start, s.slot, 0};
  const Batch batch{rows, next_ids, {&segment, 1}, s.pages};
  std::vector<int32_t> all(next_ids.size());
  std::iota(all.begin(), all.end(), 0);
  Act* input = reinterpret_cast<Act*>(h_upload_);
  ops_->upload_act(input, h.data(), h.size());
  const Status status = model_->mtp_forward(batch, input, all, hooks);
  EXPECT_TRUE(status.ok()) << status.error().message;
  MtpRows out;
  out.hidden.resize(h.size());
  out.logits.resize(next_ids.size() * static_cast<size_t>(vocab()));
  ops_->download_act(out.hidden.data(), model_->mtp_hidden(), out.hidden.size());
  ops_->download(out.logits.data(), model_->logits(), out.logits.size() * sizeof(float));
  return out;
}

std::vector<float> Harness::run(Sequence& s, const std::vector<int32_t>& ids,
                                const std::vector<int32_t>& split) {
  std::vector<float> out;
  size_t at = 0;
  const auto chunk = [&](size_t rows) {
    const std::vector<float> logits = forward({{&s, slice(ids, at, at + rows)}});
    out.insert(out.end(), logits.begin(), logits.end());
    at += rows;
  };
  for (const int32_t rows : split) chunk(static_cast<size_t>(rows));
  if (at < ids.size()) chunk(ids.size() - at);
  return out;
}

std::vector<int32_t> Harness::greedy(Sequence& s, std::vector<float> last, int32_t count) {
  std::vector<int32_t> ids;
  while (static_cast<int32_t>(ids.size()) < count) {
    ids.push_back(argmax(last.data(), vocab()));
    if (static_cast<int32_t>(ids.size()) < count) last = forward({{&s, {ids.back()}}});
  }
  return ids;
}

int32_t argmax(const float* row, int32_t n) {
  return static_cast<int32_t>(std::max_element(row, row + n) - row);
}

std::vector<float> row(const std::vector<float>& values, int64_t r, int64_t width) {
  return {values.begin() + r * width, values.begin() + (r + 1) * width};
}

std::vector<int32_t> slice(const std::vector<int32_t>& v, size_t begin, size_t end) {
  return {v.begin() + static_cast<int64_t>(begin), v.begin() + static_cast<int64_t>(end)};
}

size_t differing_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return SIZE_MAX;
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0 ? 1 : 0;
  return count;
}

}  // namespace firesteel::test

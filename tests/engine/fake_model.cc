#include "fake_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "cache/sequence.h"

namespace firesteel {
namespace {

uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9FB21C651E98DF25ull;
  x = (x ^ (x >> 28)) * 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}
uint64_t extend(uint64_t chain, int32_t token) {
  return scramble(chain * 31 + static_cast<uint64_t>(token) + 1);
}

/// Row of logits for a chain hash and the sum over the sequence's page rows.
void write_row(uint64_t chain, uint64_t pages, float* out) {
  for (int32_t i = 0; i < FakeModel::kVocab; ++i) {
    const uint64_t h = scramble(chain ^ scramble(pages + static_cast<uint64_t>(i)));
    out[i] = static_cast<float>(static_cast<double>(h >> 40) * 0x1p-24 * 8.0 - 4.0);
  }
  // Never drawn by themselves: tests put them into prompts.
  out[FakeModel::kPoisonToken] = out[FakeModel::kExplodeToken] = -INFINITY;
}

}  // namespace

FakeModel::FakeModel(const ModelLimits& limits, Fault fault)
    : limits_(limits),
      fault_(fault),
      ops_(make_cpu_ops(1)),
      slots_(static_cast<size_t>(limits.slots), 0xDEAD),
      slot_rows_(static_cast<size_t>(limits.slots), -1),
      pages_(static_cast<size_t>(limits.pages) * kPageTokens, 0xDEAD),
      logits_(static_cast<size_t>(limits.max_logit_rows) * kVocab) {
  config_.vocab = kVocab;
  config_.max_positions = 1 << 20;
}

void FakeModel::reset_slot(int32_t slot) {
  if (fault_ == Fault::kSlotNotReset && slot_rows_[static_cast<size_t>(slot)] >= 0) {
    slot_rows_[static_cast<size_t>(slot)] = 0;
    return;
  }
  slots_[static_cast<size_t>(slot)] = 0;
  slot_rows_[static_cast<size_t>(slot)] = 0;
}

void FakeModel::save_slot(int32_t slot, std::byte* host) {
  std::memcpy(host, &slots_[static_cast<size_t>(slot)], 8);
}
void FakeModel::restore_slot(int32_t slot, const std::byte* host) {
  std::memcpy(&slots_[static_cast<size_t>(slot)], host, 8);
}
void FakeModel::copy_page(int32_t dst, int32_t src) {
  std::copy_n(pages_.begin() + ptrdiff_t{src} * kPageTokens, kPageTokens,
              pages_.begin() + ptrdiff_t{dst} * kPageTokens);
}

Status FakeModel::forward(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks*) {
  if (before_forward) before_forward();
  forwards.fetch_add(1, std::memory_order_relaxed);
  CHECK(batch.rows <= limits_.max_rows && static_cast<int32_t>(logit_rows.size()) <= limits_.max_logit_rows);
  CHECK(batch.rows == static_cast<int32_t>(batch.tokens.size()));
  CHECK(std::is_sorted(logit_rows.begin(), logit_rows.end()));
  if (std::find(batch.tokens.begin(), batch.tokens.end(), kExplodeToken) != batch.tokens.end())
    return Error{ErrorCode::kInternal, "the device reported a fault"};
  int32_t row = 0;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    CHECK(segment.first_row == row && segment.rows >= 1);
    uint64_t& chain = slots_[static_cast<size_t>(segment.slot)];
    CHECK(slot_rows_[static_cast<size_t>(segment.slot)] == segment.start);
    slot_rows_[static_cast<size_t>(segment.slot)] += segment.rows;
    const auto cell = [&](int32_t position) -> uint64_t& {
      const int32_t at = segment.page_begin + position / kPageTokens;
      CHECK(at < static_cast<int32_t>(batch.page_table.size()));
      CHECK(s + 1 == batch.segments.size() || at < batch.segments[s + 1].page_begin);
      const int32_t page = batch.page_table[static_cast<size_t>(at)];
      CHECK(page >= 0 && page < limits_.pages);
      return pages_[static_cast<size_t>(page) * kPageTokens + static_cast<size_t>(position % kPageTokens)];
    };
    for (int32_t i = 0; i < segment.rows; ++i, ++row) {
      const int32_t token = batch.tokens[static_cast<size_t>(row)];
      chain = extend(chain, token);
      cell(segment.start + i) = chain;
      const auto wanted = std::find(logit_rows.begin(), logit_rows.end(), row);
      if (wanted == logit_rows.end()) continue;
      uint64_t sum = 0;
      for (int32_t p = 0; p <= segment.start + i; ++p) sum += cell(p);
      if (fault_ == Fault::kRowsInTheBatch && batch.rows > 8) ++sum;
      if (fault_ == Fault::kNeighboursPage && s > 0)
        sum += pages_[static_cast<size_t>(batch.page_table[0]) * kPageTokens];
      float* const out = logits_.data() + (wanted - logit_rows.begin()) * kVocab;
      write_row(chain, sum, out);
      if (token == kPoisonToken) std::fill_n(out, kVocab, NAN);
    }
  }
  CHECK(row == batch.rows);
  return {};
}

Status FakeModel::mtp_forward(const Batch&, const Act*, std::span<const int32_t>, ForwardHooks*) {
  return Error{ErrorCode::kUnsupported, "no MTP layer"};
}

namespace {

/// Rules as spec/api.md 5 and 6.5 say them, from the whole reply each time.
void obey(const GenerationRequest& request, const std::vector<int32_t>& reply, float* logits) {
  const ReplyRules& rules = request.rules;
  for (const TokenBias& bias : rules.bias) logits[bias.id] += bias.value;
  for (int32_t id = 0; id < FakeModel::kVocab; ++id) {
    const auto times = std::count(reply.begin(), reply.end(), id);
    const bool known = times > 0 || std::find(request.prompt.begin(), request.prompt.end(), id) != request.prompt.end();
    double v = logits[id];
    if (known && rules.repetition != 1) v = v > 0 ? v / rules.repetition : v * rules.repetition;
    if (times > 0) v -= rules.frequency * static_cast<double>(times) + rules.presence;
    logits[id] = static_cast<float>(v);
  }
}

/// The token that the reply must go on with, or -1; `*answering`: the think block is behind it.
int32_t forced_token(const ThinkRules& think, const std::vector<int32_t>& reply, bool* answering) {
  *answering = !think.inside;
  if (!think.inside) return -1;
  const auto closed = std::find(reply.begin(), reply.end(), think.end_id) - reply.begin();
  if (think.budget == 0 || closed < think.budget) {
    *answering = closed < static_cast<ptrdiff_t>(reply.size());
    return -1;
  }
  const auto forced = static_cast<ptrdiff_t>(reply.size()) - think.budget;
  if (forced < 0) return -1;
  *answering = forced >= static_cast<ptrdiff_t>(think.close.size());
  return *answering ? -1 : think.close[static_cast<size_t>(forced)];
}

std::vector<double> log_softmax(const float* logits) {
  double sum = 0;
  for (int32_t i = 0; i < FakeModel::kVocab; ++i) sum += std::exp(static_cast<double>(logits[i]));
  std::vector<double> out;
  for (int32_t i = 0; i < FakeModel::kVocab; ++i) out.push_back(static_cast<double>(logits[i]) - std::log(sum));
  return out;
}

}  // namespace

std::vector<int32_t> oracle_reply(const GenerationRequest& request, OracleScores* scores) {
  SamplerScratch scratch(FakeModel::kVocab);
  const uint64_t seed = request.sampling.seed ? *request.sampling.seed : prompt_seed(request.prompt);
  uint64_t chain = 0, sum = 0;
  float logits[FakeModel::kVocab];
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    chain = extend(chain, request.prompt[i]), sum += chain;
    write_row(chain, sum, logits);
    if (scores != nullptr) scores->prompt.push_back(log_softmax(logits));
  }
  std::vector<int32_t> reply;
  while (static_cast<int32_t>(reply.size()) < request.max_tokens) {
    write_row(chain, sum, logits);
    if (scores != nullptr) scores->reply.push_back(log_softmax(logits));
    bool answering = true;
    const int32_t forced = forced_token(request.rules.think, reply, &answering);
    std::vector<uint32_t> mask(mask_words(FakeModel::kVocab));
    if (request.constraint != nullptr && answering) {
      request.constraint->fill_mask(mask);
      for (int32_t id = 0; id < FakeModel::kVocab; ++id)
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) == 0) logits[id] = -INFINITY;
    } else if (static_cast<int32_t>(reply.size()) < request.min_tokens) {
      for (const int32_t id : request.end_ids) logits[id] = -INFINITY;
    }
    obey(request, reply, logits);
    const int64_t position = static_cast<int64_t>(request.prompt.size() + reply.size());
    const int32_t token = forced >= 0 ? forced : sample_token(logits, request.sampling, seed, position, scratch);
    if (token < 0) break;
    if (request.constraint != nullptr && answering) CHECK(request.constraint->accept(token));
    reply.push_back(token);
    chain = extend(chain, token), sum += chain;
    if (std::find(request.end_ids.begin(), request.end_ids.end(), token) != request.end_ids.end()) break;
  }
  return reply;
}

}  // namespace firesteel

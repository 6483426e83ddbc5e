#include "engine/round.h"

#include <algorithm>

#include "base/check.h"

namespace firesteel {

EngineState::EngineState(const EngineConfig& config, int32_t window, int32_t page_count, int32_t slot_count)
    : pages(page_count), slots(slot_count) {
  streams.reserve(static_cast<size_t>(config.max_streams));
  for (int32_t i = 0; i < config.max_streams; ++i) streams.emplace_back(pages_for(window));
}

int32_t EngineState::running() const {
  return static_cast<int32_t>(
      std::count_if(streams.begin(), streams.end(), [](const Stream& s) { return s.request != nullptr; }));
}

void EngineState::verify() const {
  pages.verify();
  slots.verify();
  std::vector<int32_t> references(static_cast<size_t>(pages.size()));
  std::vector<uint8_t> slot_used(static_cast<size_t>(slots.size()));
  int32_t held = 0;
  for (const Stream& s : streams) {
    CHECK((s.request != nullptr) == s.sequence.active());
    if (s.request == nullptr) {
      CHECK(s.sequence.pages().empty());
      continue;
    }
    CHECK(s.sequence.rows() <= s.sequence.capacity_rows());
    CHECK(s.pending() >= 1 && s.request->known() <= s.request->total_rows());
    CHECK(slots.taken(s.sequence.slot()) && slot_used[static_cast<size_t>(s.sequence.slot())]++ == 0);
    for (const int32_t page : s.sequence.pages()) {
      CHECK(references[static_cast<size_t>(page)]++ == 0);
      ++held;
    }
  }
  CHECK(held == pages.size() - pages.free());
  CHECK(running() == slots.size() - slots.free());
}

void EngineState::reset() {
  CHECK(running() == 0);
  pages.reset();
  slots.reset();
  rounds = 0;
}

uint64_t EngineState::digest() const {
  uint64_t hash = rounds * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(pages.free());
  const auto mix = [&](int64_t value) {
    hash ^= static_cast<uint64_t>(value);
    hash *= 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  };
  for (const Stream& s : streams) {
    if (s.request == nullptr) {
      mix(-1);
      continue;
    }
    mix(static_cast<int64_t>(s.request->id));
    mix(s.sequence.rows());
    mix(s.sequence.slot());
    mix(s.request->known());
    mix(s.request->token(s.request->known() - 1));
    for (const int32_t page : s.sequence.pages().last(std::min<size_t>(s.sequence.pages().size(), 4)))
      mix(page);
  }
  return hash;
}

RoundRecord::RoundRecord(int32_t max_streams, int32_t vocab) : mask_words_(firesteel::mask_words(vocab)) {
  const size_t n = static_cast<size_t>(max_streams);
  cancels.reserve(n);
  preempts.reserve(n);
  admissions.reserve(n);
  rows.reserve(n);
  masked.reserve(n);
  masks.reserve(n * mask_words_);
}

void RoundRecord::clear() {
  cancels.clear();
  preempts.clear();
  admissions.clear();
  rows.clear();
  forgets.clear();
  masked.clear();
  masks.clear();
}

std::span<uint32_t> RoundRecord::add_mask(int32_t stream) {
  masked.push_back(stream);
  masks.resize(masked.size() * mask_words_);
  return std::span(masks).last(mask_words_);
}

std::span<const uint32_t> RoundRecord::mask(int32_t stream) const {
  const auto at = std::find(masked.begin(), masked.end(), stream);
  if (at == masked.end()) return {};
  return std::span(masks).subspan(static_cast<size_t>(at - masked.begin()) * mask_words_, mask_words_);
}

WaitingRequests::WaitingRequests(int32_t capacity) {
  foreground.reserve(static_cast<size_t>(capacity));
  background.reserve(static_cast<size_t>(capacity));
}

void WaitingRequests::insert(Request* request) {
  std::vector<Request*>& list = request->spec.background ? background : foreground;
  CHECK(list.size() < list.capacity());
  const auto at = std::upper_bound(list.begin(), list.end(), request,
                                   [](const Request* a, const Request* b) { return a->id < b->id; });
  list.insert(at, request);
}

void WaitingRequests::remove(Request* request) {
  std::vector<Request*>& list = request->spec.background ? background : foreground;
  const auto at = std::find(list.begin(), list.end(), request);
  CHECK(at != list.end());
  list.erase(at);
}

}  // namespace firesteel

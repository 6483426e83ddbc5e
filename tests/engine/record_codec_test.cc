// What rank 0 writes is what the others read; what is damaged is refused, never followed.
#include "engine/record_codec.h"

#include <gtest/gtest.h>

#include <random>

namespace firesteel {
namespace {

constexpr int32_t kStreams = 4, kVocab = 1000;

std::unique_ptr<Request> make_request(uint64_t id, std::mt19937_64& rng) {
  auto r = std::make_unique<Request>();
  r->id = id;
  for (size_t i = 0, n = 1 + rng() % 600; i < n; ++i)
    r->spec.prompt.push_back(static_cast<int32_t>(rng() % 1000));
  r->spec.end_ids = {1, 2, 3};
  r->spec.sampling = {0.7, 40, 0.9, 0.01, {}};
  r->seed = rng();
  r->spec.max_tokens = 5 + static_cast<int32_t>(rng() % 50);
  r->spec.min_tokens = 2;
  r->spec.background = rng() % 2 == 0;
  r->spec.logprobs = 3;
  r->spec.prompt_logprobs = true;
  r->spec.rules = {{{4, -1.5f}, {9, 2.0f}}, 0.25, -0.5, 1.25, {true, 7, 12, true, {1, 7, 2}}};
  r->prepare();
  return r;
}

EngineState fresh_state() {
  EngineConfig config;
  config.max_streams = kStreams;
  return EngineState(config, 2048, 64, kStreams);
}

TEST(RecordCodec, ARoundArrivesAsItWasSent) {
  std::mt19937_64 rng(1);
  const auto a = make_request(11, rng), b = make_request(12, rng);
  RoundRecord record(kStreams, kVocab);
  record.admissions = {{a.get(), 2}, {b.get(), 0}};
  record.rows = {{0, 1}, {2, a->prompt_tokens()}};
  record.forgets = {5};
  record.add_mask(2)[3] = 0x1234;
  std::vector<std::byte> bytes;
  encode_round(record, bytes);
  EXPECT_TRUE(a->known_to_ranks);
  const EngineState state = fresh_state();
  KnownRequests known;
  known.emplace(5, make_request(5, rng));
  RoundRecord got(kStreams, kVocab);
  const auto kind = decode_record(bytes, state, known, got);
  ASSERT_TRUE(kind.ok()) << kind.error().message;
  EXPECT_EQ(*kind, RecordKind::kRound);
  EXPECT_FALSE(known.contains(5));
  ASSERT_EQ(got.admissions.size(), 2u);
  const Request& r = *got.admissions[0].request;
  EXPECT_EQ(got.admissions[0].stream, 2);
  EXPECT_EQ(r.id, 11u);
  EXPECT_EQ(r.seed, a->seed);
  EXPECT_EQ(r.spec.prompt, a->spec.prompt);
  EXPECT_EQ(r.spec.end_ids, a->spec.end_ids);
  EXPECT_EQ(r.spec.sampling.temperature, 0.7);
  EXPECT_EQ(r.spec.sampling.top_k, 40);
  EXPECT_EQ(r.spec.sampling.top_p, 0.9);
  EXPECT_EQ(r.spec.sampling.min_p, 0.01);
  EXPECT_EQ(r.spec.max_tokens, a->spec.max_tokens);
  EXPECT_EQ(r.spec.min_tokens, 2);
  EXPECT_EQ(r.spec.background, a->spec.background);
  EXPECT_EQ(r.spec.logprobs, 3);
  EXPECT_TRUE(r.spec.prompt_logprobs);
  EXPECT_EQ(r.spec.rules, a->spec.rules);
  EXPECT_FALSE(r.rules.answering());
  ASSERT_EQ(got.mask(2).size(), got.mask_words());
  EXPECT_EQ(got.mask(2)[3], 0x1234u);
  EXPECT_TRUE(got.mask(0).empty());
  ASSERT_EQ(got.rows.size(), 2u);
  EXPECT_EQ(got.rows[1].rows, a->prompt_tokens());

  // After a preemption the id is enough.
  record.clear();
  record.admissions = {{a.get(), 1}};
  encode_round(record, bytes);
  EXPECT_LT(bytes.size(), 64u);
  ASSERT_TRUE(decode_record(bytes, state, known, got).ok());
  EXPECT_EQ(got.admissions[0].request, known.at(11).get());
}

TEST(RecordCodec, StopIsStop) {
  std::vector<std::byte> bytes;
  encode_stop(bytes);
  KnownRequests known;
  RoundRecord got(kStreams, kVocab);
  const auto kind = decode_record(bytes, fresh_state(), known, got);
  ASSERT_TRUE(kind.ok());
  EXPECT_EQ(*kind, RecordKind::kStop);
}

TEST(RecordCodec, WhatMakesNoSenseIsRefused) {
  std::mt19937_64 rng(2);
  const EngineState state = fresh_state();
  const auto refused = [&](const std::function<void(RoundRecord&, Request&)>& spoil) {
    const auto a = make_request(7, rng);
    RoundRecord record(kStreams, kVocab);
    record.admissions = {{a.get(), 1}};
    record.rows = {{1, 1}};
    spoil(record, *a);
    std::vector<std::byte> bytes;
    encode_round(record, bytes);
    KnownRequests known;
    RoundRecord got(kStreams, kVocab);
    return !decode_record(bytes, state, known, got).ok();
  };
  EXPECT_FALSE(refused([](RoundRecord&, Request&) {}));
  EXPECT_TRUE(refused([](RoundRecord& r, Request&) { r.cancels = {0}; })) << "nothing runs there";
  EXPECT_TRUE(refused([](RoundRecord& r, Request&) { r.admissions[0].stream = 4; }));
  EXPECT_TRUE(refused([](RoundRecord& r, Request&) { r.rows = {{2, 1}}; }));
  EXPECT_TRUE(refused([](RoundRecord& r, Request&) { r.rows = {{1, 100'000}}; }));
  EXPECT_TRUE(refused([](RoundRecord& r, Request&) { r.rows = {{1, 1}, {1, 1}}; }));
  EXPECT_TRUE(refused([](RoundRecord&, Request& a) { a.known_to_ranks = true; })) << "it never was";
  EXPECT_TRUE(refused([](RoundRecord&, Request& a) { a.spec.prompt.clear(); }));
  EXPECT_TRUE(refused([](RoundRecord& r, Request&) { r.add_mask(1), r.masks.pop_back(); }));
  EXPECT_TRUE(refused([](RoundRecord&, Request& a) { a.spec.logprobs = kMaxLogprobs + 1; }));
  EXPECT_TRUE(refused([](RoundRecord&, Request& a) { a.spec.rules.think.close.clear(); }));
  EXPECT_TRUE(refused([](RoundRecord&, Request& a) { a.spec.max_tokens = INT32_MAX; }));
}

TEST(RecordCodec, DamageNeverGoesFurther) {
  std::mt19937_64 rng(3);
  const EngineState state = fresh_state();
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto a = make_request(7, rng);
    RoundRecord record(kStreams, kVocab);
    record.admissions = {{a.get(), 1}};
    record.rows = {{1, 1 + static_cast<int32_t>(rng() % 3)}};
    std::vector<std::byte> bytes;
    encode_round(record, bytes);
    if (rng() % 2 == 0) {
      bytes.resize(rng() % bytes.size());
    } else {
      for (size_t n = 1 + rng() % 4; n > 0; --n)
        bytes[rng() % std::min<size_t>(bytes.size(), 64)] = static_cast<std::byte>(rng());
    }
    KnownRequests known;
    RoundRecord got(kStreams, kVocab);
    if (!decode_record(bytes, state, known, got).ok()) {
      ++refused;
      continue;
    }
    for (const auto& r : got.rows) EXPECT_TRUE(r.stream >= 0 && r.stream < kStreams && r.rows >= 1);
    for (const auto& adm : got.admissions) EXPECT_FALSE(adm.request->spec.prompt.empty());
  }
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace firesteel

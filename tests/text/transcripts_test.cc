// 500 transcripts and more: what a client gets, whole and however the tokens cut it.
#include "transcript.h"

namespace firesteel {
namespace {

using namespace reply_test;

constexpr int kMade = 300;
constexpr size_t kShort = 56;  // bytes: cut at every pair of places

std::vector<Transcript> all() {
  std::vector<Transcript> all = written_transcripts();
  for (auto&& more : {golden_transcripts(), made_transcripts(1, kMade)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Cuts the replies of one transcript; end tokens that are spelled in it stay whole.
class Slicer {
 public:
  explicit Slicer(const Transcript& t) : t_(t) {
    for (size_t at = 1; at < t.reply.size(); ++at)
      if (!inside_end_token(at)) places_.push_back(at);
  }
  /// Where the reply may be cut.
  const std::vector<size_t>& places() const { return places_; }

  Outcome whole() const { return cut({}); }
  Outcome cut(const std::vector<size_t>& at, std::mt19937_64* steps = nullptr) const {
    std::vector<int32_t> ids;
    size_t from = 0;
    const auto take = [&](size_t to) {
      for (int32_t id : natural_tokens(t_.reply.substr(from, to - from))) ids.push_back(id);
      from = to;
    };
    for (size_t place : at) take(place);
    take(t_.reply.size());
    if (!t_.end_by.empty()) ids.push_back(demo().added_id(t_.end_by));
    return run(t_.options, ids, t_.end_by.empty() ? ReplyEnding::kLength : ReplyEnding::kEnd, steps);
  }

 private:
  bool inside_end_token(size_t at) const {
    const size_t open = t_.reply.rfind("<|", at - 1);
    return open != std::string::npos && t_.reply.find("|>", open) + 1 >= at;
  }

  const Transcript& t_;
  std::vector<size_t> places_;
};

void expect_as_written(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.reasoning, want.reasoning);
  EXPECT_EQ(got.content, want.content);
  EXPECT_EQ(got.finish_reason, want.finish_reason);
  EXPECT_EQ(got.stop, want.stop);
  EXPECT_EQ(got.call_at, want.call_at);
  ASSERT_EQ(got.calls.size(), want.calls.size());
  for (size_t i = 0; i < want.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, want.calls[i].name);
    EXPECT_EQ(got.calls[i].arguments, want.calls[i].arguments);
  }
}

std::string trace(const Transcript& t) { return t.name + ": " + testing::PrintToString(t.reply); }

TEST(Transcripts, AreEnoughAndOfEveryKind) {
  const auto transcripts = all();
  EXPECT_GE(written_transcripts().size(), 250u);
  EXPECT_EQ(golden_transcripts().size(), 91u);
  EXPECT_GE(transcripts.size(), 500u);
  int calls = 0, in_think = 0, stops = 0, lengths = 0, texts_behind_calls = 0, wide = 0;
  for (const Transcript& t : transcripts) {
    const Outcome& e = t.expected;
    calls += static_cast<int>(e.calls.size());
    in_think += t.options.in_think;
    stops += e.stop.has_value();
    lengths += e.finish_reason == "length";
    texts_behind_calls += !e.call_at.empty() && e.call_at[0] < e.content.size();
    wide += std::any_of(t.reply.begin(), t.reply.end(), [](unsigned char c) { return c >= 0x80; });
  }
  EXPECT_GT(calls, 300);
  EXPECT_GT(in_think, 300);
  EXPECT_GT(stops, 40);
  EXPECT_GT(lengths, 60);
  EXPECT_GT(texts_behind_calls, 50);
  EXPECT_GT(wide, 80);
}

TEST(Transcripts, AreWhatTheSpecificationSays) {
  for (const Transcript& t : all()) {
    SCOPED_TRACE(trace(t));
    expect_as_written(Slicer(t).whole(), t.expected);
  }
}

TEST(Transcripts, ShowNoMarkupThatIsNotText) {
  for (const Transcript& t : all()) {
    if (t.shows_markup) continue;
    for (const char* tag : {"<think>", "</think>", "<tool_call", "</tool_call", "<arg_", "</arg_",
                            "<function=", "</function", "<parameter=", "</parameter", "<|"}) {
      if (t.options.ignore_eos && std::string_view(tag) == "<|") continue;
      EXPECT_EQ((t.expected.reasoning + t.expected.content).find(tag), std::string::npos) << trace(t);
    }
  }
}

TEST(Transcripts, EveryCutIsTheWholeReply) {
  for (const Transcript& t : all()) {
    SCOPED_TRACE(trace(t));
    const Slicer slicer(t);
    const Outcome whole = slicer.whole();
    for (size_t at : slicer.places()) ASSERT_EQ(slicer.cut({at}), whole) << "cut at " << at;
  }
}

TEST(Transcripts, EveryPairOfCutsInShortOnes) {
  int64_t pairs = 0;
  for (const Transcript& t : all()) {
    if (t.reply.size() > kShort) continue;
    SCOPED_TRACE(trace(t));
    const Slicer slicer(t);
    const Outcome whole = slicer.whole();
    for (size_t a : slicer.places()) {
      for (size_t b : slicer.places()) {
        if (b <= a) continue;
        ASSERT_EQ(slicer.cut({a, b}), whole) << "cut at " << a << " and " << b;
        ++pairs;
      }
    }
  }
  EXPECT_GT(pairs, 50'000);
}

TEST(Transcripts, OneByteATokenAndRandomCutsWithSeveralTokensAStep) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (const Transcript& t : all()) {
    SCOPED_TRACE(trace(t));
    const Slicer slicer(t);
    const Outcome whole = slicer.whole();
    ASSERT_EQ(slicer.cut(slicer.places()), whole);
    for (int i = 0; i < 20; ++i) {
      std::vector<size_t> some;
      const uint64_t rare = 1 + rng() % 12;
      std::copy_if(slicer.places().begin(), slicer.places().end(), std::back_inserter(some),
                   [&](size_t) { return rng() % rare == 0; });
      ASSERT_EQ(slicer.cut(some, &rng), whole);
    }
  }
}

/// A call of the answer comes with the last byte of its closing tag, not later; text that can be nothing else
/// is not held back.
TEST(Transcripts, CallsComeWithTheirLastByte) {
  int known = 0;
  for (const Transcript& t : made_transcripts(2, kMade)) {
    if (t.call_due.empty()) continue;
    SCOPED_TRACE(trace(t));
    ReplyStream stream(demo(), t.options);
    std::vector<ReplyPiece> pieces;
    size_t at = 0;
    for (size_t call = 0; call < t.call_due.size(); ++call, ++known) {
      for (; at + 1 < t.call_due[call]; ++at) stream.push(byte_tokens(t.reply.substr(at, 1))[0], pieces);
      ASSERT_EQ(stream.calls(), static_cast<int>(call));
      stream.push(byte_tokens(t.reply.substr(at++, 1))[0], pieces);
      ASSERT_EQ(stream.calls(), static_cast<int>(call + 1));
    }
  }
  EXPECT_GT(known, 60);
}

/// Calls that are seen as they are written are the calls that come whole, at every cut of one byte and in
/// steps.
TEST(Transcripts, FollowedCallsAreTheWholeOnes) {
  int followed = 0, unfinished = 0;
  std::mt19937_64 steps(5);
  for (Transcript t : all()) {
    if (t.options.tools == nullptr) continue;
    SCOPED_TRACE(trace(t));
    const Outcome plain = Slicer(t).whole();
    t.options.follow_calls = true;
    const Slicer slicer(t);
    for (const Outcome& o :
         {slicer.whole(), slicer.cut(slicer.places()), slicer.cut(slicer.places(), &steps)}) {
      EXPECT_EQ(o, plain);
      followed += o.followed;
      unfinished += o.begun > o.followed;
    }
  }
  std::printf("calls followed: %d; replies with a begun call that never became whole: %d\n", followed,
              unfinished);
  EXPECT_GT(followed, 500);
  EXPECT_GT(unfinished, 10);
}

/// The comparison must notice a stream that loses a byte at a cut.
TEST(Transcripts, APlantedLossIsNoticed) {
  int noticed = 0, tried = 0;
  for (const Transcript& t : made_transcripts(3, 50)) {
    if (t.reply.size() < 8 || !t.expected.calls.empty() || t.expected.stop) continue;
    Transcript lossy = t;
    lossy.reply.erase(lossy.reply.size() / 2, 1);
    ++tried;
    noticed += !(Slicer(lossy).whole() == Slicer(t).whole());
  }
  EXPECT_GT(tried, 10);
  EXPECT_GE(noticed, tried - 3);  // a blank that would be trimmed may be lost
}

}  // namespace
}  // namespace firesteel

#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace firesteel {
namespace {

/// A random vocabulary over few letters, with rules that overlap and compete.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<BpeMerge> merges;
};

Vocabulary random_vocabulary(std::mt19937_64& rng, size_t rules) {
  Vocabulary v;
  std::map<std::string, int32_t> id_of;
  for (int b = 0; b < 256; ++b) {
    v.tokens.emplace_back(1, static_cast<char>(b));
    id_of[v.tokens.back()] = b;
  }
  std::vector<int32_t> usable = {'a', 'b', 'c', ' '};
  while (v.merges.size() < rules) {
    const int32_t l = usable[rng() % usable.size()], r = usable[rng() % usable.size()];
    const std::string joined = v.tokens[static_cast<size_t>(l)] + v.tokens[static_cast<size_t>(r)];
    if (joined.size() > 40) continue;
    const auto [it, fresh] = id_of.emplace(joined, static_cast<int32_t>(v.tokens.size()));
    if (fresh) {
      v.tokens.push_back(joined);
      usable.push_back(it->second);
    }
    v.merges.push_back({l, r, it->second});
  }
  std::shuffle(v.merges.begin(), v.merges.end(), rng);
  return v;
}

BpeModel model_of(const Vocabulary& v, bool ignore_merges) {
  TokenBytes bytes;
  bytes.offset.push_back(0);
  for (const std::string& t : v.tokens) {
    bytes.block += t;
    bytes.offset.push_back(static_cast<uint32_t>(bytes.block.size()));
  }
  BpeModel model = BpeModel::build(std::move(bytes), std::vector<bool>(v.tokens.size(), true),
                                   {.ignore_merges = ignore_merges})
                       .value();
  EXPECT_TRUE(model.set_merges(v.merges).ok());
  return model;
}

/// The definition: merge the pair of lowest rank, the leftmost of equals, until there is none.
std::vector<int32_t> by_definition(const Vocabulary& v, std::string_view piece) {
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> rules;
  for (size_t i = 0; i < v.merges.size(); ++i)
    rules[{v.merges[i].left, v.merges[i].right}] = {i, v.merges[i].result};
  std::vector<int32_t> ids;
  for (char c : piece) ids.push_back(static_cast<unsigned char>(c));
  for (;;) {
    size_t best = ids.size(), best_rank = ~size_t{0};
    int32_t result = -1;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = rules.find({ids[i], ids[i + 1]});
      if (it == rules.end() || it->second.first >= best_rank) continue;
      best = i;
      best_rank = it->second.first;
      result = it->second.second;
    }
    if (best == ids.size()) return ids;
    ids[best] = result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

std::string random_piece(std::mt19937_64& rng, size_t most) {
  std::string s;
  for (size_t n = 1 + rng() % most; n > 0; --n) s += "abc abca"[rng() % 8];
  return s;
}

TEST(Bpe, EqualsTheDefinition) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 200; ++round) {
    const Vocabulary v = random_vocabulary(rng, 1 + rng() % 80);
    const BpeModel model = model_of(v, false);
    for (int i = 0; i < 40; ++i) {
      // Both algorithms: up to 64 bytes and above; the second time a short piece comes from the cache.
      const std::string piece = random_piece(rng, i % 4 == 0 ? 200 : 40);
      const std::vector<int32_t> expected = by_definition(v, piece);
      for (int again = 0; again < 2; ++again) {
        std::vector<int32_t> ids = {-7};
        model.encode_piece(piece, ids);
        ids.erase(ids.begin());
        ASSERT_EQ(ids, expected) << piece;
      }
    }
  }
}

TEST(Bpe, ComparisonNoticesSwappedRules) {
  std::mt19937_64 rng(3);
  Vocabulary v = random_vocabulary(rng, 60);
  const BpeModel model = model_of(v, false);
  std::swap(v.merges[0], v.merges.back());
  bool noticed = false;
  for (int i = 0; i < 5000 && !noticed; ++i) {
    const std::string piece = random_piece(rng, 100);
    std::vector<int32_t> ids;
    model.encode_piece(piece, ids);
    noticed = ids != by_definition(v, piece);
  }
  EXPECT_TRUE(noticed);
}

TEST(Bpe, TheCacheOfAThreadKeepsModelsApart) {
  std::mt19937_64 rng(11);
  const Vocabulary a = random_vocabulary(rng, 30), b = random_vocabulary(rng, 30);
  const BpeModel first = model_of(a, false), second = model_of(b, false);
  for (int i = 0; i < 2000; ++i) {
    const std::string piece = random_piece(rng, 6);
    std::vector<int32_t> x, y;
    first.encode_piece(piece, x);
    second.encode_piece(piece, y);
    ASSERT_EQ(x, by_definition(a, piece));
    ASSERT_EQ(y, by_definition(b, piece));
  }
}

TEST(Bpe, IgnoreMergesLooksTheWholePieceUpFirst) {
  Vocabulary v;
  for (int b = 0; b < 256; ++b) v.tokens.emplace_back(1, static_cast<char>(b));
  v.tokens.insert(v.tokens.end(), {"ab", "abc"});  // 256, 257; no rule makes "abc"
  v.merges = {{'a', 'b', 256}};
  std::vector<int32_t> ids;
  model_of(v, true).encode_piece("abc", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{257}));
  ids.clear();
  model_of(v, false).encode_piece("abc", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{256, 'c'}));
}

TEST(Bpe, AMegabyteOfOneLetter) {
  Vocabulary v;
  for (int b = 0; b < 256; ++b) v.tokens.emplace_back(1, static_cast<char>(b));
  for (int32_t size = 2, last = 'a'; size <= 1024; size *= 2) {
    v.tokens.emplace_back(static_cast<size_t>(size), 'a');
    const auto id = static_cast<int32_t>(v.tokens.size()) - 1;
    v.merges.push_back({last, last, id});
    last = id;
  }
  const BpeModel model = model_of(v, true);
  std::vector<int32_t> ids;
  model.encode_piece(std::string((1u << 20) + 3, 'a'), ids);
  ASSERT_EQ(ids.size(), 1026u);
  EXPECT_EQ(ids[1023], static_cast<int32_t>(v.tokens.size()) - 1);
  EXPECT_EQ(ids[1024], 256);
  EXPECT_EQ(ids[1025], 'a');
}

TEST(Bpe, RefusesVocabulariesItCannotUse) {
  TokenBytes bytes;
  bytes.offset.push_back(0);
  for (int b = 0; b < 255; ++b) {
    bytes.block += static_cast<char>(b);
    bytes.offset.push_back(static_cast<uint32_t>(bytes.block.size()));
  }
  auto r = BpeModel::build(bytes, std::vector<bool>(255, true), {});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().message, "the vocabulary lacks the byte 255");
  bytes.block += 'a';
  bytes.offset.push_back(256);
  r = BpeModel::build(bytes, std::vector<bool>(256, true), {});
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.error().message.find("same bytes"), std::string::npos);
}

}  // namespace
}  // namespace firesteel

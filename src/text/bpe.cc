#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <queue>

namespace firesteel {

namespace {

// A table of honest keys at this load never probes nearly so far; a file made to collide is refused.
constexpr size_t kMaxProbes = 4096;
constexpr size_t kShortPiece = 64;

uint64_t load(const char* p, size_t n) {
  uint64_t v = 0;
  std::memcpy(&v, p, n);
  return v;
}

uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 m = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
}

constexpr uint64_t kSecret[] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u};

uint64_t hash_bytes(std::string_view s) {
  const char* p = s.data();
  size_t n = s.size();
  uint64_t h = kSecret[0] ^ (n * kSecret[2]);
  for (; n > 16; n -= 16, p += 16) h = mix(h ^ load(p, 8) ^ kSecret[1], load(p + 8, 8) ^ kSecret[2]);
  uint64_t a = 0, b = 0;
  if (n >= 8) {
    a = load(p, 8);
    b = load(p + n - 8, 8);
  } else if (n >= 4) {
    a = load(p, 4);
    b = load(p + n - 4, 4);
  } else if (n > 0) {
    a = static_cast<unsigned char>(p[0]) | static_cast<uint64_t>(static_cast<unsigned char>(p[n / 2])) << 8 |
        static_cast<uint64_t>(static_cast<unsigned char>(p[n - 1])) << 16;
  }
  return mix(h ^ a ^ kSecret[1], b ^ h ^ kSecret[2]);
}

uint64_t hash_pair(uint64_t key) { return mix(key ^ kSecret[0], kSecret[1]); }

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr uint64_t kEmptyPair = ~uint64_t{0};

size_t table_size(size_t entries) { return std::bit_ceil(std::max<size_t>(entries * 2, 16)); }

std::atomic<uint64_t> next_serial{1};

}  // namespace

/// Recent pieces that took merging, direct-mapped. One per thread, shared by all models through their
/// serials.
class BpeModel::Cache {
 public:
  static constexpr size_t kMaxBytes = 32, kMaxIds = 8;
  struct Entry {
    uint64_t serial = 0, hash = 0;
    uint8_t bytes = 0, count = 0;
    char text[kMaxBytes];
    int32_t ids[kMaxIds];

    bool holds(uint64_t s, uint64_t h, std::string_view piece) const {
      return serial == s && hash == h && bytes == piece.size() && std::memcmp(text, piece.data(), bytes) == 0;
    }
  };
  static Entry& at(uint64_t hash) {
    thread_local std::array<Entry, 2048> entries;
    return entries[hash & (entries.size() - 1)];
  }
};

Result<BpeModel> BpeModel::build(TokenBytes tokens, const std::vector<bool>& mergeable, Options options) {
  BpeModel model;
  model.tokens_ = std::move(tokens);
  model.options_ = options;
  model.serial_ = next_serial.fetch_add(1, std::memory_order_relaxed);
  RETURN_IF_ERROR(model.index_tokens(mergeable));
  return model;
}

Status BpeModel::index_tokens(const std::vector<bool>& mergeable) {
  const auto n = static_cast<size_t>(std::count(mergeable.begin(), mergeable.end(), true));
  slots_.assign(table_size(n), {0, kNone});
  const size_t mask = slots_.size() - 1;
  for (size_t id = 0; id < mergeable.size(); ++id) {
    if (!mergeable[id]) continue;
    const std::string_view bytes = tokens_.of(static_cast<uint32_t>(id));
    const uint64_t h = hash_bytes(bytes);
    const auto tag = static_cast<uint32_t>(h >> 32);
    size_t at = h & mask, probes = 0;
    for (; slots_[at].id != kNone; at = (at + 1) & mask) {
      if (slots_[at].tag == tag && tokens_.of(static_cast<uint32_t>(slots_[at].id)) == bytes)
        return Error{ErrorCode::kInvalidFile, "two tokens have the same bytes (ids " +
                                                  std::to_string(slots_[at].id) + " and " +
                                                  std::to_string(id) + ")"};
      if (++probes > kMaxProbes) return Error{ErrorCode::kInvalidFile, "the vocabulary is degenerate"};
    }
    slots_[at] = {tag, static_cast<int32_t>(id)};
  }
  for (int b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_ids_[b] = find(std::string_view(&c, 1));
    if (byte_ids_[b] == kNone)
      return Error{ErrorCode::kInvalidFile, "the vocabulary lacks the byte " + std::to_string(b)};
  }
  return {};
}

Status BpeModel::set_merges(const std::vector<BpeMerge>& merges) {
  pairs_.assign(table_size(merges.size()), {kEmptyPair, kNoRank, kNone});
  const size_t mask = pairs_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    size_t at = hash_pair(key) & mask, probes = 0;
    for (; pairs_[at].key != kEmptyPair && pairs_[at].key != key; at = (at + 1) & mask)
      if (++probes > kMaxProbes) return Error{ErrorCode::kInvalidFile, "the merges are degenerate"};
    pairs_[at] = {key, static_cast<uint32_t>(rank), merges[rank].result};
  }
  byte_pairs_.resize(256 * 256);
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b)
      byte_pairs_[static_cast<size_t>(a * 256 + b)] = rule(byte_ids_[a], byte_ids_[b]);
  return {};
}

int32_t BpeModel::find(std::string_view bytes) const {
  const size_t mask = slots_.size() - 1;
  const uint64_t h = hash_bytes(bytes);
  const auto tag = static_cast<uint32_t>(h >> 32);
  for (size_t at = h & mask; slots_[at].id != kNone; at = (at + 1) & mask)
    if (slots_[at].tag == tag && tokens_.of(static_cast<uint32_t>(slots_[at].id)) == bytes)
      return slots_[at].id;
  return kNone;
}

BpeModel::Rule BpeModel::rule(int32_t left, int32_t right) const {
  const size_t mask = pairs_.size() - 1;
  const uint64_t key = pair_key(left, right);
  for (size_t at = hash_pair(key) & mask; pairs_[at].key != kEmptyPair; at = (at + 1) & mask)
    if (pairs_[at].key == key) return {pairs_[at].rank, pairs_[at].result};
  return {kNoRank, kNone};
}

void BpeModel::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(byte_id(static_cast<unsigned char>(piece[0])));
    return;
  }
  if (options_.ignore_merges) {
    if (const int32_t id = find(piece); id != kNone) {
      ids.push_back(id);
      return;
    }
  }
  if (piece.size() > Cache::kMaxBytes) {
    piece.size() <= kShortPiece ? merge_short(piece, ids) : merge_long(piece, ids);
    return;
  }
  const uint64_t h = hash_bytes(piece);
  Cache::Entry& entry = Cache::at(h);
  if (entry.holds(serial_, h, piece)) {
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
    return;
  }
  const size_t before = ids.size();
  merge_short(piece, ids);
  const size_t count = ids.size() - before;
  if (count > Cache::kMaxIds) return;
  entry.serial = serial_;
  entry.hash = h;
  entry.bytes = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(count);
  std::memcpy(entry.text, piece.data(), piece.size());
  std::copy_n(ids.data() + before, count, entry.ids);
}

/// Looks for the best pair again after each merge: quadratic, and fastest for the few bytes of a word.
void BpeModel::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t symbol[kShortPiece];
  Rule next[kShortPiece];  // next[i]: the rule of symbols i and i + 1
  size_t n = piece.size();
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(piece[i]); };
  for (size_t i = 0; i < n; ++i) symbol[i] = byte_ids_[byte(i)];
  for (size_t i = 0; i + 1 < n; ++i) next[i] = byte_pairs_[byte(i) * 256u + byte(i + 1)];
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (next[i].rank < next[best].rank) best = i;
    if (next[best].rank == kNoRank) break;
    symbol[best] = next[best].result;
    --n;
    std::copy(symbol + best + 2, symbol + n + 1, symbol + best + 1);
    std::copy(next + best + 1, next + n, next + best);
    if (best + 1 < n) next[best] = rule(symbol[best], symbol[best + 1]);
    if (best > 0) next[best - 1] = rule(symbol[best - 1], symbol[best]);
  }
  ids.insert(ids.end(), symbol, symbol + n);
}

/// The same merges from a queue ordered by rank, then position, over a linked list of symbols.
void BpeModel::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Symbol {
    int32_t id;              // kNone once it was merged into the one before
    uint32_t before, after;  // neighbours; kEnd at the borders
    Rule next;               // the rule of this symbol and the one after
  };
  constexpr uint32_t kEnd = ~0u;
  const auto n = static_cast<uint32_t>(piece.size());
  std::vector<Symbol> symbols(n);
  std::vector<uint64_t> queue;  // rank << 32 | position
  queue.reserve(n);
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(piece[i]); };
  for (uint32_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    const Rule next = last ? Rule{kNoRank, kNone} : byte_pairs_[byte(i) * 256u + byte(i + 1)];
    symbols[i] = {byte_ids_[byte(i)], i == 0 ? kEnd : i - 1, last ? kEnd : i + 1, next};
    if (next.rank != kNoRank) queue.push_back(static_cast<uint64_t>(next.rank) << 32 | i);
  }
  const auto later = std::greater<uint64_t>();
  std::make_heap(queue.begin(), queue.end(), later);
  const auto renew = [&](uint32_t at) {
    Symbol& s = symbols[at];
    s.next = s.after == kEnd ? Rule{kNoRank, kNone} : rule(s.id, symbols[s.after].id);
    if (s.next.rank == kNoRank) return;
    queue.push_back(static_cast<uint64_t>(s.next.rank) << 32 | at);
    std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const uint64_t top = queue.back();
    queue.pop_back();
    const auto at = static_cast<uint32_t>(top);
    Symbol& s = symbols[at];
    // An entry is out of date when either of its symbols has changed since: then the pair here has another
    // rank.
    if (s.id == kNone || s.next.rank != static_cast<uint32_t>(top >> 32)) continue;
    Symbol& gone = symbols[s.after];
    s.id = s.next.result;
    s.after = gone.after;
    gone.id = kNone;
    if (s.after != kEnd) symbols[s.after].before = at;
    renew(at);
    if (s.before != kEnd) renew(s.before);
  }
  for (uint32_t at = 0; at != kEnd; at = symbols[at].after) ids.push_back(symbols[at].id);
}

}  // namespace firesteel

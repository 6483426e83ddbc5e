#include "text/tokenizer_added.h"

#include <algorithm>

#include "text/pretokenizer_classes.h"
#include "text/utf8.h"

namespace firesteel {

namespace {

constexpr size_t kMaxSpelling = 1024;

bool is_blank(const Utf8Step& step) {
  return step.valid && CharClassTable::get().of(step.code_point) == CharClass::kBlank;
}

/// Where the run of blanks that ends at `end` begins, not before `floor`.
size_t blanks_before(std::string_view bytes, size_t floor, size_t end) {
  while (end > floor) {
    size_t at = end - 1;
    while (at > floor && end - at < 4 && (static_cast<unsigned char>(bytes[at]) & 0xc0) == 0x80) --at;
    const Utf8Step step = utf8_step(bytes.substr(at, end - at));
    if (step.size != end - at || !is_blank(step)) break;
    end = at;
  }
  return end;
}

size_t blanks_after(std::string_view bytes, size_t begin, size_t ceiling) {
  while (begin < ceiling) {
    const Utf8Step step = utf8_step(bytes.substr(begin, ceiling - begin));
    if (!is_blank(step)) break;
    begin += step.size;
  }
  return begin;
}

}  // namespace

uint32_t AddedTokens::Trie::child(uint32_t node, unsigned char byte) const {
  for (const auto& [b, n] : nodes[node].next)
    if (b == byte) return n;
  return 0;
}

void AddedTokens::Trie::add(std::string_view spelling, int32_t token) {
  uint32_t node = 0;
  starts[static_cast<unsigned char>(spelling[0])] = true;
  for (char c : spelling) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes.size());
      nodes[node].next.emplace_back(byte, next);
      nodes.emplace_back();
    }
    node = next;
  }
  nodes[node].token = token;
}

Result<AddedTokens> AddedTokens::build(std::vector<AddedToken> tokens) {
  AddedTokens out;
  out.tokens_ = std::move(tokens);
  for (size_t i = 0; i < out.tokens_.size(); ++i) {
    const AddedToken& token = out.tokens_[i];
    const std::string which = "the added token " + std::to_string(token.id);
    if (token.content.empty()) return Error{ErrorCode::kInvalidFile, which + " is empty"};
    if (token.content.size() > kMaxSpelling) return Error{ErrorCode::kInvalidFile, which + " is too long"};
    if (!out.by_spelling_.emplace(token.content, token.id).second)
      return Error{ErrorCode::kInvalidFile, which + " has the spelling of another"};
    (token.normalized ? out.normalized_ : out.plain_).add(token.content, static_cast<int32_t>(i));
  }
  return out;
}

int32_t AddedTokens::find(std::string_view spelling) const {
  const auto it = by_spelling_.find(spelling);
  return it == by_spelling_.end() ? -1 : it->second;
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view bytes,
                                                     const std::vector<MarkedText::Run>& runs) const {
  std::vector<Segment> segments;
  if (!bytes.empty()) segments.push_back({0, bytes.size(), -1});
  if (plain_.nodes.size() > 1) segments = pass(plain_, bytes, runs, segments);
  if (normalized_.nodes.size() > 1) segments = pass(normalized_, bytes, runs, segments);
  return segments;
}

std::vector<AddedTokens::Segment> AddedTokens::pass(const Trie& trie, std::string_view bytes,
                                                    const std::vector<MarkedText::Run>& runs,
                                                    const std::vector<Segment>& segments) const {
  std::vector<Segment> out;
  for (const Segment& s : segments) {
    if (s.id >= 0) {
      out.push_back(s);
    } else {
      scan(trie, bytes, runs, s, out);
    }
  }
  return out;
}

void AddedTokens::scan(const Trie& trie, std::string_view bytes, const std::vector<MarkedText::Run>& runs,
                       Segment text, std::vector<Segment>& out) const {
  size_t done = text.begin;  // all before is in `out`
  auto run = std::upper_bound(runs.begin(), runs.end(), text.begin,
                              [](size_t at, const MarkedText::Run& r) { return at < r.end; });
  for (; run != runs.end() && run->begin < text.end; ++run) {
    if (!run->trusted) continue;
    const size_t stop = std::min(run->end, text.end);
    for (size_t at = std::max(run->begin, done); at < stop;) {
      if (!trie.starts[static_cast<unsigned char>(bytes[at])]) {
        ++at;
        continue;
      }
      int32_t found = -1;
      size_t found_end = at;
      uint32_t node = 0;
      for (size_t i = at; i < stop; ++i) {
        node = trie.child(node, static_cast<unsigned char>(bytes[i]));
        if (node == 0) break;
        if (trie.nodes[node].token >= 0) {
          found = trie.nodes[node].token;
          found_end = i + 1;
        }
      }
      if (found < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(found)];
      const size_t begin = token.lstrip ? blanks_before(bytes, done, at) : at;
      const size_t end = token.rstrip ? blanks_after(bytes, found_end, text.end) : found_end;
      if (begin > done) out.push_back({done, begin, -1});
      out.push_back({begin, end, token.id});
      done = end;
      at = end;
    }
  }
  if (done < text.end) out.push_back({done, text.end, -1});
}

}  // namespace firesteel

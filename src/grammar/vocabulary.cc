#include "grammar/vocabulary.h"

#include <algorithm>

#include "grammar/tables.h"

namespace firesteel::grammar {

Vocabulary::Vocabulary() : store_(std::make_unique<TableStore>()) {}
Vocabulary::~Vocabulary() = default;

std::string Vocabulary::marker(int32_t special_id) {
  std::string out(1, '\xFF');
  for (int shift = 24; shift >= 0; shift -= 8)
    out += static_cast<char>(static_cast<uint32_t>(special_id) >> shift & 0xFF);
  return out;
}

bool Vocabulary::is_end(int32_t id) const {
  return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

Result<std::shared_ptr<const Vocabulary>> Vocabulary::create(std::span<const std::string_view> tokens,
                                                             std::span<const int32_t> special,
                                                             std::span<const int32_t> end_ids) {
  constexpr size_t kMaxTokens = 1u << 24, kMaxText = 1u << 30;
  if (tokens.empty() || tokens.size() > kMaxTokens)
    return Error{ErrorCode::kInvalidArgument, "a vocabulary needs between 1 and 16,777,216 tokens"};
  enum class Role : uint8_t { kText, kSpecial, kEnd };
  std::vector<Role> roles(tokens.size(), Role::kText);
  for (const auto& [ids, role] : {std::pair{special, Role::kSpecial}, std::pair{end_ids, Role::kEnd}}) {
    for (int32_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= tokens.size())
        return Error{ErrorCode::kInvalidArgument,
                     "token id " + std::to_string(id) + " is not in the vocabulary"};
      roles[static_cast<size_t>(id)] = role;
    }
  }
  std::shared_ptr<Vocabulary> out(new Vocabulary());
  out->end_ids_.assign(end_ids.begin(), end_ids.end());
  out->spans_.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    std::string_view bytes = tokens[id];
    std::string marker;
    if (roles[id] == Role::kSpecial) {
      bytes = marker = Vocabulary::marker(static_cast<int32_t>(id));
    } else if (roles[id] == Role::kEnd || bytes.size() > kMaxTokenBytes ||
               std::any_of(bytes.begin(), bytes.end(),
                           [](char c) { return static_cast<uint8_t>(c) >= 0xF8; })) {
      bytes = {};
    }
    out->spans_[id] = {static_cast<uint32_t>(out->text_.size()), static_cast<uint32_t>(bytes.size())};
    out->text_ += bytes;
    if (out->text_.size() > kMaxText)
      return Error{ErrorCode::kInvalidArgument, "the vocabulary is too large"};
  }
  out->build_trie();
  return std::shared_ptr<const Vocabulary>(std::move(out));
}

void Vocabulary::build_trie() {
  for (int32_t id = 0; id < size(); ++id) {
    if (!bytes(id).empty()) order_.push_back(id);
  }
  std::sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) {
    const int c = bytes(a).compare(bytes(b));
    return c != 0 ? c < 0 : a < b;
  });
  std::fill(std::begin(root_child_), std::end(root_child_), kNone);
  std::vector<uint32_t> path;  // nodes of the last token's bytes
  std::string_view last;
  for (size_t i = 0; i < order_.size(); ++i) {
    const std::string_view text = bytes(order_[i]);
    size_t common = 0;
    while (common < last.size() && common < text.size() && last[common] == text[common]) ++common;
    for (size_t d = common; d < path.size(); ++d) skip_[path[d]] = node_count();
    path.resize(common);
    for (size_t d = common; d < text.size(); ++d) {
      if (d == 0) root_child_[static_cast<uint8_t>(text[0])] = node_count();
      path.push_back(node_count());
      byte_.push_back(static_cast<uint8_t>(text[d]));
      depth_.push_back(static_cast<uint16_t>(d + 1));
      skip_.push_back(0);
      first_token_.push_back(static_cast<uint32_t>(i));
    }
    max_depth_ = std::max(max_depth_, static_cast<uint32_t>(text.size()));
    last = text;
  }
  for (uint32_t node : path) skip_[node] = node_count();
  // A node made for a longer token holds none itself; its index is then that of the first token below, which
  // is the next node's.
  first_token_.push_back(static_cast<uint32_t>(order_.size()));
}

}  // namespace firesteel::grammar

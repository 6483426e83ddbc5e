// From the text of tokenizer.json to a Tokenizer: every check that the file is of the kind we serve.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "text/tokenizer_impl.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace firesteel {

using nlohmann::ordered_json;

namespace {

constexpr std::streamoff kMaxFile = 512u << 20;

Error invalid(const std::string& what) { return {ErrorCode::kInvalidFile, what}; }
Error unsupported(const std::string& what) { return {ErrorCode::kUnsupported, what + " is not supported"}; }

/// A name from the file, fit for one line of an error.
std::string shown(std::string_view name) {
  std::string out = "'";
  for (char c : name.substr(0, 40)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return out + "'";
}

/// The member, or null when it is absent.
const ordered_json& member(const ordered_json& object, const char* name) {
  static const ordered_json null;
  const auto it = object.find(name);
  return it == object.end() ? null : *it;
}

std::string type_of(const ordered_json& node) {
  if (!node.is_object()) return {};
  const ordered_json& type = member(node, "type");
  return type.is_string() ? type.get<std::string>() : std::string();
}

/// The byte-level alphabet gives each byte a printable character: itself where it has one in Latin-1, else
/// the next from U+0100 on.
class ByteAlphabet {
 public:
  static constexpr uint32_t kEnd = 0x144;
  ByteAlphabet() {
    byte_of_.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
      byte_of_[printable ? b : next++] = static_cast<int16_t>(b);
    }
  }
  int byte_of(uint32_t code_point) const { return code_point < kEnd ? byte_of_[code_point] : -1; }

 private:
  std::array<int16_t, kEnd> byte_of_;
};

Status check_model(const ordered_json& model) {
  if (!model.is_object()) return invalid("it has no model");
  const ordered_json& type = member(model, "type");
  if (!type.is_null() && !type.is_string()) return invalid("model.type is not a string");
  if (type.is_string() && type != "BPE") return unsupported("the model type " + shown(type_of(model)));
  if (!member(model, "vocab").is_null()) return invalid("model.vocab is not an object");
  if (!member(model, "merges").is_null()) return invalid("model.merges is not a list");
  const ordered_json& dropout = member(model, "dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0))
    return unsupported("dropout");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const ordered_json& affix = member(model, name);
    if (!affix.is_null() && affix != "") return unsupported(name);
  }
  for (const char* name : {"ignore_merges", "byte_fallback", "fuse_unk"}) {
    const ordered_json& flag = member(model, name);
    if (!flag.is_null() && !flag.is_boolean())
      return invalid(std::string("model.") + name + " is not true or false");
  }
  return {};
}

Status check_normalizer(const ordered_json& node) {
  if (node.is_null()) return {};
  const std::string type = type_of(node);
  if (type == "Sequence") {
    const ordered_json& list = member(node, "normalizers");
    if (list.is_array() && list.empty()) return {};
    if (list.is_array()) return unsupported("the normalizer " + shown(type_of(list.front())));
  }
  return unsupported("the normalizer " + shown(type));
}

Status check_decoder(const ordered_json& node) {
  if (type_of(node) == "ByteLevel") return {};
  if (type_of(node) == "Sequence") {
    const ordered_json& list = member(node, "decoders");
    if (list.is_array() && list.size() == 1 && type_of(list.front()) == "ByteLevel") return {};
  }
  return unsupported("a decoder other than ByteLevel");
}

/// Only post-processors that add no token: the chat template writes every token of a prompt.
Status check_post_processor(const ordered_json& node, bool inside = false) {
  if (node.is_null()) return {};
  const std::string type = type_of(node);
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") {
    const ordered_json& single = member(node, "single");
    const bool plain =
        single.is_array() && std::all_of(single.begin(), single.end(), [](const ordered_json& part) {
          return part.is_object() && part.contains("Sequence");
        });
    return plain ? Status() : unsupported("a post-processor that adds tokens");
  }
  if (type == "Sequence" && !inside) {
    const ordered_json& list = member(node, "processors");
    if (!list.is_array()) return invalid("post_processor: a Sequence has no list");
    for (const ordered_json& step : list) RETURN_IF_ERROR(check_post_processor(step, true));
    return {};
  }
  return unsupported("the post-processor " + shown(type));
}

Result<std::vector<AddedToken>> read_added(const ordered_json& list) {
  std::vector<AddedToken> out;
  if (list.is_null()) return out;
  if (!list.is_array()) return invalid("added_tokens is not a list");
  for (const ordered_json& node : list) {
    if (!node.is_object()) return invalid("an added token is not an object");
    const ordered_json& id = member(node, "id");
    const ordered_json& content = member(node, "content");
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kMaxTokenId))
      return invalid("an added token has no usable id");
    if (!content.is_string()) return invalid("an added token has no content");
    AddedToken token;
    token.id = id.get<int32_t>();
    token.content = content.get<std::string>();
    bool single_word = false;
    const std::pair<const char*, bool*> flags[] = {{"single_word", &single_word},
                                                   {"lstrip", &token.lstrip},
                                                   {"rstrip", &token.rstrip},
                                                   {"normalized", &token.normalized}};
    for (const auto& [name, to] : flags) {
      const ordered_json& flag = member(node, name);
      if (!flag.is_null() && !flag.is_boolean())
        return invalid(std::string("an added token's ") + name + " is not true or false");
      if (flag.is_boolean()) *to = flag.get<bool>();
    }
    if (single_word) return unsupported("an added token with single_word");
    out.push_back(std::move(token));
  }
  return out;
}

/// What each id is: its bytes, and whether text may become it.
struct IdTable {
  TokenBytes tokens;
  std::vector<bool> mergeable, is_added;
};

Result<IdTable> lay_out_ids(const TokenizerJson& file, const AddedTokens& added) {
  int32_t last = -1;
  for (const auto& entry : file.vocab) last = std::max(last, entry.id);
  for (const AddedToken& token : added.tokens()) last = std::max(last, token.id);
  const auto count = static_cast<size_t>(last + 1);

  constexpr int32_t kFree = -1;
  std::vector<int32_t> entry_of(count, kFree), added_of(count, kFree);
  for (size_t i = 0; i < file.vocab.size(); ++i) {
    int32_t& place = entry_of[static_cast<size_t>(file.vocab[i].id)];
    if (place != kFree) return invalid("two tokens have the id " + std::to_string(file.vocab[i].id));
    place = static_cast<int32_t>(i);
    const int32_t also = added.find(file.text(file.vocab[i].token));
    if (also >= 0 && also != file.vocab[i].id)
      return invalid("the added token " + std::to_string(also) + " has another id in the vocabulary");
  }
  for (size_t i = 0; i < added.tokens().size(); ++i) {
    const AddedToken& token = added.tokens()[i];
    const auto id = static_cast<size_t>(token.id);
    if (added_of[id] != kFree) return invalid("two added tokens have the id " + std::to_string(token.id));
    if (entry_of[id] != kFree &&
        file.text(file.vocab[static_cast<size_t>(entry_of[id])].token) != token.content)
      return invalid("the added token " + std::to_string(token.id) + " has the id of another token");
    added_of[id] = static_cast<int32_t>(i);
  }

  IdTable table;
  table.mergeable.assign(count, false);
  table.is_added.assign(count, false);
  table.tokens.offset.reserve(count + 1);
  table.tokens.offset.push_back(0);
  std::string bytes;
  for (size_t id = 0; id < count; ++id) {
    if (entry_of[id] != kFree) {
      const std::string_view symbols = file.text(file.vocab[static_cast<size_t>(entry_of[id])].token);
      const bool ordinary = bytes_of_symbols(symbols, bytes);
      // An added token comes from its spelling alone, else a caller's text could become it by merging. Single
      // bytes must stay, or text would lose them.
      table.mergeable[id] = ordinary && !bytes.empty() && (added_of[id] == kFree || bytes.size() == 1);
      if (!ordinary) bytes = symbols;
    } else {
      bytes.clear();
    }
    if (added_of[id] != kFree) {
      table.is_added[id] = true;
      bytes = added.tokens()[static_cast<size_t>(added_of[id])].content;
    }
    table.tokens.block += bytes;
    table.tokens.offset.push_back(static_cast<uint32_t>(table.tokens.block.size()));
  }
  return table;
}

Status add_merges(const TokenizerJson& file, const AddedTokens& added, BpeModel& bpe) {
  std::vector<BpeMerge> merges;
  merges.reserve(file.merges.size());
  std::string left, right, symbols;
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& merge = file.merges[rank];
    const bool known =
        bytes_of_symbols(file.text(merge.left), left) && bytes_of_symbols(file.text(merge.right), right);
    BpeMerge ids{BpeModel::kNone, BpeModel::kNone, BpeModel::kNone};
    if (known) {
      ids.left = bpe.find(left);
      ids.right = bpe.find(right);
      left += right;
      ids.result = bpe.find(left);
    }
    if (ids.left == BpeModel::kNone || ids.right == BpeModel::kNone || ids.result == BpeModel::kNone) {
      // A rule that makes an added token, or builds on one, must not fire (lay_out_ids says why).
      symbols.assign(file.text(merge.left));
      symbols += file.text(merge.right);
      if (added.find(symbols) >= 0 || added.find(file.text(merge.left)) >= 0 ||
          added.find(file.text(merge.right)) >= 0)
        continue;
      return invalid("merge " + std::to_string(rank) + " is not about tokens of the vocabulary");
    }
    merges.push_back(ids);
  }
  return bpe.set_merges(merges);
}

}  // namespace

bool bytes_of_symbols(std::string_view symbols, std::string& bytes) {
  static const ByteAlphabet alphabet;
  bytes.clear();
  const auto* p = reinterpret_cast<const unsigned char*>(symbols.data());
  const auto* end = p + symbols.size();
  while (p != end) {  // valid UTF-8: the JSON reader accepts nothing else
    const int byte = alphabet.byte_of(utf8_next_valid(p));
    if (byte < 0) return false;
    bytes.push_back(static_cast<char>(byte));
  }
  return true;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json_text, const std::string& path) {
  const auto build = [&]() -> Result<std::unique_ptr<Impl>> {
    ASSIGN_OR_RETURN(const TokenizerJson file, read_tokenizer_json(json_text));
    const ordered_json& model = member(file.rest, "model");
    RETURN_IF_ERROR(check_model(model));
    RETURN_IF_ERROR(check_normalizer(member(file.rest, "normalizer")));
    RETURN_IF_ERROR(check_decoder(member(file.rest, "decoder")));
    RETURN_IF_ERROR(check_post_processor(member(file.rest, "post_processor")));
    ASSIGN_OR_RETURN(PreTokenizer pre, PreTokenizer::create(member(file.rest, "pre_tokenizer")));
    ASSIGN_OR_RETURN(std::vector<AddedToken> listed, read_added(member(file.rest, "added_tokens")));
    ASSIGN_OR_RETURN(AddedTokens added, AddedTokens::build(std::move(listed)));
    ASSIGN_OR_RETURN(IdTable table, lay_out_ids(file, added));
    const ordered_json& ignore = member(model, "ignore_merges");
    const BpeModel::Options options{.ignore_merges = ignore.is_boolean() && ignore.get<bool>()};
    ASSIGN_OR_RETURN(BpeModel bpe, BpeModel::build(std::move(table.tokens), table.mergeable, options));
    RETURN_IF_ERROR(add_merges(file, added, bpe));
    return std::make_unique<Impl>(
        Impl{std::move(added), std::move(pre), std::move(bpe), std::move(table.is_added)});
  };
  auto impl = build();
  if (!impl) return Error{impl.error().code, path + ": " + impl.error().message};
  return Tokenizer(std::move(impl).value());
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in)
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, path + ": " + std::strerror(errno)};
  const std::streamoff size = in.tellg();
  if (size < 0 || size > kMaxFile)
    return Error{ErrorCode::kInvalidFile, path + ": not a file, or larger than 512 MiB"};
  std::string text(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(text.data(), size)) return Error{ErrorCode::kIo, path + ": cannot be read"};
  return parse(text, path);
}

}  // namespace firesteel

#include "text/pretokenizer.h"

#include <string>

#include <nlohmann/json.hpp>

#include "text/pretokenizer_regex.h"
#include "text/pretokenizer_words.h"

namespace firesteel {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxSteps = 16;

// What ByteLevel splits by when its use_regex is on.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Error invalid(const std::string& what) { return {ErrorCode::kInvalidFile, "pre_tokenizer: " + what}; }
Error unsupported(const std::string& what) {
  return {ErrorCode::kUnsupported, "pre_tokenizer: " + what + " is not supported"};
}

/// A name from the file, fit for one line of an error.
std::string shown(std::string_view name) {
  std::string out = "'";
  for (char c : name.substr(0, 40)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return out + "'";
}

Result<std::string> type_of(const ordered_json& node) {
  if (!node.is_object()) return invalid("a step is not an object");
  const auto it = node.find("type");
  if (it == node.end() || !it->is_string()) return invalid("a step has no type");
  return it->get<std::string>();
}

Result<bool> flag(const ordered_json& node, const char* name, bool absent) {
  const auto it = node.find(name);
  if (it == node.end()) return absent;
  if (!it->is_boolean()) return invalid(std::string(name) + " is not true or false");
  return it->get<bool>();
}

}  // namespace

struct PreTokenizer::Impl {
  /// One Split: the hand-written matcher when its pattern is the known one, else the regex.
  struct Step {
    std::unique_ptr<RegexSplitter> regex;
    Status split(std::string_view text, uint32_t base, std::vector<uint32_t>& ends) const {
      if (regex) return regex->split(text, base, ends);
      split_words(text, base, ends);
      return {};
    }
  };
  std::vector<Step> steps;
  bool byte_level = false;

  Status add_pattern(std::string_view pattern) {
    Step step;
    if (pattern != kWordsPattern) {
      auto regex = RegexSplitter::compile(pattern);
      if (!regex) return Error{regex.error().code, "pre_tokenizer: " + regex.error().message};
      step.regex = std::make_unique<RegexSplitter>(std::move(regex).value());
    }
    steps.push_back(std::move(step));
    return {};
  }

  Status add_split(const ordered_json& node) {
    const auto behavior = node.find("behavior");
    if (behavior == node.end() || !behavior->is_string()) return invalid("a Split has no behavior");
    if (const auto& name = behavior->get_ref<const std::string&>(); name != "Isolated")
      return unsupported("the Split behavior " + shown(name));
    // Which side of the cut is "the match" makes no difference when both are kept as pieces.
    RETURN_IF_ERROR(flag(node, "invert", false));
    const auto pattern = node.find("pattern");
    if (pattern == node.end() || !pattern->is_object() || pattern->size() != 1)
      return invalid("a Split has no pattern");
    const std::string& kind = pattern->begin().key();
    if (!pattern->begin()->is_string()) return invalid("a Split pattern is not a string");
    const auto& value = pattern->begin()->get_ref<const std::string&>();
    if (kind == "Regex") return add_pattern(value);
    if (kind == "String")
      return value.empty() ? Status(invalid("a Split has an empty pattern"))
                           : add_pattern(literal_pattern(value));
    return unsupported("the Split pattern kind " + shown(kind));
  }

  Status add_byte_level(const ordered_json& node) {
    ASSIGN_OR_RETURN(const bool prefix, flag(node, "add_prefix_space", true));
    ASSIGN_OR_RETURN(const bool regex, flag(node, "use_regex", true));
    if (prefix) return unsupported("ByteLevel with add_prefix_space");
    byte_level = true;
    return regex ? add_pattern(kByteLevelPattern) : Status();
  }

  /// `node` may be a Sequence; a Sequence inside a Sequence is refused, so there is no recursion.
  Status add(const ordered_json& node, bool inside) {
    ASSIGN_OR_RETURN(const std::string type, type_of(node));
    // ByteLevel replaces bytes by stand-in characters; a pattern after it would see those, not the text.
    if (byte_level) return unsupported("a step after ByteLevel");
    if (type == "Split") return add_split(node);
    if (type == "ByteLevel") return add_byte_level(node);
    if (type != "Sequence" || inside) return unsupported("the type " + shown(type));
    const auto list = node.find("pretokenizers");
    if (list == node.end() || !list->is_array()) return invalid("a Sequence has no list");
    if (list->size() > kMaxSteps) return invalid("a Sequence of more than 16 steps");
    for (const ordered_json& step : *list) RETURN_IF_ERROR(add(step, true));
    return {};
  }
};

PreTokenizer::PreTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::create(const ordered_json& node) {
  auto impl = std::make_unique<Impl>();
  if (node.is_null()) return unsupported("a tokenizer without ByteLevel");
  RETURN_IF_ERROR(impl->add(node, false));
  if (!impl->byte_level) return unsupported("a tokenizer without ByteLevel");
  return PreTokenizer(std::move(impl));
}

Status PreTokenizer::split(std::string_view text, std::vector<uint32_t>& ends) const {
  if (text.empty()) return {};
  const auto& steps = impl_->steps;
  if (steps.empty()) {
    ends.push_back(static_cast<uint32_t>(text.size()));
    return {};
  }
  RETURN_IF_ERROR(steps[0].split(text, 0, ends));
  // Each later step sees one piece at a time, as a text of its own.
  std::vector<uint32_t> pieces;
  for (size_t s = 1; s < steps.size(); ++s) {
    pieces.clear();
    pieces.swap(ends);
    uint32_t begin = 0;
    for (uint32_t end : pieces) {
      RETURN_IF_ERROR(steps[s].split(text.substr(begin, end - begin), begin, ends));
      begin = end;
    }
  }
  return {};
}

}  // namespace firesteel

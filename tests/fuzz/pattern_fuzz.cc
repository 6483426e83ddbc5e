// A pattern composed of the input's choices together with its own readable matcher (sets of positions in a
// text of code points): compiled, it accepts the same texts. Other inputs are patterns as they come: refused
// with a reason, or every promise of the masks holds.
#include <cstdio>
#include <string>
#include <vector>

#include "grammar_input.h"
#include "text/utf8.h"

namespace {

using namespace firesteel;
using namespace firesteel::fuzz;
using namespace firesteel::grammar;

constexpr uint32_t kAlphabet[] = {'a',  'b',  'c',    '0',    '9',     '-', ' ',
                                  '\n', 0xE4, 0x2014, 0x2028, 0x1F600, 'Z', '_'};

struct Node {
  enum class Kind { kChars, kSeq, kAlt, kRepeat } kind = Kind::kSeq;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  bool negated = false;
  std::vector<Node> children;
  uint32_t min = 0, max = 0;

  bool has(uint32_t c) const {
    bool in = false;
    for (const auto& [low, high] : ranges) in = in || (c >= low && c <= high);
    return in != negated;
  }
};

using Set = uint64_t;  // bit p: position p of the text is reached

Set match(const Node& node, const std::vector<uint32_t>& text, Set from) {
  switch (node.kind) {
    case Node::Kind::kChars: {
      Set out = 0;
      for (size_t p = 0; p < text.size(); ++p)
        if (from >> p & 1 && node.has(text[p])) out |= Set{1} << (p + 1);
      return out;
    }
    case Node::Kind::kSeq:
      for (const Node& child : node.children) from = match(child, text, from);
      return from;
    case Node::Kind::kAlt: {
      Set out = 0;
      for (const Node& child : node.children) out |= match(child, text, from);
      return out;
    }
    case Node::Kind::kRepeat: {
      for (uint32_t i = 0; i < node.min && from != 0; ++i) from = match(node.children[0], text, from);
      Set all = from;
      for (uint32_t i = node.min; i < node.max && from != 0; ++i) {
        from = match(node.children[0], text, from) & ~all;
        all |= from;
      }
      return all;
    }
  }
  return 0;
}

const std::vector<std::pair<uint32_t, uint32_t>> kDigit{{'0', '9'}},
    kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
    kSpace{{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
           {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}},
    kLineEnd{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/// One character as it may stand in a pattern, outside or inside a class.
void write_char(Choices& in, uint32_t c, std::string* out) {
  char escaped[16];
  const uint32_t how = in.below(6);
  if (how == 4 && c < 0x100) {
    std::snprintf(escaped, sizeof escaped, "\\x%02X", c);
    *out += escaped;
  } else if (how == 5 && c < 0x10000) {
    std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
    *out += escaped;
  } else if (how == 5) {
    std::snprintf(escaped, sizeof escaped, "\\u{%x}", c);
    *out += escaped;
  } else if (c == '\n') {
    *out += "\\n";
  } else {
    if (c == '-') *out += '\\';
    utf8_append(*out, c);
  }
}

Node char_set(Choices& in, std::string* out) {
  Node node{Node::Kind::kChars, {}, false, {}, 0, 0};
  switch (in.below(10)) {
    case 0:
      *out += ".";
      return {Node::Kind::kChars, kLineEnd, true, {}, 0, 0};
    case 1:
      *out += "\\d";
      return {Node::Kind::kChars, kDigit, false, {}, 0, 0};
    case 2:
      *out += "\\W";
      return {Node::Kind::kChars, kWord, true, {}, 0, 0};
    case 3:
      *out += "\\s";
      return {Node::Kind::kChars, kSpace, false, {}, 0, 0};
    case 4:
    case 5: {
      node.negated = in.once_in(3);
      *out += node.negated ? "[^" : "[";
      for (uint32_t n = 1 + in.below(3); n > 0; --n) {
        uint32_t low = in.of(kAlphabet), high = low;
        switch (in.below(4)) {
          case 0:
            *out += "\\w";
            node.ranges.insert(node.ranges.end(), kWord.begin(), kWord.end());
            continue;
          case 1:
            high = in.of(kAlphabet);
            if (low > high) std::swap(low, high);
            write_char(in, low, out);
            *out += "-";
            write_char(in, high, out);
            break;
          default:
            write_char(in, low, out);
        }
        node.ranges.emplace_back(low, high);
      }
      *out += "]";
      return node;
    }
    default: {
      const uint32_t c = in.of(kAlphabet);
      write_char(in, c, out);
      node.ranges = {{c, c}};
      return node;
    }
  }
}

Node compose(Choices& in, int depth, std::string* out) {
  Node node;
  switch (depth > 4 ? 0 : in.below(8)) {
    case 4: {
      node.kind = Node::Kind::kAlt;
      *out += in.once_in(2) ? "(?:" : "(";
      for (uint32_t n = 1 + in.below(3); n > 0; --n) {
        node.children.push_back(compose(in, depth + 1, out));
        if (n > 1) *out += "|";
      }
      *out += ")";
      return node;
    }
    case 5:
    case 6: {
      node.kind = Node::Kind::kRepeat;
      *out += "(?:";
      node.children.push_back(compose(in, depth + 1, out));
      *out += ")";
      switch (in.below(5)) {
        case 0:
          *out += "*";
          node.max = ~0u;
          break;
        case 1:
          *out += "+";
          node.min = 1, node.max = ~0u;
          break;
        case 2:
          *out += "?";
          node.max = 1;
          break;
        case 3:
          node.min = in.below(5), node.max = node.min + in.below(6);
          *out += "{" + std::to_string(node.min) + "," + std::to_string(node.max) + "}";
          break;
        default:
          node.min = node.max = in.below(8);
          if (in.once_in(2)) node.max = ~0u;
          *out += "{" + std::to_string(node.min) + (node.max == ~0u ? ",}" : "}");
      }
      if (in.once_in(4)) *out += "?";
      return node;
    }
    case 7:
      for (uint32_t n = in.below(4); n > 0; --n) node.children.push_back(compose(in, depth + 1, out));
      return node;
    default:
      return char_set(in, out);
  }
}

/// A text of the language, or nearly: characters are drawn from the alphabet where it has one.
void sample(Choices& in, const Node& node, std::vector<uint32_t>* text) {
  if (text->size() > 40) return;
  switch (node.kind) {
    case Node::Kind::kChars: {
      const uint32_t start = in.below(std::size(kAlphabet));
      for (uint32_t i = 0; i < std::size(kAlphabet); ++i) {
        const uint32_t c = kAlphabet[(start + i) % std::size(kAlphabet)];
        if (node.has(c)) return text->push_back(c);
      }
      return;
    }
    case Node::Kind::kSeq:
      for (const Node& child : node.children) sample(in, child, text);
      return;
    case Node::Kind::kAlt:
      return sample(in, node.children[in.below(static_cast<uint32_t>(node.children.size()))], text);
    case Node::Kind::kRepeat: {
      const uint32_t spread = std::min(node.max - node.min, 3u);
      for (uint32_t n = node.min + in.below(spread + 1); n > 0; --n) sample(in, node.children[0], text);
      return;
    }
  }
}

bool accepts(Matcher* matcher, const std::vector<uint32_t>& text) {
  std::string bytes;
  for (uint32_t c : text) utf8_append(bytes, c);
  size_t read = 0;
  while (read < bytes.size() && matcher->accept(static_cast<uint8_t>(bytes[read]))) ++read;
  const bool whole = read == bytes.size() && matcher->is_complete();
  require(matcher->rollback(read));
  return whole;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto small = small_vocabulary(), bytes = bytes_only();
  Choices in(data, size);
  const bool as_it_is = in.once_in(8);
  const auto& vocabulary = in.once_in(16) ? small : bytes;
  GrammarSource source;
  source.kind = GrammarSource::Kind::kRegex;
  Node node;
  if (as_it_is) {
    source.text = in.rest();
  } else {
    node = compose(in, 0, &source.text);
    if (in.once_in(8)) source.text = "^(?:" + source.text + ")$";
  }
  const auto compiled = compile(source, vocabulary, small_limits());
  if (!compiled.ok()) {
    check_refusal(compiled.error());
    // Composed patterns are well formed and match something, but for a class without members.
    if (!as_it_is) require(compiled.error().code != ErrorCode::kUnsupported);
    return 0;
  }
  Matcher matcher(compiled->grammar);
  if (as_it_is) {
    walk(in, &matcher, 8);
    return 0;
  }
  for (int i = 0; i < 3; ++i) {
    std::vector<uint32_t> text;
    sample(in, node, &text);
    if (i == 2) {  // one character more, less or another
      const size_t at = text.empty() ? 0 : in.next() % text.size();
      if (text.empty() || in.once_in(2)) {
        text.insert(text.begin() + static_cast<long>(at), in.of(kAlphabet));
      } else if (in.once_in(2)) {
        text.erase(text.begin() + static_cast<long>(at));
      } else {
        text[at] = in.of(kAlphabet);
      }
    }
    if (text.size() > 60) continue;
    const bool expected = match(node, text, 1) >> text.size() & 1;
    require(accepts(&matcher, text) == expected);
  }
  return 0;
}

#include "text/thinking_markup.h"

#include <string>

namespace firesteel {

namespace {
constexpr std::string_view kOpen = "<think>", kClose = "</think>", kAssistant = "<|assistant|>";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
}  // namespace

size_t find_trusted(const MarkedText& text, std::string_view what, size_t from) {
  for (const MarkedText::Run& run : text.runs()) {
    if (!run.trusted || run.end <= from) continue;
    const size_t begin = run.begin > from ? run.begin : from;
    const size_t at = std::string_view(text.bytes()).substr(begin, run.end - begin).find(what);
    if (at != std::string_view::npos) return begin + at;
  }
  return std::string::npos;
}

size_t rfind_trusted(const MarkedText& text, std::string_view what) {
  for (auto run = text.runs().rbegin(); run != text.runs().rend(); ++run) {
    if (!run->trusted) continue;
    const size_t at = std::string_view(text.bytes()).substr(run->begin, run->end - run->begin).rfind(what);
    if (at != std::string_view::npos) return run->begin + at;
  }
  return std::string::npos;
}

OpenTurn open_turn(const MarkedText& text) {
  const size_t role = rfind_trusted(text, kAssistant);
  const size_t begin = role == std::string::npos ? 0 : role + kAssistant.size();
  const auto last = [&](std::string_view tag) {
    const size_t at = rfind_trusted(text, tag);
    return at == std::string::npos || at < begin ? std::string::npos : at;
  };
  const size_t open = last(kOpen), close = last(kClose);
  OpenTurn turn;
  turn.has_think_tag = open != std::string::npos || close != std::string::npos;
  turn.think_open = open != std::string::npos && (close == std::string::npos || open > close);
  return turn;
}

MarkedText without_effort_line(const MarkedText& text) {
  constexpr std::string_view kSystem = "<|system|>", kLine = "Reasoning Effort: ";
  const std::string& b = text.bytes();
  // Only the first system mark can be the template's line; whatever stands before it must be the template's
  // head.
  const size_t at = b.find(kSystem);
  if (at == std::string::npos) return text;
  const size_t line = at + kSystem.size();
  if (b.compare(line, kLine.size(), kLine) != 0 || !text.all_trusted(0, line + kLine.size())) return text;
  size_t end = line + kLine.size();
  while (end < b.size() && is_letter(b[end])) ++end;
  size_t begin = at;
  if (end < b.size() && b[end] == '\n' && text.all_trusted(end, end + 1)) {
    begin = line;  // more of the system message follows
    ++end;
  } else if (end < b.size() && !(b.compare(end, 2, "<|") == 0 && text.all_trusted(end, end + 2))) {
    return text;
  }
  MarkedText out = text.substr(0, begin);
  out.append(text, end, text.size());
  return out;
}

void close_think(MarkedText* text) {
  const OpenTurn turn = open_turn(*text);
  if (turn.think_open) {
    text->append(kClose, true);
  } else if (!turn.has_think_tag) {
    text->append(kOpen, true);
    text->append(kClose, true);
  }
}

}  // namespace firesteel

#include "api/reply_scores.h"

namespace firesteel::api {

void ReplyScores::push(size_t index, std::string_view bytes, bool in_think) {
  if (markers_ && (bytes == "<think>" || bytes == "</think>")) return;
  Text& text = in_think ? reasoning_ : content_;
  const size_t first = bytes.find_first_not_of(" \t\n\r\v\f");
  const bool blank = first == std::string_view::npos;
  if (trims_ && !in_think && text.known == 0) {
    if (blank) return;
    bytes.remove_prefix(first);
  }
  text.waiting.push_back({index, text.known, bytes.size(), blank});
  text.known += bytes.size();
}

void ReplyScores::show(const ReplyPiece& piece, std::vector<size_t>* tokens) {
  if (piece.kind == ReplyPiece::Kind::kCallArguments) return;
  if (piece.kind == ReplyPiece::Kind::kCall || piece.kind == ReplyPiece::Kind::kCallBegun) {
    // What waits is the call's markup, but for blanks before it, which are shown when text follows.
    for (Text* text : {&reasoning_, &content_}) {
      text->known = text->shown;
      size_t kept = 0;
      for (; kept < text->waiting.size() && text->waiting[kept].blank; ++kept)
        text->known += text->waiting[kept].bytes;
      text->waiting.resize(kept);
    }
    return;
  }
  Text& text = piece.kind == ReplyPiece::Kind::kReasoning ? reasoning_ : content_;
  text.shown += piece.text.size();
  while (!text.waiting.empty() && text.waiting.front().start < text.shown) {
    tokens->push_back(text.waiting.front().index);
    text.waiting.pop_front();
  }
}

}  // namespace firesteel::api

#include "text/tokenizer.h"

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace firesteel {

namespace {
// Offsets into a text are 32 bits wide in the splitter and the merger.
constexpr size_t kMaxText = 1u << 30;
}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(const MarkedText& text) const {
  return impl_->encode(text.bytes(), text.runs());
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text) const {
  return impl_->encode(text, {{0, text.size(), true}});
}

Result<std::vector<int32_t>> Tokenizer::Impl::encode(std::string_view bytes,
                                                     const std::vector<MarkedText::Run>& runs) const {
  if (bytes.size() >= kMaxText) return Error{ErrorCode::kLimit, "the text is larger than 1 GiB"};
  std::vector<int32_t> ids;
  ids.reserve(bytes.size() / 3);
  std::vector<uint32_t> ends;
  for (const AddedTokens::Segment& s : added.split(bytes, runs)) {
    if (s.id >= 0) {
      ids.push_back(s.id);
    } else {
      RETURN_IF_ERROR(encode_text(bytes.substr(s.begin, s.end - s.begin), ends, ids));
    }
  }
  return ids;
}

Status Tokenizer::Impl::encode_text(std::string_view text, std::vector<uint32_t>& ends,
                                    std::vector<int32_t>& ids) const {
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, utf8_valid_prefix(text));
    ends.clear();
    RETURN_IF_ERROR(pre.split(valid, ends));
    uint32_t begin = 0;
    for (uint32_t end : ends) {
      bpe.encode_piece(valid.substr(begin, end - begin), ids);
      begin = end;
    }
    text.remove_prefix(valid.size());
    if (text.empty()) break;
    ids.push_back(bpe.byte_id(static_cast<unsigned char>(text[0])));
    text.remove_prefix(1);
  }
  return {};
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= id_count()) return {};
  return impl_->bpe.tokens().of(static_cast<uint32_t>(id));
}

bool Tokenizer::is_added(int32_t id) const {
  return id >= 0 && id < id_count() && impl_->is_added[static_cast<size_t>(id)];
}

int32_t Tokenizer::added_id(std::string_view spelling) const { return impl_->added.find(spelling); }

int32_t Tokenizer::id_count() const { return static_cast<int32_t>(impl_->bpe.tokens().count()); }

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string bytes;
  for (int32_t id : ids) bytes += token_bytes(id);
  return utf8_lossy(bytes);
}

}  // namespace firesteel

#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer_regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/check.h"

namespace firesteel {

namespace {

// Per match. A sound pattern needs a few steps per character; these leave room for one backtrack over a long
// run and end a runaway pattern in well under a second.
constexpr uint32_t kMatchLimitBase = 200'000;
constexpr uint32_t kMatchLimitPerByte = 8;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr uint32_t kParensLimit = 100;

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using CompileContextPtr = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;

Error out_of_memory() { return {ErrorCode::kLimit, "no memory for a pattern match"}; }

}  // namespace

struct RegexSplitter::Impl {
  CodePtr code;
};

RegexSplitter::RegexSplitter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

Result<RegexSplitter> RegexSplitter::compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, translate_pattern(pattern));
  const CompileContextPtr context(pcre2_compile_context_create(nullptr));
  if (!context) return out_of_memory();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kParensLimit);
  int error = 0;
  PCRE2_SIZE error_at = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &error_at,
                                 context.get()));
  if (!impl->code) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return Error{ErrorCode::kInvalidFile,
                 std::string("the pattern does not compile: ") + reinterpret_cast<const char*>(text)};
  }
  // Where the system forbids writable code pages this fails and the interpreter does the same, slower.
  (void)pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  return RegexSplitter(std::move(impl));
}

Status RegexSplitter::split(std::string_view text, uint32_t base, std::vector<uint32_t>& ends) const {
  const MatchDataPtr data(pcre2_match_data_create(1, nullptr));
  const MatchContextPtr context(pcre2_match_context_create(nullptr));
  if (!data || !context) return out_of_memory();
  const auto bytes = static_cast<uint32_t>(std::min<size_t>(text.size(), 1u << 28));
  pcre2_set_match_limit(context.get(), kMatchLimitBase + kMatchLimitPerByte * bytes);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);

  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t from = 0;     // where the next match may begin
  size_t covered = 0;  // end of the last piece
  const auto piece_until = [&](size_t end) {
    if (end == covered) return;
    ends.push_back(base + static_cast<uint32_t>(end));
    covered = end;
  };
  while (from < text.size()) {
    int rc = pcre2_match(impl_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, data.get(),
                         context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(impl_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data.get(), context.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return Error{ErrorCode::kLimit, "splitting the text into words takes too many steps"};
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data.get());
    const size_t begin = span[0], end = span[1];
    if (end <= begin) {  // an empty match cuts where it is; the search goes on one character later
      piece_until(begin);
      from = std::max(from, begin) + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    piece_until(begin);
    piece_until(end);
    from = end;
  }
  piece_until(text.size());
  return {};
}

}  // namespace firesteel

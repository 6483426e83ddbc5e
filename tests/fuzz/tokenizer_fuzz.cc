// Three entries by the first byte: any text through a small tokenizer against its own invariants, any bytes
// as a tokenizer.json, and any pattern over any text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/pretokenizer_regex.h"
#include "text/pretokenizer_words.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace firesteel;

void require(bool ok) {
  if (!ok) std::abort();
}

/// All bytes, a few merges, two added tokens.
std::string small_tokenizer() {
  std::string json =
      R"({"added_tokens":[{"id":300,"content":"<x>"},{"id":301,"content":"<xy>","rstrip":true}],"model":{
    "type":"BPE","ignore_merges":true,"merges":["a a",["aa","aa"],["a","b"],["b","aa"]],"vocab":{)";
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    json += '"';
    if (b == '"' || b == '\\') json += '\\';
    utf8_append(json, printable ? b : next++);
    json += "\":" + std::to_string(b) + ",";
  }
  json +=
      R"("aa":256,"aaaa":257,"ab":258,"baa":259}},"decoder":{"type":"ByteLevel"},"pre_tokenizer":{"type":"Sequence",
    "pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":)";
  json += '"';
  for (char c : kWordsPattern) {
    if (c == '\\') json += '\\';
    json += c;
  }
  return json + R"("}},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}})";
}

void text_entry(std::string_view input) {
  static const Tokenizer tokenizer = Tokenizer::parse(small_tokenizer(), "fuzz").value();
  MarkedText text;
  std::string bytes;
  while (!input.empty()) {  // runs: one byte of length and provenance, then the bytes
    const auto head = static_cast<unsigned char>(input[0]);
    const std::string_view part = input.substr(1, head >> 1);
    text.append(part, head & 1);
    bytes += part;
    input.remove_prefix(1 + part.size());
  }
  std::string back;
  const auto ids = tokenizer.encode(text);
  require(ids.ok());
  bool stripped = false;
  for (int32_t id : *ids) {
    back += tokenizer.token_bytes(id);
    stripped |= id == 301;
  }
  require(stripped || back == bytes);
  require(tokenizer.decode(*ids) == utf8_lossy(back));
  Utf8Stream stream;
  std::string streamed;
  for (int32_t id : *ids) streamed += stream.push(tokenizer.token_bytes(id));
  require(streamed + stream.finish() == utf8_lossy(back));
}

void file_entry(std::string_view input) {
  const auto tokenizer = Tokenizer::parse(input, "fuzz");
  if (tokenizer) (void)tokenizer->encode("The <x> 'sample' 123\n\n  \xe4\xb8\xad aaaa").ok();
}

void pattern_entry(std::string_view input) {
  const size_t cut = input.find('\0');
  const auto regex = RegexSplitter::compile(input.substr(0, cut));
  if (!regex) return;
  std::string_view text = cut == input.npos ? std::string_view() : input.substr(cut + 1);
  text = text.substr(0, utf8_valid_prefix(text));
  std::vector<uint32_t> ends;
  if (!regex->split(text, 0, ends).ok()) return;
  uint32_t last = 0;
  for (uint32_t end : ends) {
    require(end > last);
    last = end;
  }
  require(last == text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0:
      text_entry(rest);
      break;
    case 1:
      file_entry(rest);
      break;
    default:
      pattern_entry(rest);
      break;
  }
  return 0;
}

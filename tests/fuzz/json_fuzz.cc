// The JSON front against nlohmann's own: what ours takes it writes back as JSON that it reads as the same
// value, and both agree on what JSON is, apart from the differences that base/json.h lists.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto ours = firesteel::parse_json(text);
  const Json theirs = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!ours.ok()) {
    if (ours.error().message.empty() ||
        firesteel::find_invalid_utf8(ours.error().message) != std::string::npos)
      abort();
    const bool listed = ours.error().message.find("nested too deeply") != std::string::npos ||
                        text.find('\0') != std::string_view::npos;
    if (!theirs.is_discarded() && !listed) abort();
    return 0;
  }
  const std::string compact = firesteel::dump_json(*ours);
  if (firesteel::find_invalid_utf8(compact) != std::string::npos) abort();
  firesteel::JsonStyle style = firesteel::python_style();
  style.ascii_only = true;
  style.indent = 1;
  for (const std::string& written : {compact, firesteel::dump_json(*ours, style)}) {
    const auto again = firesteel::parse_json(written);
    if (!again.ok() || firesteel::dump_json(*again) != compact) abort();
  }
  // Lone surrogates are an error there, big integers become floats, and of two equal keys the first value may
  // win.
  if (theirs.is_discarded() && text.find("\\u") == std::string_view::npos) abort();
  return 0;
}

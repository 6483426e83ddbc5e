// What the node oracles ask: one JSON request a line on standard input, one JSON answer a line.
//   grammar_probe VOCABULARY
//   {"kind":"schema|regex|ebnf|choice|object", "text":…, "strict":…, "walks":N, "seed":S, "free":T,
//   "masks":bool}
//       → {"walks":[{"text","tokens":[…],"finished","stuck","masks":["hex",…]}], "unsupported":[…]} or
//       {"error","code"}
//   … with "accept":["text",…] → {"accepts":[true,…]}: byte by byte, from the start to a possible end
#include <iostream>
#include <random>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "vocabularies.h"
#include "walker.h"

namespace {

using namespace firesteel;
using namespace firesteel::grammar;
using Json = nlohmann::ordered_json;

std::string hex(const std::vector<uint32_t>& mask) {
  std::string out;
  char buffer[9];
  for (uint32_t word : mask) {
    std::snprintf(buffer, sizeof buffer, "%08x", word);
    out += buffer;
  }
  return out;
}

Json answer(const Json& request, const std::shared_ptr<const Vocabulary>& vocabulary) {
  GrammarSource source;
  const std::string kind = request.value("kind", "schema");
  source.kind = kind == "regex"    ? GrammarSource::Kind::kRegex
                : kind == "ebnf"   ? GrammarSource::Kind::kEbnf
                : kind == "choice" ? GrammarSource::Kind::kChoice
                : kind == "object" ? GrammarSource::Kind::kJsonObject
                                   : GrammarSource::Kind::kJsonSchema;
  source.text = request.value("text", "");
  source.strict = request.value("strict", false);
  const auto compiled = compile(source, vocabulary);
  if (!compiled.ok())
    return {{"error", compiled.error().message}, {"code", static_cast<int>(compiled.error().code)}};
  Json out = {{"unsupported", compiled->unsupported}, {"states", compiled->grammar->grammar().state_count()}};
  if (request.contains("accept")) {
    out["accepts"] = Json::array();
    for (const Json& text : request["accept"]) {
      Matcher matcher(compiled->grammar);
      bool fits = true;
      for (char c : text.get<std::string>()) fits = fits && matcher.accept(static_cast<uint8_t>(c));
      out["accepts"].push_back(fits && matcher.is_complete());
    }
    return out;
  }
  std::mt19937_64 random(request.value("seed", uint64_t{1}));
  const bool with_masks = request.value("masks", false);
  out["walks"] = Json::array();
  for (int i = 0; i < request.value("walks", 1); ++i) {
    Matcher matcher(compiled->grammar);
    Json masks = Json::array();
    const Walk walk = walk_masks(&matcher, &random, request.value("free", size_t{40}), 2000,
                                 [&](Matcher& m, std::vector<uint32_t>& mask) {
                                   m.fill_mask(mask);
                                   if (with_masks) masks.push_back(hex(mask));
                                 });
    Json one = {
        {"text", walk.text}, {"tokens", walk.tokens}, {"finished", walk.finished}, {"stuck", walk.stuck}};
    if (with_masks) one["masks"] = std::move(masks);
    out["walks"].push_back(std::move(one));
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto vocabulary = vocabulary_from_file(argv[1]);
  if (!vocabulary) return 1;
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = parse_json(line);
    std::cout << (request.ok() ? dump_json(answer(*request, vocabulary)) : "{}") << "\n" << std::flush;
  }
  return 0;
}

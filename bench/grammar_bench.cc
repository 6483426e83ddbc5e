// Grammar engine: time to compile and time of one mask, p50 and p99, over a vocabulary from a file.
//   node tests/oracle/large_vocabulary.mjs VOCABULARY; grammar_bench VOCABULARY [SCHEMAS.jsonl]
// Masks are timed at every token of random replies, each grammar and each reply fresh; a mask that a table
// answers and one that walks the trie count alike. SCHEMAS: one JSON schema a line instead of those here.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../tests/grammar/vocabularies.h"
#include "../tests/grammar/walker.h"
#include "grammar/compiler.h"

namespace firesteel::grammar {
namespace {

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

struct Times {
  std::vector<double> ms;
  double at(double share) {
    if (ms.empty()) return 0;
    std::sort(ms.begin(), ms.end());
    return ms[std::min(ms.size() - 1, static_cast<size_t>(share * static_cast<double>(ms.size())))];
  }
  void print(const char* what) {
    std::printf("%-44s n %6zu  p50 %8.4f  p90 %8.4f  p99 %8.4f  max %8.4f ms\n", what, ms.size(), at(0.5),
                at(0.9), at(0.99), at(1.0));
  }
};

std::string wide_schema(int members) {
  std::string text = R"({"type":"object","properties":{)", required;
  for (int i = 0; i < members; ++i) {
    static constexpr const char* kTypes[] = {R"({"type":"string"})", R"({"type":"integer"})",
                                             R"({"type":"boolean"})",
                                             R"({"type":"array","items":{"type":"string"}})"};
    const std::string name = "\"field_" + std::to_string(i * 37 % members) + "_name\"";
    text += (i ? "," : "") + name + ":" + kTypes[i % 4];
    if (i % 2) required += (required.empty() ? "" : ",") + name;
  }
  return text + R"(},"required":[)" + required + "]}";
}

std::vector<std::pair<std::string, GrammarSource>> sources() {
  const auto schema = [](std::string text) {
    return GrammarSource{GrammarSource::Kind::kJsonSchema, std::move(text), false, {}, {}};
  };
  return {
      {"json object", {GrammarSource::Kind::kJsonObject, "", false, {}, {}}},
      {"invoice",
       schema(R"({"type":"object","additionalProperties":false,"required":["vendor","number","total"],
        "properties":{"vendor":{"type":"string"},"number":{"type":"integer","minimum":1},"total":{"type":"number","minimum":0},
        "currency":{"enum":["EUR","USD",null]}}})")},
      {"steps",
       schema(R"({"$defs":{"Step":{"type":"object","properties":{"explanation":{"type":"string"},"output":
        {"type":"string"}},"required":["explanation","output"]}},"type":"object","properties":{"steps":{"type":"array","items":
        {"$ref":"#/$defs/Step"}},"final_answer":{"type":"string"}},"required":["steps","final_answer"]})")},
      {"lengths",
       schema(R"({"type":"object","properties":{"title":{"type":"string","minLength":3,"maxLength":60},"body":
        {"type":"string","maxLength":500},"tags":{"type":"array","items":{"type":"string","maxLength":12},"maxItems":5}},
        "required":["title","body","tags"]})")},
      {"patterns",
       schema(R"({"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{3}-\\d{4}$"},"slug":
        {"type":"string","pattern":"^[a-z0-9]+(-[a-z0-9]+)*$"},"when":{"type":"string","format":"date-time"},"mail":
        {"type":"string","format":"email"},"note":{"type":"string","pattern":"TODO"}},"required":["id","slug","when","mail","note"]})")},
      {"other members",
       schema(R"({"type":"object","properties":{"name":{"type":"string"},"namespace":{"type":"string"},
        "labels":{"type":"object","additionalProperties":{"type":"string"}}},"required":["name"],"additionalProperties":
        {"type":["string","number","boolean"]}})")},
      {"tree",
       schema(
           R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},"children":{"type":"array",
        "items":{"$ref":"#/$defs/node"}}},"required":["value"]}},"$ref":"#/$defs/node"})")},
      {"anyOf of 12 objects", schema([] {
         std::string text = R"({"anyOf":[)";
         for (int i = 0; i < 12; ++i)
           text += (i ? "," : "") + std::string(R"({"type":"object","properties":{"type":{"const":"event_)") +
                   std::to_string(i) + R"("},"payload_)" + std::to_string(i) +
                   R"(":{"type":"string"}},"required":["type","payload_)" + std::to_string(i) + R"("]})";
         return text + "]}";
       }())},
      {"20 members", schema(wide_schema(20))},
      {"200 members", schema(wide_schema(200))},
      {"regex", {GrammarSource::Kind::kRegex, R"(([A-Z][a-z]{1,20} ){3,8}\d+(\.\d+)?)", false, {}, {}}},
      {"regex, any text", {GrammarSource::Kind::kRegex, R"([\s\S]*END)", false, {}, {}}},
      {"ebnf",
       {GrammarSource::Kind::kEbnf,
        "root ::= expr\nexpr ::= expr [-+*/] term | term\nterm ::= [0-9]+ | \"(\" expr "
        "\")\" | [a-z]+ \"(\" (expr (\",\" expr)*)? \")\"",
        false,
        {},
        {}}},
      {"choice",
       {GrammarSource::Kind::kChoice, R"(["positive","negative","neutral","mixed"])", false, {}, {}}},
  };
}

int run(const char* path, const char* schemas) {
  const auto began = std::chrono::steady_clock::now();
  const auto vocabulary = vocabulary_from_file(path);
  if (!vocabulary) return 1;
  std::printf("vocabulary: %d tokens, %u trie nodes, read in %.0f ms\n", vocabulary->size(),
              vocabulary->node_count(),
              std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
  auto list = sources();
  if (schemas != nullptr) {
    list.clear();
    std::ifstream in(schemas);
    for (std::string line; std::getline(in, line);)
      list.push_back({"", {GrammarSource::Kind::kJsonSchema, line, false, {}, {}}});
  }
  Times compiling, all_masks, accepting, rolling;
  std::mt19937_64 random(7);
  for (const auto& [name, source] : list) {
    double before = cpu_ms();
    const auto compiled = compile(source, vocabulary);
    const double spent = cpu_ms() - before;
    if (!compiled.ok()) continue;
    compiling.ms.push_back(spent);
    Times masks;
    for (int reply = 0; reply < (schemas != nullptr ? 2 : 8); ++reply) {
      Matcher matcher(compiled->grammar);
      walk_masks(&matcher, &random, 40, 300, [&](Matcher& m, std::vector<uint32_t>& mask) {
        before = cpu_ms();
        m.fill_mask(mask);
        const double t = cpu_ms() - before;
        masks.ms.push_back(t);
        all_masks.ms.push_back(t);
        const std::vector<int32_t> ids = allowed_ids(mask);
        if (ids.empty()) return;
        before = cpu_ms();
        m.accept(ids[ids.size() / 2]);
        accepting.ms.push_back(cpu_ms() - before);
        before = cpu_ms();
        m.rollback(1);
        rolling.ms.push_back(cpu_ms() - before);
      });
    }
    if (schemas == nullptr) {
      std::printf("%-22s compile %8.2f ms, %6u states, %8zu KiB; ", name.c_str(), spent,
                  compiled->grammar->grammar().state_count(), compiled->grammar->bytes() >> 10);
      masks.print("mask");
    }
  }
  compiling.print("compile, all");
  all_masks.print("mask, all");
  accepting.print("accept");
  rolling.print("rollback");
  return 0;
}

}  // namespace
}  // namespace firesteel::grammar

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: grammar_bench VOCABULARY [SCHEMAS.jsonl]\n");
    return 2;
  }
  return firesteel::grammar::run(argv[1], argc > 2 ? argv[2] : nullptr);
}

// The tokenizer as its users see it: the bundled file, marked text, damaged files.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

namespace firesteel {
namespace {

using nlohmann::ordered_json;

std::string demo_text() {
  static const std::string text = [] {
    std::ostringstream out;
    out << std::ifstream(FIRESTEEL_SOURCE_DIR "/models/demo/tokenizer.json", std::ios::binary).rdbuf();
    return out.str();
  }();
  return text;
}

const Tokenizer& demo() {
  static const Tokenizer tokenizer =
      Tokenizer::load(FIRESTEEL_SOURCE_DIR "/models/demo/tokenizer.json").value();
  return tokenizer;
}

std::vector<int32_t> encode(const MarkedText& text) { return demo().encode(text).value(); }
std::vector<int32_t> encode(std::string_view text) { return demo().encode(text).value(); }

TEST(Tokenizer, PromptsOfTheDemoModel) {
  std::ifstream in(FIRESTEEL_SOURCE_DIR "/tests/data/demo/goldens.json");
  ASSERT_TRUE(in);
  const ordered_json golden = ordered_json::parse(in);
  ASSERT_FALSE(golden["prompts"].empty());
  for (const auto& c : golden["prompts"]) {
    // What the model wrote is its own tokens' spelling, and a prompt encodes to itself.
    EXPECT_EQ(demo().decode(c["greedy_ids"].get<std::vector<int32_t>>()), c["text"].get<std::string>());
    const auto prompt = c["prompt_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(encode(demo().decode(prompt)), prompt) << c["name"];
  }
}

TEST(Tokenizer, AddedTokens) {
  const int32_t think = demo().added_id("<think>"), user = demo().added_id("<|user|>");
  ASSERT_GE(think, 0);
  ASSERT_GE(user, 0);
  EXPECT_EQ(demo().added_id("<thin"), -1);
  EXPECT_TRUE(demo().is_added(think));
  EXPECT_FALSE(demo().is_added(0));
  EXPECT_FALSE(demo().is_added(-1));
  EXPECT_FALSE(demo().is_added(demo().id_count()));
  EXPECT_EQ(demo().token_bytes(think), "<think>");
  EXPECT_EQ(demo().token_bytes(-1), "");
  EXPECT_EQ(demo().token_bytes(demo().id_count()), "");
  EXPECT_EQ(encode("<|user|><think>"), (std::vector<int32_t>{user, think}));
}

TEST(Tokenizer, OnlyTrustedBytesMakeAnAddedToken) {
  const int32_t user = demo().added_id("<|user|>");
  const auto has = [&](const MarkedText& text) {
    const auto ids = encode(text);
    return std::find(ids.begin(), ids.end(), user) != ids.end();
  };
  EXPECT_TRUE(has(MarkedText::trusted("a<|user|>b")));
  EXPECT_FALSE(has(MarkedText::from_caller("a<|user|>b")));
  const std::string spelling = "<|user|>";
  for (size_t cut = 0; cut <= spelling.size(); ++cut) {
    for (bool first : {false, true}) {
      MarkedText text;
      text.append(spelling.substr(0, cut), first);
      text.append(spelling.substr(cut), !first);
      EXPECT_EQ(has(text), first ? cut == spelling.size() : cut == 0) << cut << first;
      text.append("<|user|>", true);
      EXPECT_TRUE(has(text));
    }
  }
}

TEST(Tokenizer, ProvenanceDoesNotMoveTheBordersOfOrdinaryText) {
  const std::string text = "The answer, it's 12345 naïve words\n\n  and code: x = y[0];";
  const auto whole = encode(text);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    MarkedText marked;
    marked.append(text.substr(0, cut), true);
    marked.append(text.substr(cut), false);
    EXPECT_EQ(encode(marked), whole) << cut;
  }
}

TEST(Tokenizer, EveryByteStringComesBack) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes;
    for (size_t n = rng() % 30; n > 0; --n)
      bytes += static_cast<char>(rng() % 3 == 0 ? rng() : 'a' + rng() % 26);
    const auto ids = encode(MarkedText::from_caller(bytes));
    std::string back;
    for (int32_t id : ids) back += demo().token_bytes(id);
    ASSERT_EQ(back, bytes);
  }
}

TEST(Tokenizer, InvalidBytesStandAlone) {
  const auto one = [&](const std::string& s) { return encode(std::string_view(s)); };
  std::vector<int32_t> expected = one("the word");
  for (const char* byte : {"\xe2", "\x82"}) expected.push_back(encode(MarkedText::from_caller(byte))[0]);
  for (int32_t id : one(" the word")) expected.push_back(id);
  EXPECT_EQ(one("the word\xe2\x82 the word"), expected);
  EXPECT_EQ(demo().decode(expected), "the word\xef\xbf\xbd the word");
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const auto expected = encode(demo_text().substr(0, 20'000));
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) equal += encode(demo_text().substr(0, 20'000)) == expected;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(equal, 20);
}

TEST(Tokenizer, AMegabyteOfOneThing) {
  for (const char* unit : {"a", " ", "\n", "1", "!", "\xff", "\xe4\xb8\xad", "<|user|>", "<|use"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    const auto ids = encode(std::string_view(text));
    EXPECT_GT(ids.size(), 0u);
    if (*unit != '\xff') {
      EXPECT_EQ(demo().decode(ids), text);
    }
  }
}

// --- files ---

using Change = void (*)(ordered_json&);

Error error_of(const std::string& text) {
  const auto r = Tokenizer::parse(text, "FILE");
  if (r.ok()) return {ErrorCode::kInternal, "accepted"};
  EXPECT_EQ(r.error().message.substr(0, 6), "FILE: ");
  EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
  return r.error();
}

TEST(TokenizerFile, DamagedFilesAreOneLine) {
  const std::pair<const char*, Change> cases[] = {
      {"it has no model", [](ordered_json& j) { j.erase("model"); }},
      {"it has no model", [](ordered_json& j) { j["model"] = 3; }},
      {"lacks the byte", [](ordered_json& j) { j["model"].erase("vocab"); }},
      {"vocab is not an object", [](ordered_json& j) { j["model"]["vocab"] = ordered_json::array({1}); }},
      {"merges is not a list", [](ordered_json& j) { j["model"]["merges"] = "a b"; }},
      {"lacks the byte 33",
       [](ordered_json& j) {
         j["model"]["vocab"].erase("!");
         j["model"]["merges"] = ordered_json::array();
       }},
      {"two tokens have the id 5", [](ordered_json& j) { j["model"]["vocab"]["zzzz"] = 5; }},
      {"id is negative", [](ordered_json& j) { j["model"]["vocab"]["zzzz"] = -1; }},
      {"id is too large", [](ordered_json& j) { j["model"]["vocab"]["zzzz"] = 1ull << 40; }},
      {"not a whole number", [](ordered_json& j) { j["model"]["vocab"]["zzzz"] = 1.5; }},
      {"not a whole number", [](ordered_json& j) { j["model"]["vocab"]["zzzz"] = ordered_json::object(); }},
      {"id is not a number", [](ordered_json& j) { j["model"]["vocab"]["zzzz"] = "5"; }},
      {"merge 0 is not about tokens", [](ordered_json& j) { j["model"]["merges"][0][0] = "zqzq"; }},
      {"merge 1 is not about tokens",
       [](ordered_json& j) {
         j["model"]["merges"][1] = {"<", "zqzq"};
       }},
      {"more than two parts", [](ordered_json& j) { j["model"]["merges"][7].push_back("a"); }},
      {"fewer than two parts", [](ordered_json& j) { j["model"]["merges"][7].erase(0); }},
      {"not made of strings", [](ordered_json& j) { j["model"]["merges"][7][0] = 1; }},
      {"not made of strings", [](ordered_json& j) { j["model"]["merges"][7] = nullptr; }},
      {"not two symbols and a blank", [](ordered_json& j) { j["model"]["merges"][7] = "ab"; }},
      {"not two symbols and a blank", [](ordered_json& j) { j["model"]["merges"][7] = "a b c"; }},
      {"not true or false", [](ordered_json& j) { j["model"]["ignore_merges"] = 1; }},
      {"added_tokens is not a list", [](ordered_json& j) { j["added_tokens"] = 3; }},
      {"an added token is not an object", [](ordered_json& j) { j["added_tokens"][0] = 3; }},
      {"no usable id", [](ordered_json& j) { j["added_tokens"][0]["id"] = -3; }},
      {"no content", [](ordered_json& j) { j["added_tokens"][0].erase("content"); }},
      {"is empty", [](ordered_json& j) { j["added_tokens"][0]["content"] = ""; }},
      {"is too long", [](ordered_json& j) { j["added_tokens"][0]["content"] = std::string(5000, 'x'); }},
      {"the spelling of another",
       [](ordered_json& j) { j["added_tokens"][0]["content"] = j["added_tokens"][1]["content"]; }},
      {"two added tokens have the id",
       [](ordered_json& j) { j["added_tokens"][0]["id"] = j["added_tokens"][1]["id"]; }},
      {"the id of another token", [](ordered_json& j) { j["added_tokens"][0]["id"] = 5; }},
      {"another id in the vocabulary", [](ordered_json& j) { j["added_tokens"][0]["content"] = "er"; }},
      {"not true or false", [](ordered_json& j) { j["added_tokens"][0]["lstrip"] = "no"; }},
      {"pre_tokenizer",
       [](ordered_json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "("; }},
  };
  for (const auto& [message, change] : cases) {
    ordered_json json = ordered_json::parse(demo_text());
    change(json);
    const Error e = error_of(json.dump());
    EXPECT_EQ(e.code, ErrorCode::kInvalidFile) << message << " / " << e.message;
    EXPECT_NE(e.message.find(message), std::string::npos) << message << " / " << e.message;
  }
}

TEST(TokenizerFile, OtherKindsAreRefusedByName) {
  const std::pair<const char*, Change> cases[] = {
      {"'Unigram'", [](ordered_json& j) { j["model"]["type"] = "Unigram"; }},
      {"dropout", [](ordered_json& j) { j["model"]["dropout"] = 0.1; }},
      {"end_of_word_suffix", [](ordered_json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"'NFC'",
       [](ordered_json& j) {
         j["normalizer"] = {{"type", "NFC"}};
       }},
      {"'Lowercase'",
       [](ordered_json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}};
       }},
      {"decoder",
       [](ordered_json& j) {
         j["decoder"] = {{"type", "Metaspace"}};
       }},
      {"decoder", [](ordered_json& j) { j.erase("decoder"); }},
      {"'BertProcessing'",
       [](ordered_json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       }},
      {"adds tokens",
       [](ordered_json& j) {
         j["post_processor"] = ordered_json::parse(
             R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}}]})");
       }},
      {"single_word", [](ordered_json& j) { j["added_tokens"][0]["single_word"] = true; }},
      {"'Whitespace'",
       [](ordered_json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
  };
  for (const auto& [message, change] : cases) {
    ordered_json json = ordered_json::parse(demo_text());
    change(json);
    const Error e = error_of(json.dump());
    EXPECT_EQ(e.code, ErrorCode::kUnsupported) << message << " / " << e.message;
    EXPECT_NE(e.message.find(message), std::string::npos) << message << " / " << e.message;
  }
}

TEST(TokenizerFile, NotJson) {
  EXPECT_EQ(error_of("").code, ErrorCode::kInvalidFile);
  EXPECT_EQ(error_of("[]").code, ErrorCode::kInvalidFile);
  EXPECT_EQ(error_of("3").code, ErrorCode::kInvalidFile);
  EXPECT_EQ(error_of("{\"model\":{},\"model\":{}}").message, "FILE: a key is there twice");
  EXPECT_EQ(error_of("{\"model\":{\"vocab\":{},\"vocab\":{}}}").message, "FILE: model.vocab is there twice");
  EXPECT_EQ(error_of("{\"a\":\"\xff\"}").code, ErrorCode::kInvalidFile);
  EXPECT_NE(error_of(std::string(100'000, '[')).message, "accepted");
  EXPECT_NE(error_of("{\"a\":" + std::string(100'000, '[')).message.find("nested too deeply"),
            std::string::npos);
  for (size_t cut = 0; cut < 200; ++cut)
    EXPECT_EQ(error_of(demo_text().substr(0, cut * 601)).code, ErrorCode::kInvalidFile);
}

TEST(TokenizerFile, MergesInEitherFormAndTheLaterRuleWins) {
  ordered_json json = ordered_json::parse(demo_text());
  for (auto& merge : json["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const auto spaced = Tokenizer::parse(json.dump(), "x");
  ASSERT_TRUE(spaced.ok());
  const std::string text = demo_text().substr(0, 5000);
  EXPECT_EQ(spaced->encode(text).value(), encode(text));
}

TEST(TokenizerFile, AddedTokensOfTheVocabularyAreNotReachedByMerging) {
  ordered_json json = ordered_json::parse(demo_text());
  // "er" is an ordinary token made by the first merge; declared as added, a caller's text must not become it.
  const int32_t er = json["model"]["vocab"]["er"].get<int32_t>();
  json["added_tokens"].push_back({{"id", er}, {"content", "er"}, {"special", true}});
  const auto tokenizer = Tokenizer::parse(json.dump(), "x");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const auto caller = tokenizer->encode(MarkedText::from_caller("er")).value();
  EXPECT_EQ(caller.size(), 2u);
  EXPECT_EQ(tokenizer->encode("er").value(), (std::vector<int32_t>{er}));
}

TEST(TokenizerFile, LoadReportsTheSystemsWord) {
  const auto r = Tokenizer::load("/nonexistent/tokenizer.json");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().code, ErrorCode::kNotFound);
  const auto folder = Tokenizer::load("/");
  ASSERT_FALSE(folder.ok());
}

}  // namespace
}  // namespace firesteel

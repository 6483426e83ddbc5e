#include "app/bench_prompts.h"

#include <array>
#include <random>

namespace firesteel {
namespace {

constexpr std::array<const char*, 12> kCodingTasks = {
    "Write a Python function that merges overlapping intervals, with doctests.",
    "Write a C function that reverses a singly linked list in place, with comments.",
    "Write a Go program that counts the words of a file concurrently.",
    "Write a Rust implementation of a fixed-size ring buffer with unit tests.",
    "Write a JavaScript class for an LRU cache and show how it is used.",
    "Write a C++ template for a binary heap with push, pop and top.",
    "Write a Java method that parses an ISO 8601 date without any library.",
    "Write a SQL schema and queries for a small lending library.",
    "Write a Python script that finds duplicate files below a folder by hash.",
    "Write a TypeScript function that deep-compares two JSON values.",
    "Write a C program that evaluates arithmetic expressions with parentheses.",
    "Write a shell script that rotates log files and keeps the last seven.",
};

constexpr std::array<const char*, 64> kWords = {
    "river",  "stone",   "keeps",   "silver",  "the",     "over",    "under",   "morning",
    "clerk",  "reads",   "letters", "slowly",  "harbour", "winter",  "a",       "carries",
    "seven",  "boxes",   "along",   "quiet",   "streets", "while",   "gardens", "open",
    "and",    "travel",  "bright",  "engines", "wait",    "for",     "signals", "near",
    "old",    "bridges", "farmers", "count",   "their",   "sheep",   "before",  "evening",
    "glass",  "towers",  "reflect", "distant", "hills",   "with",    "careful", "hands",
    "people", "repair",  "clocks",  "that",    "ring",    "at",      "noon",    "small",
    "boats",  "return",  "after",   "storms",  "maps",    "mention", "every",   "lighthouse"};

}  // namespace

std::string bench_question(std::string_view kind, int index, int count, std::string_view run) {
  std::string question;
  if (kind == "structured") {
    question = "Write the numbers from 1 to 200 in order, separated by single spaces, and nothing else.";
  } else if (kind == "prose") {
    question =
        "Explain thoroughly and step by step how a hash map works: hashing, collisions and how they are "
        "resolved, resizing, and the complexity of every operation.";
  } else {
    question = kCodingTasks[static_cast<size_t>(index) % kCodingTasks.size()];
  }
  return question + " (stream " + std::to_string(index + 1) + "/" + std::to_string(count) + ", run " +
         std::string(run) + ")";
}

std::string filler_text(int64_t words, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::string out;
  int in_sentence = 0;
  for (int64_t i = 0; i < words; ++i) {
    std::string word = kWords[rng() % kWords.size()];
    if (in_sentence == 0) word[0] = static_cast<char>(word[0] - 'a' + 'A');
    out += word;
    if (++in_sentence > 6 && rng() % 4 == 0) {
      out += rng() % 5 == 0 ? ".\n" : ". ";
      in_sentence = 0;
    } else {
      out += " ";
    }
  }
  return out;
}

std::string passphrase(uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::string out;
  for (int i = 0; i < 3; ++i) {
    if (i > 0) out += "-";
    out += kWords[rng() % kWords.size()];
  }
  return out;
}

}  // namespace firesteel

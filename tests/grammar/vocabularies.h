// Vocabularies for tests: small ones made up, and lists from files.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/vocabulary.h"

namespace firesteel::grammar {

/// All bytes as ids 0 to 255, then `words`, then one special token and the end id as the last.
inline std::shared_ptr<const Vocabulary> small_vocabulary(std::vector<std::string> words) {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (std::string& word : words) tokens.push_back(std::move(word));
  tokens.push_back("<tag>");
  tokens.push_back("<end>");
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const auto size = static_cast<int32_t>(tokens.size());
  const std::vector<int32_t> special{size - 2}, end{size - 1};
  return Vocabulary::create(views, special, end).value();
}

/// One token a line in hexadecimal; an empty line is a special token, the last line the end id.
inline std::shared_ptr<const Vocabulary> vocabulary_from_file(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> tokens;
  for (std::string line; std::getline(in, line);) {
    std::string bytes;
    for (size_t i = 0; i + 1 < line.size(); i += 2)
      bytes += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    tokens.push_back(bytes);
  }
  if (tokens.empty()) return nullptr;
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  std::vector<int32_t> special;
  const std::vector<int32_t> end{static_cast<int32_t>(tokens.size()) - 1};
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i].empty()) special.push_back(static_cast<int32_t>(i));
  }
  return Vocabulary::create(views, special, end).value();
}

}  // namespace firesteel::grammar

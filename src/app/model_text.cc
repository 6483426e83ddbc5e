#include "app/model_text.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {
namespace {

constexpr std::uintmax_t kMaxTextFile = 16u << 20;

Result<std::string> read_text(const std::filesystem::path& path) {
  std::error_code ec;
  const auto size = std::filesystem::file_size(path, ec);
  if (ec) return Error{ErrorCode::kNotFound, path.string() + ": " + ec.message()};
  if (size > kMaxTextFile) return Error{ErrorCode::kInvalidFile, path.string() + ": larger than 16 MiB"};
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in && !in.eof()) return Error{ErrorCode::kIo, path.string() + ": cannot be read"};
  return text;
}

/// The template's text and the file it came from; empty text when there is none.
Result<std::pair<std::string, std::string>> find_template(const std::filesystem::path& dir) {
  const auto own = dir / "chat_template.jinja";
  if (std::filesystem::exists(own)) {
    ASSIGN_OR_RETURN(std::string text, read_text(own));
    return std::pair{std::move(text), own.string()};
  }
  const auto config = dir / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return std::pair<std::string, std::string>{};
  ASSIGN_OR_RETURN(const std::string text, read_text(config));
  const auto json = parse_json(text);
  if (!json.ok()) return Error{ErrorCode::kInvalidFile, config.string() + ": " + json.error().message};
  if (json->is_object()) {
    const auto it = json->find("chat_template");
    if (it != json->end() && it->is_string()) return std::pair{it->get<std::string>(), config.string()};
  }
  return std::pair<std::string, std::string>{};
}

}  // namespace

Result<DirectoryText> load_text(const std::string& dir) {
  DirectoryText out;
  const std::filesystem::path base(dir);
  if (std::filesystem::exists(base / "tokenizer.json")) {
    ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load((base / "tokenizer.json").string()));
    out.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  }
  ASSIGN_OR_RETURN(const auto found, find_template(base));
  if (!found.first.empty()) {
    ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::parse(found.first, found.second));
    out.chat_template = std::make_shared<const ChatTemplate>(std::move(parsed));
  }
  return out;
}

}  // namespace firesteel

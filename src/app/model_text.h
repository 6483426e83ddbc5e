// The text side of a model directory: tokenizer.json and the chat template, both optional.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace firesteel {

struct DirectoryText {
  std::shared_ptr<const Tokenizer> tokenizer;         // null: the directory has no tokenizer.json
  std::shared_ptr<const ChatTemplate> chat_template;  // null: it has no template
};

/// Reads DIR/tokenizer.json and DIR/chat_template.jinja, or the template inside tokenizer_config.json. A file
/// that is there and does not parse is an error.
Result<DirectoryText> load_text(const std::string& dir);

}  // namespace firesteel

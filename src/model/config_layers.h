// The per-layer lists of a glm5_next config: what each layer is, and the rules that tie the lists together.
#pragma once

#include "model/config.h"
#include "model/json_reader.h"

namespace firesteel {

/// Fills kinds, sparse_mlp and shared_indexer from `text` (the text part of config.json) and checks them;
/// `kda` reads linear_attn_config or is null. config.layers is set. Problems are noted in the readers.
void read_layer_lists(JsonReader& text, JsonReader* kda, ModelConfig& config);

/// A caller's string for a message: printable, short, in quotes.
std::string in_quotes(const std::string& text);

}  // namespace firesteel

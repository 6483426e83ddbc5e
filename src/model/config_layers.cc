#include "model/config_layers.h"

#include <algorithm>

namespace firesteel {
namespace {

// Longer lists than any layer count are refused before they are walked.
constexpr size_t kMaxList = 4096;

bool right_size(JsonReader& r, const char* key, size_t size, int32_t layers) {
  if (size == static_cast<size_t>(layers)) return true;
  r.fail(key, "has " + std::to_string(size) + " entries for " + std::to_string(layers) + " layers");
  return false;
}

void read_kinds(JsonReader& r, ModelConfig& c) {
  c.kinds.assign(static_cast<size_t>(c.layers), LayerKind::kKda);
  const auto names = r.strings("layer_types", kMaxList);
  if (!names) {
    for (int32_t i = 3; i < c.layers; i += 4) c.kinds[static_cast<size_t>(i)] = LayerKind::kDsa;
    return;
  }
  if (!right_size(r, "layer_types", names->size(), c.layers)) return;
  for (size_t i = 0; i < names->size(); ++i) {
    const std::string& name = (*names)[i];
    if (name == "deepseek_sparse_attention" || name == "full_attention") {
      c.kinds[i] = LayerKind::kDsa;
    } else if (name != "linear_attention") {
      return r.fail("layer_types", "unknown layer type " + in_quotes(name) + " at layer " + std::to_string(i),
                    ErrorCode::kUnsupported);
    }
  }
}

/// linear_attn_config repeats layer_types as lists of layer numbers; a contradiction means one of them is
/// wrong.
void check_kind_list(JsonReader& kda, const char* key, LayerKind kind, const ModelConfig& c) {
  const auto list = kda.ints(key, kMaxList, 0, c.layers - 1);
  if (!list) return;
  std::vector<bool> listed(c.kinds.size(), false);
  for (const int32_t layer : *list) listed[static_cast<size_t>(layer)] = true;
  for (size_t i = 0; i < c.kinds.size(); ++i) {
    if (listed[i] != (c.kinds[i] == kind)) {
      return kda.fail(key, "contradicts layer_types at layer " + std::to_string(i));
    }
  }
}

void read_mlps(JsonReader& r, ModelConfig& c) {
  c.sparse_mlp.assign(static_cast<size_t>(c.layers), true);
  const auto names = r.strings("mlp_layer_types", kMaxList);
  if (!names) {
    const int32_t dense = r.int_or("first_k_dense_replace", 3, 0, c.layers);
    std::fill_n(c.sparse_mlp.begin(), std::min(dense, c.layers), false);
    return;
  }
  if (!right_size(r, "mlp_layer_types", names->size(), c.layers)) return;
  for (size_t i = 0; i < names->size(); ++i) {
    const std::string& name = (*names)[i];
    if (name == "dense") {
      c.sparse_mlp[i] = false;
    } else if (name != "sparse") {
      return r.fail("mlp_layer_types", "unknown kind " + in_quotes(name) + " at layer " + std::to_string(i),
                    ErrorCode::kUnsupported);
    }
  }
}

/// Reads the list in whichever of its three spellings is there and returns that key's name.
const char* read_shared(JsonReader& r, ModelConfig& c) {
  c.shared_indexer.assign(static_cast<size_t>(c.layers), false);
  if (const auto names = r.strings("indexer_types", kMaxList)) {
    if (!right_size(r, "indexer_types", names->size(), c.layers)) return "indexer_types";
    for (size_t i = 0; i < names->size(); ++i) {
      const std::string& name = (*names)[i];
      if (name == "shared") {
        c.shared_indexer[i] = true;
      } else if (name != "full") {
        r.fail("indexer_types", "unknown kind " + in_quotes(name) + " at layer " + std::to_string(i),
               ErrorCode::kUnsupported);
      }
    }
    return "indexer_types";
  }
  const std::string pattern = r.string_or("index_topk_pattern", "");
  if (!pattern.empty()) {
    if (!right_size(r, "index_topk_pattern", pattern.size(), c.layers)) return "index_topk_pattern";
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] == 'S') {
        c.shared_indexer[i] = true;
      } else if (pattern[i] != 'F') {
        r.fail("index_topk_pattern", "may hold the letters F and S only");
      }
    }
    return "index_topk_pattern";
  }
  const int32_t freq = std::max(r.int_or("index_topk_freq", 1, 0, 1 << 20), 1);
  const int32_t offset = r.int_or("index_skip_topk_offset", 2, 0, 1 << 20);
  for (int32_t i = 0; i < c.layers; ++i) {
    c.shared_indexer[static_cast<size_t>(i)] = std::max(i - offset + 1, 0) % freq != 0;
  }
  return "index_topk_freq";
}

/// A selection is handed on only by a full DSA layer to the very next layer (spec/model.md 2.6).
void check_shared(JsonReader& r, const char* key, ModelConfig& c) {
  for (size_t i = 0; i < c.kinds.size(); ++i) {
    if (!c.shared_indexer[i]) continue;
    const std::string at = "layer " + std::to_string(i);
    if (c.kinds[i] != LayerKind::kDsa) {
      // A KDA layer has no indexer: its entry means nothing, and the lists made from a frequency do mark such
      // layers.
      c.shared_indexer[i] = false;
      continue;
    }
    if (i == 0) return r.fail(key, at + " shares a selection, but no layer comes before it");
    if (c.kinds[i - 1] != LayerKind::kDsa) {
      return r.fail(key,
                    at + " shares a selection, but the layer before it is linear attention and has none");
    }
    if (c.shared_indexer[i - 1]) {
      return r.fail(
          key, at + " shares a selection of a layer that is itself shared; only one may follow a full one");
    }
  }
}

}  // namespace

std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (const char ch : text.substr(0, 60)) out += ch >= 0x20 && ch < 0x7f ? ch : '?';
  if (text.size() > 60) out += "…";
  return out + "\"";
}

void read_layer_lists(JsonReader& text, JsonReader* kda, ModelConfig& config) {
  read_kinds(text, config);
  if (text.ok() && kda != nullptr) {
    check_kind_list(*kda, "kda_layers", LayerKind::kKda, config);
    check_kind_list(*kda, "full_attn_layers", LayerKind::kDsa, config);
  }
  read_mlps(text, config);
  const char* key = read_shared(text, config);
  if (text.ok()) check_shared(text, key, config);
}

}  // namespace firesteel

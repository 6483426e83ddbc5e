#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "app/open_model.h"
#include "model/checkpoint.h"
#include "model/weight_map.h"

namespace firesteel {
namespace {

/// The `license:` line of the model card's front matter, or "".
std::string card_licence(const std::string& dir) {
  for (const char* name : {"README.md", "MODEL_CARD.md"}) {
    std::ifstream in(dir + "/" + name);
    std::string line;
    for (int i = 0; i < 200 && std::getline(in, line); ++i) {
      if (line.rfind("license:", 0) != 0) continue;
      const size_t begin = line.find_first_not_of(" \t", 8);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

/// Bytes on disk by stored type, EXL3 trellises named by their bits.
std::map<std::string, uint64_t> stored_formats(const Checkpoint& checkpoint) {
  std::map<std::string, uint64_t> out;
  for (const auto& file : checkpoint.files()) {
    for (const auto& t : file.tensors()) {
      std::string kind(dtype_name(t.dtype));
      const bool trellis = t.name.ends_with(".trellis") && t.shape.size() == 3;
      if (trellis) kind = "EXL3 " + std::to_string(t.shape[2] / 16) + " bit";
      out[kind] += t.bytes;
    }
  }
  return out;
}

Result<nlohmann::ordered_json> describe(const InfoOptions& options) {
  ASSIGN_OR_RETURN(const int32_t window, parse_context(options.context));
  ASSIGN_OR_RETURN(const auto ops, make_ops(options.model, 0));
  const uint64_t usable = options.assume_free_gib > 0
                              ? static_cast<uint64_t>(std::llround(options.assume_free_gib * (1ull << 30)))
                              : usable_memory(*ops, 1);
  OpenRequest request;
  request.streams = options.streams;
  request.window = window;
  // Of several ranks, each on a machine like this one, the one that has room for least.
  PlannedModel planned;
  std::vector<uint64_t> weights_of_rank;
  for (int32_t r = 0; r < options.ranks; ++r) {
    request.placement = {r, options.ranks};
    ASSIGN_OR_RETURN(PlannedModel mine, plan_model(options.model, *ops, request, usable));
    weights_of_rank.push_back(mine.plan.needs.weights_total());
    if (r == 0 || mine.plan.pages < planned.plan.pages ||
        (mine.plan.pages == planned.plan.pages && mine.plan.total > planned.plan.total))
      planned = std::move(mine);
  }
  const ModelConfig& c = planned.files.config;
  const Checkpoint& checkpoint = *planned.files.checkpoint;
  const MemoryPlan& plan = planned.plan;

  nlohmann::ordered_json j;
  j["model"] = options.model.dir;
  j["architecture"] = "glm5_next";
  j["licence"] = card_licence(options.model.dir);
  j["quantization"] = c.quant_method.empty() ? "none" : c.quant_method;
  j["layers"] = c.layers;
  j["kda_layers"] = kda_layers(c);
  j["dsa_layers"] = dsa_layers(c, false);
  j["mtp"] = planned.files.weights.mtp.has_value();
  j["hidden"] = c.hidden;
  j["vocabulary"] = c.vocab;
  j["experts"] = c.experts;
  j["experts_per_token"] = c.experts_per_token;
  j["max_positions"] = c.max_positions;
  j["stored_bytes"] = checkpoint.data_bytes();
  for (const auto& [kind, bytes] : stored_formats(checkpoint)) j["formats"][kind] = bytes;
  j["device"] = std::string(ops->name());
  j["kept"] = formats_text(model_formats(options.model, *ops));
  j["ranks"] = options.ranks;
  if (options.ranks > 1) j["weights_of_rank"] = weights_of_rank;
  nlohmann::ordered_json& rank = j["rank_bytes"];
  for (int g = 0; g < kWeightGroups; ++g) {
    const uint64_t bytes = plan.needs.weights[static_cast<size_t>(g)];
    if (bytes > 0) rank["weights"][weight_group_name(static_cast<WeightGroup>(g))] = bytes;
  }
  rank["weights_total"] = plan.needs.weights_total();
  rank["arenas"] = plan.needs.arenas;
  rank["page"] = plan.needs.page;
  rank["slot"] = plan.needs.slot;
  rank["total"] = plan.total;
  j["usable_bytes"] = usable;
  j["streams"] = plan.streams;
  j["window"] = plan.window;
  j["largest_window"] = plan.largest_window;
  j["pool_tokens"] = static_cast<int64_t>(plan.pages) * kPageTokens;
  return j;
}

std::string bytes_text(uint64_t bytes) {
  char text[64];
  if (bytes >= 1ull << 30) {
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1ull << 30));
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1ull << 20));
  }
  return text;
}

void print_text(const nlohmann::ordered_json& j) {
  const auto num = [&](const char* key) { return j[key].get<int64_t>(); };
  std::printf("%s: %s, %" PRId64 " layers (%" PRId64 " KDA, %" PRId64 " DSA)%s, hidden %" PRId64
              ", vocabulary %" PRId64 ", experts %" PRId64 " (%" PRId64 " a token)\n",
              j["model"].get<std::string>().c_str(), j["architecture"].get<std::string>().c_str(),
              num("layers"), num("kda_layers"), num("dsa_layers"),
              j["mtp"].get<bool>() ? " and an MTP layer" : "", num("hidden"), num("vocabulary"),
              num("experts"), num("experts_per_token"));
  const std::string licence = j["licence"].get<std::string>();
  std::printf("licence: %s\n",
              licence.empty() ? "the model card states none; read the checkpoint's terms" : licence.c_str());
  std::printf("stored: %s", bytes_text(j["stored_bytes"].get<uint64_t>()).c_str());
  const char* sep = " (";
  for (const auto& [kind, bytes] : j["formats"].items()) {
    std::printf("%s%s %s", sep, kind.c_str(), bytes_text(bytes.get<uint64_t>()).c_str());
    sep = ", ";
  }
  const std::string of_rank =
      num("ranks") == 1 ? "" : " of the fullest of " + std::to_string(num("ranks")) + " ranks";
  std::printf(")\n%s memory%s, %s: weights %s", j["device"].get<std::string>().c_str(), of_rank.c_str(),
              j["kept"].get<std::string>().c_str(),
              bytes_text(j["rank_bytes"]["weights_total"].get<uint64_t>()).c_str());
  sep = " (";
  for (const auto& [group, bytes] : j["rank_bytes"]["weights"].items()) {
    std::printf("%s%s %s", sep, group.c_str(), bytes_text(bytes.get<uint64_t>()).c_str());
    sep = ", ";
  }
  const auto rank = [&](const char* key) { return bytes_text(j["rank_bytes"][key].get<uint64_t>()); };
  std::printf("), arenas %s, %s for 256 tokens, %s a request\n", rank("arenas").c_str(), rank("page").c_str(),
              rank("slot").c_str());
  std::printf("fits: window %" PRId64 " of at most %" PRId64 " tokens with %" PRId64
              " streams, pool of %" PRId64 " tokens, %s of %s usable\n",
              num("window"), num("largest_window"), num("streams"), num("pool_tokens"), rank("total").c_str(),
              bytes_text(j["usable_bytes"].get<uint64_t>()).c_str());
}

}  // namespace

int run_info(const InfoOptions& options) {
  const auto described = describe(options);
  if (!described.ok()) return report(described.error());
  if (options.json) {
    std::printf("%s\n",
                described->dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else {
    print_text(*described);
  }
  return 0;
}

}  // namespace firesteel

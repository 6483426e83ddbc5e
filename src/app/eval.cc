#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/model_text.h"
#include "app/open_model.h"
#include "app/progress_line.h"
#include "model/score.h"

namespace firesteel {
namespace {

struct Text {
  std::string file;
  std::vector<int32_t> ids;
};

Result<std::vector<Text>> read_texts(const EvalOptions& options) {
  ASSIGN_OR_RETURN(const DirectoryText text, load_text(options.model.dir));
  if (text.tokenizer == nullptr) {
    return Error{ErrorCode::kNotFound, options.model.dir + ": texts need a tokenizer.json, which is missing"};
  }
  std::vector<Text> out;
  for (const std::string& file : options.files) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    if (!in.good() && !in.eof()) return Error{ErrorCode::kIo, file + ": cannot be read"};
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, text.tokenizer->encode(bytes));
    if (ids.size() < 2) return Error{ErrorCode::kInvalidArgument, file + ": fewer than two tokens of text"};
    out.push_back({file, std::move(ids)});
  }
  return out;
}

Result<OpenModel> open(const ModelOptions& model, int32_t window) {
  const ModelLimits limits = score_limits(window);
  OpenRequest request;
  request.window = window;
  request.max_rows = limits.max_rows;
  request.max_logit_rows = limits.max_logit_rows;
  return open_model(model, request);
}

nlohmann::ordered_json to_json(const TextScore& score, bool compared) {
  nlohmann::ordered_json out;
  out["tokens"] = score.positions;
  out["perplexity"] = score.perplexity();
  if (compared) {
    out["kl_mean"] = score.mean_divergence();
    out["kl_max"] = score.worst;
    out["same_choice"] = static_cast<double>(score.same_choice) / static_cast<double>(score.positions);
  }
  return out;
}

void print(const std::string& what, const TextScore& score, bool compared) {
  std::printf("%s: %lld tokens, perplexity %.4f", what.c_str(), static_cast<long long>(score.positions),
              score.perplexity());
  if (compared) {
    std::printf(", KL divergence %.5f nats a position, at most %.4f, the same choice at %.2f %%",
                score.mean_divergence(), score.worst,
                100.0 * static_cast<double>(score.same_choice) / static_cast<double>(score.positions));
  }
  std::printf("\n");
}

Status evaluate(const EvalOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<Text> texts, read_texts(options));
  // Texts longer than the window are scored in pieces, each from an empty context.
  const auto window = static_cast<size_t>(options.context);
  ASSIGN_OR_RETURN(OpenModel mine, open(options.model, options.context));
  const ModelFormats formats = model_formats(options.model, *mine.ops);
  const bool compared = !options.against.empty() || formats.lossy();
  std::optional<OpenModel> exact;
  if (compared) {
    ModelOptions reference = options.model;
    if (!options.against.empty()) reference.dir = options.against;
    reference.exact = true;
    reference.dense = reference.kv = "auto";
    ASSIGN_OR_RETURN(exact, open(reference, options.context));
  }
  int64_t total = 0, done = 0;
  for (const Text& t : texts) total += static_cast<int64_t>(t.ids.size());
  ProgressLine progress("scoring", std::to_string(total) + " tokens");
  TextScore all;
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const Text& t : texts) {
    TextScore of_file;
    for (size_t at = 0; at < t.ids.size(); at += window) {
      const auto piece = std::span(t.ids).subspan(at, std::min(window, t.ids.size() - at));
      ASSIGN_OR_RETURN(
          const TextScore score,
          score_text(*mine.model, exact ? exact->model.get() : nullptr, piece, [&](int64_t positions) {
            progress(static_cast<uint64_t>(done + positions), static_cast<uint64_t>(total));
          }));
      done += score.positions;
      of_file.add(score);
    }
    all.add(of_file);
    if (options.json) {
      nlohmann::ordered_json entry = to_json(of_file, compared);
      entry["file"] = t.file;
      files.push_back(std::move(entry));
    } else if (texts.size() > 1) {
      print(t.file, of_file, compared);
    }
  }
  if (!options.json) {
    print(texts.size() > 1 ? "all" : texts[0].file, all, compared);
    return {};
  }
  nlohmann::ordered_json out = {{"model", options.model.dir}, {"formats", formats_text(formats)}};
  if (compared) out["against"] = options.against.empty() ? options.model.dir : options.against;
  out.update(to_json(all, compared));
  out["files"] = std::move(files);
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return {};
}

}  // namespace

int run_eval(const EvalOptions& options) {
  const Status done = evaluate(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel

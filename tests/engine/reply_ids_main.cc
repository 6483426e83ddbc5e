// engine_reply_ids FILE: draws the replies to 20 of the 320 requests (the shortest, so that an emulated
// machine can run them) on the model `tiny` and to 4 on the bundled one, and compares their hashes with FILE,
// which an x86-64 machine wrote with `engine_reply_ids FILE --write`. Lines: model, request, tokens, FNV-1a
// of the ids.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "model_runs.h"
#include "request_set.h"

namespace firesteel {
namespace {

#if defined(__aarch64__)
constexpr const char* kMachine = "aarch64";
#elif defined(__x86_64__)
constexpr const char* kMachine = "x86-64";
#else
constexpr const char* kMachine = "this machine";
#endif

/// One line for each of the `count` shortest of the 320 requests; empty if the model cannot be loaded.
std::vector<std::string> reply_lines(const std::string& name, size_t count) {
  const std::unique_ptr<Ops> ops = make_cpu_ops(0);
  const std::unique_ptr<Model> model = load_test_model(name, *ops);
  if (model == nullptr) return {};
  const std::vector<GenerationRequest> all = request_set(model->config().vocab, 0, 320);
  std::vector<size_t> order(all.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto rows = [&](size_t i) { return all[i].prompt.size() + static_cast<size_t>(all[i].max_tokens); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows(a) < rows(b); });
  order.resize(count);
  std::vector<GenerationRequest> chosen;
  for (const size_t i : order) chosen.push_back(all[i]);
  const std::vector<Ids> replies = serve(*model, chosen, kCompany);
  std::vector<std::string> lines;
  for (size_t i = 0; i < count; ++i) {
    char line[96];
    std::snprintf(line, sizeof line, "%s %zu %zu %016" PRIx64, name.c_str(), order[i], replies[i].size(),
                  ids_hash(replies[i]));
    lines.emplace_back(line);
  }
  return lines;
}

int run(const std::string& path, bool write) {
  std::vector<std::string> lines = reply_lines("tiny", 20);
  const std::vector<std::string> demo = reply_lines("demo", 4);
  if (lines.empty() || demo.empty()) return 1;
  lines.insert(lines.end(), demo.begin(), demo.end());
  if (write) {
    std::ofstream out(path);
    for (const std::string& line : lines) out << line << '\n';
    return out.good() ? 0 : 1;
  }
  std::ifstream in(path);
  size_t equal = 0, recorded = 0;
  for (std::string line; std::getline(in, line); ++recorded) {
    if (std::find(lines.begin(), lines.end(), line) != lines.end())
      ++equal;
    else
      std::printf("differs: recorded %s\n", line.c_str());
  }
  std::printf(
      "[done 2] replies on %s: %zu of %zu have the ids recorded on x86-64 (20 on tiny, 4 on the bundled "
      "model)\n",
      kMachine, equal, lines.size());
  return equal == lines.size() && recorded == lines.size() ? 0 : 1;
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3 || (argc == 3 && std::string_view(argv[2]) != "--write")) {
    std::fprintf(stderr, "usage: engine_reply_ids FILE [--write]\n");
    return 2;
  }
  return firesteel::run(argv[1], argc == 3);
}

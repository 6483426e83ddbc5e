// engine_ranks --model NAME [--ranks 2|4] [--first I] [--requests N]: the fixed requests give the same ids on
// 2 and 4 ranks as on one, linked by threads, shared memory and TCP: all of them beside 7 others each way,
// and each of them alone one of the ways. On a GPU four ranks run as processes.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "rank_runs.h"
#include "request_set.h"

namespace firesteel {
namespace {

struct Way {
  int ranks;
  TestLink link;
  bool processes;
};

std::vector<Way> ways_of(const RunArguments& arguments) {
  std::vector<Way> out;
  for (const int ranks : {2, 4}) {
    if (arguments.ranks != 0 && arguments.ranks != ranks) continue;
    const bool processes = ranks > 2 && arguments.device != "cpu";
    if (!processes) out.push_back({ranks, TestLink::kThreads, false});
    out.push_back({ranks, TestLink::kShm, processes});
    out.push_back({ranks, TestLink::kTcp, processes});
  }
  return out;
}

int run(const RunArguments& arguments) {
  const std::string& name = arguments.model;
  const int32_t first = arguments.first, count = arguments.requests;
  std::vector<RankModel> whole = load_rank_models(name, 1, arguments.device);
  if (whole.empty()) return 1;
  const std::vector<GenerationRequest> requests = request_set(whole[0].model->config().vocab, first, count);
  const std::vector<Ids> reference = serve(*whole[0].model, requests, kCompany);
  const std::vector<Way> ways = ways_of(arguments);
  bool ok = true;
  std::vector<RankModel> parts;
  for (size_t w = 0; w < ways.size(); ++w) {
    const Way& way = ways[w];
    if (way.processes) {
      parts.clear();
    } else if (static_cast<int>(parts.size()) != way.ranks) {
      parts.clear();
      parts = load_rank_models(name, way.ranks, arguments.device);
      if (parts.empty()) return 1;
    }
    const auto check = [&](const std::vector<size_t>& which, int32_t streams, const char* how) {
      std::vector<GenerationRequest> some;
      for (const size_t i : which) some.push_back(requests[i]);
      const auto start = std::chrono::steady_clock::now();
      const std::vector<Ids> got =
          way.processes ? serve_on_processes(name, arguments.device, way.ranks, way.link, some, streams)
                        : serve_on_ranks(parts, connect_ranks(way.ranks, way.link), some, streams);
      size_t equal = 0;
      for (size_t i = 0; i < got.size(); ++i) equal += !got[i].empty() && got[i] == reference[which[i]];
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::printf("[issue 3, done 1] %s, %d ranks, %s%s, %s: %zu of %zu replies equal (%.1f s)\n",
                  name.c_str(), way.ranks, way.processes ? "processes over " : "", link_name(way.link), how,
                  equal, which.size(), seconds);
      std::fflush(stdout);
      ok = ok && equal == which.size();
    };
    std::vector<size_t> all, share;
    for (size_t i = 0; i < requests.size(); ++i) all.push_back(i);
    for (size_t i = w; i < requests.size(); i += ways.size()) share.push_back(i);
    check(all, kCompany, "beside 7 others");
    if (!share.empty()) check(share, 1, "alone");
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) {
  const int member = firesteel::run_member(argc, argv);
  return member >= 0 ? member : firesteel::run(firesteel::parse_run_arguments(argc, argv));
}

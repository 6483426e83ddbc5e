// engine_ranks --model NAME [--first I] [--requests N]: the fixed requests give the same ids on 2 and 4 ranks
// as on one, linked by threads, shared memory and TCP: all of them beside 7 others each way, and each of them
// alone one of the ways.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rank_runs.h"
#include "request_set.h"

namespace firesteel {
namespace {

constexpr size_t kWays = 6;  // 2 numbers of ranks, 3 links

int run(const RunArguments& arguments) {
  const std::string& name = arguments.model;
  const int32_t first = arguments.first, count = arguments.requests;
  std::vector<RankModel> whole = load_rank_models(name, 1, arguments.device);
  if (whole.empty()) return 1;
  const std::vector<GenerationRequest> requests = request_set(whole[0].model->config().vocab, first, count);
  const std::vector<Ids> reference = serve(*whole[0].model, requests, kCompany);
  bool ok = true;
  int way = 0;
  for (const int ranks : {2, 4}) {
    std::vector<RankModel> parts = load_rank_models(name, ranks, arguments.device);
    if (parts.empty()) return 1;
    for (const TestLink link : {TestLink::kThreads, TestLink::kShm, TestLink::kTcp}) {
      const auto check = [&](const std::vector<size_t>& which, int32_t streams, const char* how) {
        std::vector<GenerationRequest> some;
        for (const size_t i : which) some.push_back(requests[i]);
        const auto start = std::chrono::steady_clock::now();
        const std::vector<Ids> got = serve_on_ranks(parts, connect_ranks(ranks, link), some, streams);
        size_t equal = 0;
        for (size_t i = 0; i < got.size(); ++i) equal += !got[i].empty() && got[i] == reference[which[i]];
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        std::printf("[issue 3, done 1] %s, %d ranks, %s, %s: %zu of %zu replies equal (%.1f s)\n",
                    name.c_str(), ranks, link_name(link), how, equal, which.size(), seconds);
        std::fflush(stdout);
        ok = ok && equal == which.size();
      };
      std::vector<size_t> all, share;
      for (size_t i = 0; i < requests.size(); ++i) all.push_back(i);
      for (size_t i = static_cast<size_t>(way); i < requests.size(); i += kWays) share.push_back(i);
      check(all, kCompany, "beside 7 others");
      if (!share.empty()) check(share, 1, "alone");
      ++way;
    }
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) { return firesteel::run(firesteel::parse_run_arguments(argc, argv)); }

#include "comm/nccl_choice.h"

#include <string.h>

#include <algorithm>

#include "comm/nccl.h"

namespace firesteel {

NcclOffer make_nccl_offer(ExchangeChoice choice, const std::array<uint8_t, 16>& gpu) {
  NcclOffer out;
  out.gpu = gpu;
  out.demanded = choice == ExchangeChoice::kNccl;
  std::string why = "host memory is asked for";
  if (choice != ExchangeChoice::kHost) {
    const auto nccl = load_nccl();
    if (nccl.ok()) {
      out.version = (*nccl)->version;
      return out;
    }
    why = nccl.error().message;
  }
  why.copy(out.why, sizeof out.why - 1);
  return out;
}

std::string why_not_nccl(std::span<const NcclOffer> offers) {
  const auto rank = [](size_t r) { return "rank " + std::to_string(r); };
  for (size_t r = 0; r < offers.size(); ++r)
    if (offers[r].version == 0)
      return rank(r) + ": " + std::string(offers[r].why, strnlen(offers[r].why, sizeof offers[r].why));
  for (size_t r = 1; r < offers.size(); ++r)
    if (offers[r].version != offers[0].version)
      return "rank 0 has NCCL " + nccl_version_text(offers[0].version) + ", " + rank(r) + " has " +
             nccl_version_text(offers[r].version);
  if (std::ranges::all_of(offers, &NcclOffer::demanded)) return "";
  for (size_t r = 1; r < offers.size(); ++r)
    for (size_t other = 0; other < r; ++other)
      if (offers[r].gpu == offers[other].gpu)
        return "ranks " + std::to_string(other) + " and " + std::to_string(r) + " share a GPU";
  return "";
}

Result<bool> all_agree(Communicator& comm, bool mine, std::chrono::milliseconds patience) {
  std::array<uint8_t, kMaxRanks> all{};
  const uint8_t yes = mine ? 1 : 0;
  const std::span<uint8_t> heard = std::span(all).first(static_cast<size_t>(comm.size()));
  RETURN_IF_ERROR(comm.all_gather(CommOp::kSettings, std::as_bytes(std::span(&yes, 1)),
                                  std::as_writable_bytes(heard), patience));
  return std::ranges::all_of(heard, [](uint8_t answer) { return answer == 1; });
}

}  // namespace firesteel

// Whether a group of ranks can exchange through NCCL: what each rank tells the others, and the one answer
// that all of them draw from it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "comm/communicator.h"

namespace firesteel {

enum class ExchangeChoice : uint8_t {
  kAuto,  // NCCL where every rank has a GPU of its own and the same libnccl.so.2, else host memory
  kHost,
  kNccl  // NCCL or an error; ranks may share a GPU where NCCL lets them
};

/// Sent as it is between ranks of one build.
struct NcclOffer {
  std::array<uint8_t, 16> gpu{};  // its UUID
  int32_t version = 0;            // of NCCL; 0: not to be used, `why` says why
  bool demanded = false;
  char why[107] = {};
};

NcclOffer make_nccl_offer(ExchangeChoice choice, const std::array<uint8_t, 16>& gpu);

/// One line that says why ranks with these offers do not use NCCL; empty: they do.
std::string why_not_nccl(std::span<const NcclOffer> offers);

/// Whether all ranks say yes; every rank gets the same answer. Waits up to `patience` for the others.
Result<bool> all_agree(Communicator& comm, bool mine, std::chrono::milliseconds patience);

}  // namespace firesteel

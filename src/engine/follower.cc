#include "engine/follower.h"

namespace firesteel {
namespace {

// Rank 0 may be idle for as long as it likes; the watch notices when it is gone.
constexpr std::chrono::hours kPatience{24 * 365};

}  // namespace

Follower::Follower(Model& model, const EngineConfig& config, int32_t window, int32_t pages)
    : state_(config, window, pages, model.limits().slots),
      executor_(model, config),
      record_(config.max_streams, model.config().vocab),
      outcome_(config.max_streams) {}

Status Follower::run(Communicator& comm) {
  executor_.connect(&comm);
  Status status;
  for (bool stop = false; status.ok() && !stop;) {
    auto bytes = comm.control({}, kPatience);
    status = bytes.ok() ? round(*bytes, &stop) : bytes.error();
    if (status.ok() && comm.broken()) status = Error{ErrorCode::kUnavailable, "the group is broken"};
  }
  if (!status.ok()) comm.abort(status.error());  // rank 0 must not wait for us
  clear(status.ok() ? Error{ErrorCode::kUnavailable, "rank 0 stopped"} : status.error());
  executor_.connect(nullptr);
  return status;
}

Status Follower::round(std::span<const std::byte> bytes, bool* stop) {
  ASSIGN_OR_RETURN(const RecordKind kind, decode_record(bytes, state_, known_, record_));
  if (kind == RecordKind::kStop) {
    *stop = true;
    return {};
  }
  executor_.apply(record_, state_, outcome_);
  Status status;
  for (const RoundOutcome::Finished& f : outcome_.finished) {
    if (f.reason == FinishReason::kError && f.error.code == ErrorCode::kUnavailable) status = f.error;
    known_.erase(f.request->id);
  }
  return status;
}

void Follower::clear(const Error& why) {
  executor_.fail_all(state_, why, outcome_);
  outcome_.clear();
  known_.clear();
  state_.reset();
}

}  // namespace firesteel

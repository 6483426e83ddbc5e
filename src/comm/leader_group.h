// LeaderGroup: rank 0's group of ranks, formed at start and formed anew whenever it breaks.
//
// A thread of its own accepts the ranks, watches them and hands the whole group to the engine; it needs
// nobody's help to bring the service back: a rank that comes again (restarted by whatever runs it) is taken
// in, one that differs is refused with what differs and the wait goes on. Any thread may call the methods,
// form() and start() once each, in this order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/group_plan.h"
#include "comm/rank_group.h"
#include "comm/rendezvous.h"
#include "comm/watch.h"

namespace firesteel {

class LeaderGroup final : public RankGroup {
 public:
  /// Listens at the options' address (port 0: any free one) and forms nothing yet.
  static Result<std::unique_ptr<LeaderGroup>> listen(const GroupOptions& options);
  ~LeaderGroup() override;

  uint16_t port() const { return leader_.port(); }
  /// Waits for all ranks and settles what they have room for. kInvalidArgument: a rank differs, and how;
  /// kUnavailable: not all came within the options' time.
  Result<GroupPlan> form(const GroupPlan& mine);
  /// Waits until every rank has loaded its weights; from then on the group is kept. `running` is the plan
  /// that the engine has now: a rank that returns must have room for it.
  Status start(const GroupPlan& running);

  std::shared_ptr<Communicator> current() override;
  void set_listener(std::function<void()> changed) override;

 private:
  explicit LeaderGroup(Leader leader, int ranks) : leader_(std::move(leader)), ranks_(ranks) {}
  /// A group whose ranks agree on `mine`, watched; not yet handed out.
  Result<GroupPlan> connect(Group group, const GroupPlan& mine);
  void disconnect();
  void keep();
  bool form_again();
  void changed();

  Leader leader_;
  const int ranks_;
  GroupPlan running_;
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;
  std::condition_variable wake_;
  std::function<void()> listener_;
  std::shared_ptr<Communicator> comm_;  // whole and handed out, or null
  // The keeper's thread (before start(): the caller's).
  std::shared_ptr<Communicator> forming_;
  std::unique_ptr<Watch> watch_;
  std::thread keeper_;
};

}  // namespace firesteel

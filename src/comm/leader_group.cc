#include "comm/leader_group.h"

#include "base/log.h"

namespace firesteel {
namespace {

constexpr std::chrono::milliseconds kLook{
    100};  // between two looks at whether to stop, or whether the group broke

}  // namespace

Result<std::unique_ptr<LeaderGroup>> LeaderGroup::listen(const GroupOptions& options) {
  ASSIGN_OR_RETURN(Leader leader, Leader::listen(options));
  return std::unique_ptr<LeaderGroup>(new LeaderGroup(std::move(leader), options.ranks));
}

LeaderGroup::~LeaderGroup() {
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true);
    wake_.notify_all();
    if (forming_ != nullptr) forming_->abort({ErrorCode::kUnavailable, "rank 0 is stopping"});
  }
  if (keeper_.joinable()) keeper_.join();
  disconnect();
}

Result<GroupPlan> LeaderGroup::connect(Group group, const GroupPlan& mine) {
  {
    std::lock_guard lock(mutex_);
    forming_ = std::move(group.comm);
  }
  std::vector<std::string> names;
  for (int r = 1; r < ranks_; ++r) names.push_back("rank " + std::to_string(r));
  watch_ = std::make_unique<Watch>(std::move(group.watch), std::move(names), WatchLimits{},
                                   [this, comm = forming_](const std::string& who) {
                                     LOG_WARN("{}", who);
                                     comm->abort({ErrorCode::kUnavailable, who});
                                     changed();
                                   });
  return settle_plan(*forming_, mine, kLoadPatience);
}

void LeaderGroup::disconnect() {
  watch_.reset();
  std::lock_guard lock(mutex_);
  comm_.reset();
  forming_.reset();
}

Result<GroupPlan> LeaderGroup::form(const GroupPlan& mine) {
  ASSIGN_OR_RETURN(Group group, leader_.form());
  return connect(std::move(group), mine);
}

Status LeaderGroup::start(const GroupPlan& running) {
  running_ = running;
  RETURN_IF_ERROR(await_ready(*forming_, kLoadPatience));
  {
    std::lock_guard lock(mutex_);
    comm_ = forming_;
  }
  keeper_ = std::thread([this] { keep(); });
  return {};
}

std::shared_ptr<Communicator> LeaderGroup::current() {
  std::lock_guard lock(mutex_);
  return comm_ != nullptr && !comm_->broken() ? comm_ : nullptr;
}

void LeaderGroup::set_listener(std::function<void()> changed) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(changed);
}

void LeaderGroup::changed() {
  std::lock_guard lock(mutex_);
  if (listener_) listener_();
  wake_.notify_all();
}

void LeaderGroup::keep() {
  while (!stopping_.load()) {
    {
      std::unique_lock lock(mutex_);
      if (comm_ != nullptr && !comm_->broken()) {
        wake_.wait_for(lock, kLook);
        continue;
      }
    }
    const auto since = std::chrono::steady_clock::now();
    changed();
    disconnect();  // the others notice at once and come back
    LOG_WARN("the group of ranks is broken; waiting for all of them to come back");
    while (!stopping_.load() && !form_again()) disconnect();
    if (stopping_.load()) return;
    {
      std::lock_guard lock(mutex_);
      comm_ = forming_;
    }
    LOG_INFO("all {} ranks are back after {:.1f} s", ranks_,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count());
    changed();
  }
}

/// One attempt; false to try again.
bool LeaderGroup::form_again() {
  auto group = leader_.form(&stopping_);
  if (!group.ok()) {
    if (!stopping_.load()) LOG_WARN("{}", group.error().message);
    return false;
  }
  const auto plan = connect(std::move(group).value(), running_);
  if (!plan.ok()) {
    LOG_WARN("{}", plan.error().message);
    return false;
  }
  if (plan->pages < running_.pages || plan->window < running_.window) {
    LOG_ERROR(
        "a rank that came back has room for {} pages of a window of {} tokens; the group runs with {} and "
        "{}: "
        "free memory there",
        plan->pages, plan->window, running_.pages, running_.window);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return false;
  }
  if (const Status ready = await_ready(*forming_, kLoadPatience); !ready.ok()) {
    LOG_WARN("{}", ready.error().message);
    return false;
  }
  return true;
}

}  // namespace firesteel

#include "comm/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <random>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"

namespace firesteel {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

constexpr const char* kProtocol = "firesteel-group-1";
constexpr size_t kShmCapacity = 4u << 20;
constexpr std::chrono::seconds kStep{10};  // one answer, once the other side is there

std::string shm_name(uint64_t session, int a, int b) {
  return "/firesteel-" + std::to_string(session) + "-" + std::to_string(a) + "-" + std::to_string(b);
}

Error not_ours(const std::string& who) {
  return {ErrorCode::kUnavailable, who + " does not speak our protocol"};
}

/// A message that must be an object with these keys as strings or numbers; typed reads that cannot throw.
Result<ordered_json> receive_json(const Socket& socket, Deadline deadline) {
  ASSIGN_OR_RETURN(const std::string text, receive_message(socket, deadline));
  auto parsed = parse_json(text, 8);
  if (!parsed.ok() || !parsed->is_object()) return not_ours("the peer");
  return std::move(parsed).value();
}
int64_t int_of(const ordered_json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}
std::string text_of(const ordered_json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_string() ? it->get<std::string>() : "";
}

/// "": equal. Else "weights is A on rank 0 and B on rank 1, …".
std::string differences(const std::map<std::string, std::string>& ours, const ordered_json& theirs,
                        int rank) {
  std::string out;
  const auto note = [&](const std::string& key, const std::string& a, const std::string& b) {
    out += (out.empty() ? "" : ", ") + key + " is " + a + " on rank 0 and " + b + " on rank " +
           std::to_string(rank);
  };
  if (!theirs.is_object()) return "its settings are missing";
  for (const auto& [key, value] : ours) {
    const std::string other = text_of(theirs, key.c_str());
    if (other != value) note(key, value, other.empty() ? "absent" : other);
  }
  for (const auto& [key, value] : theirs.items())
    if (!ours.contains(key)) note(key, "absent", value.is_string() ? value.get<std::string>() : "?");
  return out;
}

ordered_json facts_json(const std::map<std::string, std::string>& facts) {
  ordered_json j = ordered_json::object();
  for (const auto& [key, value] : facts) j[key] = value;
  return j;
}

/// The data channels among ranks above 0 and the finished group of one of them.
Result<Group> connect_mesh(const GroupOptions& options, const ordered_json& welcome, Socket data,
                           Socket watch, const Socket& listener) {
  const uint64_t session = static_cast<uint64_t>(int_of(welcome, "session"));
  const bool shm = text_of(welcome, "link") == "shm";
  const Deadline deadline = Clock::now() + kStep;
  std::vector<std::unique_ptr<ByteChannel>> peers(static_cast<size_t>(options.ranks));
  const auto peers_list = welcome.find("peers");
  if (session == 0 || peers_list == welcome.end() || !peers_list->is_array() ||
      peers_list->size() != static_cast<size_t>(options.ranks))
    return not_ours("rank 0");
  // The lower rank connects, the higher one accepts; shared memory is created by the lower one.
  for (int r = options.rank + 1; r < options.ranks; ++r) {
    const ordered_json& p = (*peers_list)[static_cast<size_t>(r)];
    const int64_t port = p.is_object() ? int_of(p, "port") : -1;
    if (port < 1 || port > 65535) return not_ours("rank 0");
    ASSIGN_OR_RETURN(Socket s, connect_until(text_of(p, "host"), static_cast<uint16_t>(port), deadline));
    std::unique_ptr<ByteChannel> channel;
    if (shm) {
      ASSIGN_OR_RETURN(channel, create_shm_channel(shm_name(session, options.rank, r), kShmCapacity));
    }
    ordered_json hello = {{"session", session}, {"rank", options.rank}};
    RETURN_IF_ERROR(send_message(s, dump_json(hello), deadline));
    if (shm)
      RETURN_IF_ERROR([&]() -> Status {
        auto ack = receive_message(s, deadline);
        if (!ack.ok()) return ack.error();
        return {};
      }());
    peers[static_cast<size_t>(r)] = shm ? std::move(channel) : make_tcp_channel(s.release());
  }
  int missing = options.rank - 1;
  while (missing > 0) {
    ASSIGN_OR_RETURN(Socket s, accept_until(listener, deadline));
    auto hello = receive_json(s, std::min(deadline, Clock::now() + std::chrono::seconds(2)));
    if (!hello.ok()) continue;  // a stranger
    const int64_t r = int_of(*hello, "rank");
    if (static_cast<uint64_t>(int_of(*hello, "session")) != session || r < 1 || r >= options.rank ||
        peers[static_cast<size_t>(r)] != nullptr)
      continue;
    if (shm) {
      ASSIGN_OR_RETURN(peers[static_cast<size_t>(r)],
                       open_shm_channel(shm_name(session, static_cast<int>(r), options.rank), kShmCapacity));
      RETURN_IF_ERROR(send_message(s, "open", deadline));
    } else {
      peers[static_cast<size_t>(r)] = make_tcp_channel(s.release());
    }
    --missing;
  }
  if (shm) {
    ASSIGN_OR_RETURN(peers[0], open_shm_channel(shm_name(session, 0, options.rank), kShmCapacity));
  }
  RETURN_IF_ERROR(send_message(data, "ready", deadline));
  {
    ASSIGN_OR_RETURN(const std::string go, receive_message(data, Clock::now() + kStep));
    if (go != "go") return not_ours("rank 0");
  }
  if (!shm) peers[0] = make_tcp_channel(data.release());
  Group group;
  group.session = session;
  group.watch.push_back(std::move(watch));
  group.comm = std::make_unique<Communicator>(options.rank, std::move(peers), options.limits);
  return group;
}

}  // namespace

Result<Leader> Leader::listen(const GroupOptions& options) {
  Leader leader(options);
  ASSIGN_OR_RETURN(leader.listener_, listen_on(options.leader_host, options.leader_port));
  ASSIGN_OR_RETURN(leader.port_, local_port(leader.listener_));
  return leader;
}

Result<Group> Leader::form(const std::atomic<bool>* stop) {
  const int ranks = options_.ranks;
  const Deadline deadline = Clock::now() + options_.timeout;
  constexpr std::chrono::milliseconds kLook{100};
  constexpr std::chrono::seconds kReport{10};
  struct Member {
    Socket data, watch;
    std::string host;
    int64_t port = 0;
  };
  std::vector<Member> members(static_cast<size_t>(ranks));
  std::random_device device;
  const uint64_t session = ((static_cast<uint64_t>(device()) << 32 | device()) >> 2) | 1;
  const auto complete = [&] {
    return std::all_of(members.begin() + 1, members.end(), [](const Member& m) { return m.data && m.watch; });
  };
  const auto missing = [&] {
    std::string out;
    for (int r = 1; r < ranks; ++r)
      if (!members[static_cast<size_t>(r)].watch) out += (out.empty() ? "" : ", ") + std::to_string(r);
    return out;
  };
  auto report = Clock::now() + kReport;
  while (!complete()) {
    if (Clock::now() > report) {
      LOG_INFO("still waiting for rank {}", missing());
      report += kReport;
    }
    auto accepted = accept_until(listener_, std::min(deadline, Clock::now() + kLook));
    const bool give_up = stop != nullptr ? stop->load() : Clock::now() >= deadline;
    if (!accepted.ok() && !give_up) continue;
    if (!accepted.ok()) {
      return Error{ErrorCode::kUnavailable, "rank " + missing() + " did not come in time"};
    }
    Socket s = std::move(accepted).value();
    auto hello = receive_json(s, Clock::now() + std::chrono::seconds(2));
    if (!hello.ok() || text_of(*hello, "protocol") != kProtocol) continue;  // a stranger
    const int64_t rank = int_of(*hello, "rank");
    const auto refuse = [&](const std::string& why) {
      (void)send_message(s, dump_json(ordered_json{{"refused", why}}), Clock::now() + kStep);
    };
    if (int_of(*hello, "ranks") != ranks || rank < 1 || rank >= ranks) {
      const std::string why = "it is rank " + std::to_string(rank) + " of " +
                              std::to_string(int_of(*hello, "ranks")) + ", rank 0 expects " +
                              std::to_string(ranks) + " ranks";
      refuse(why);
      return Error{ErrorCode::kInvalidArgument, "a process was refused: " + why};
    }
    Member& m = members[static_cast<size_t>(rank)];
    if (text_of(*hello, "purpose") == "watch") {
      m.watch = std::move(s);
      continue;
    }
    const auto theirs = hello->find("facts");
    const std::string why = theirs == hello->end()
                                ? "its settings are missing"
                                : differences(options_.facts, *theirs, static_cast<int>(rank));
    if (!why.empty()) {
      refuse(why);
      return Error{ErrorCode::kInvalidArgument, "ranks disagree: " + why};
    }
    // A later process of the same rank takes the place of an earlier one, which may have died while it
    // waited.
    ASSIGN_OR_RETURN(m.host, peer_address(s));
    m.port = int_of(*hello, "port");
    m.data = std::move(s);
    m.watch.reset();
  }
  const Deadline soon = Clock::now() + kStep;
  const bool shm = options_.link == LinkKind::kShm;
  std::vector<std::unique_ptr<ByteChannel>> peers(static_cast<size_t>(ranks));
  if (shm) {
    for (int r = 1; r < ranks; ++r) {
      ASSIGN_OR_RETURN(peers[static_cast<size_t>(r)],
                       create_shm_channel(shm_name(session, 0, r), kShmCapacity));
    }
  }
  ordered_json welcome = {
      {"session", session}, {"link", shm ? "shm" : "tcp"}, {"peers", ordered_json::array()}};
  for (const Member& m : members) welcome["peers"].push_back({{"host", m.host}, {"port", m.port}});
  for (int r = 1; r < ranks; ++r)
    RETURN_IF_ERROR(send_message(members[static_cast<size_t>(r)].data, dump_json(welcome), soon));
  for (int r = 1; r < ranks; ++r) {
    ASSIGN_OR_RETURN(const std::string ready,
                     receive_message(members[static_cast<size_t>(r)].data, Clock::now() + 2 * kStep));
    if (ready != "ready") return not_ours("rank " + std::to_string(r));
  }
  Group group;
  group.session = session;
  for (int r = 1; r < ranks; ++r) {
    Member& m = members[static_cast<size_t>(r)];
    RETURN_IF_ERROR(send_message(m.data, "go", soon));
    if (!shm) peers[static_cast<size_t>(r)] = make_tcp_channel(m.data.release());
    group.watch.push_back(std::move(m.watch));
  }
  group.comm = std::make_unique<Communicator>(0, std::move(peers), options_.limits);
  return group;
}

Result<Group> join_group(const GroupOptions& options) {
  const Deadline deadline = Clock::now() + options.timeout;
  ASSIGN_OR_RETURN(Socket data, connect_until(options.leader_host, options.leader_port, deadline));
  // Listen where rank 0 sees us.
  ASSIGN_OR_RETURN(const Socket listener, listen_on("", 0));
  ASSIGN_OR_RETURN(const uint16_t port, local_port(listener));
  ordered_json hello = {{"protocol", kProtocol},  {"purpose", "data"}, {"rank", options.rank},
                        {"ranks", options.ranks}, {"port", port},      {"facts", facts_json(options.facts)}};
  RETURN_IF_ERROR(send_message(data, dump_json(hello), Clock::now() + kStep));
  // A leader that refuses may be gone before the second connection stands: its answer counts, not that.
  auto connected = connect_until(options.leader_host, options.leader_port, Clock::now() + kStep);
  hello["purpose"] = "watch";
  if (connected.ok()) (void)send_message(*connected, dump_json(hello), Clock::now() + kStep);
  auto answer = receive_json(data, connected.ok() ? deadline : Clock::now() + kStep);
  if (!answer.ok()) return connected.ok() ? answer.error() : connected.error();
  Socket watch = connected.ok() ? std::move(connected).value() : Socket();
  const ordered_json welcome = std::move(answer).value();
  if (const std::string refused = text_of(welcome, "refused"); !refused.empty())
    return Error{ErrorCode::kInvalidArgument, "refused by rank 0: " + refused};
  return connect_mesh(options, welcome, std::move(data), std::move(watch), listener);
}

std::vector<std::unique_ptr<Communicator>> make_local_group(int ranks, CommLimits limits) {
  std::vector<std::vector<std::unique_ptr<ByteChannel>>> mesh(static_cast<size_t>(ranks));
  for (auto& row : mesh) row.resize(static_cast<size_t>(ranks));
  for (size_t a = 0; a < mesh.size(); ++a)
    for (size_t b = a + 1; b < mesh.size(); ++b)
      std::tie(mesh[a][b], mesh[b][a]) = make_local_channels(1u << 20);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int r = 0; r < ranks; ++r)
    group.push_back(std::make_unique<Communicator>(r, std::move(mesh[static_cast<size_t>(r)]), limits));
  return group;
}

}  // namespace firesteel

#include "engine/record_codec.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace firesteel {
namespace {

void put_bytes(std::vector<std::byte>& out, const void* from, size_t bytes) {
  const size_t at = out.size();
  out.resize(at + bytes);
  if (bytes > 0) std::memcpy(out.data() + at, from, bytes);
}
template <typename T>
void put(std::vector<std::byte>& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  put_bytes(out, &value, sizeof value);
}
template <typename T>
void put_list(std::vector<std::byte>& out, const std::vector<T>& list) {
  put(out, static_cast<uint32_t>(list.size()));
  put_bytes(out, list.data(), list.size() * sizeof(T));
}

/// Reads what put() wrote; after an overrun everything reads as zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    if (left_.size() < sizeof value) {
      fail();
    } else {
      std::memcpy(&value, left_.data(), sizeof value);
      left_ = left_.subspan(sizeof value);
    }
    return value;
  }
  /// A count of things of at least `bytes` each that are still to come.
  size_t count(size_t bytes) {
    const size_t n = get<uint32_t>();
    if (n <= left_.size() / bytes) return n;
    fail();
    return 0;
  }
  /// Into a list that keeps its room: a round allocates nothing.
  template <typename T>
  void list(std::vector<T>& out) {
    out.resize(count(sizeof(T)));
    if (!out.empty()) std::memcpy(out.data(), left_.data(), out.size() * sizeof(T));
    left_ = left_.subspan(out.size() * sizeof(T));
  }
  void fail() {
    ok_ = false;
    left_ = {};
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool ok_ = true;
};

void put_request(std::vector<std::byte>& out, const Request& request) {
  put_list(out, request.spec.prompt);
  put_list(out, request.spec.end_ids);
  put(out, request.spec.sampling.temperature);
  put(out, request.spec.sampling.top_p);
  put(out, request.spec.sampling.min_p);
  put(out, request.spec.sampling.top_k);
  put(out, request.seed);
  put(out, request.spec.max_tokens);
  put(out, request.spec.min_tokens);
  put(out, static_cast<uint8_t>(request.spec.background));
  put(out, request.spec.logprobs);
  put(out, static_cast<uint8_t>(request.spec.prompt_logprobs));
  const ReplyRules& rules = request.spec.rules;
  put_list(out, rules.bias);
  put(out, rules.presence);
  put(out, rules.frequency);
  put(out, rules.repetition);
  put(out, static_cast<uint8_t>(rules.think.inside));
  put(out, rules.think.end_id);
  put(out, rules.think.budget);
  put(out, static_cast<uint8_t>(rules.think.loop_guard));
  put_list(out, rules.think.close);
}

std::unique_ptr<Request> get_request(Reader& in, uint64_t id) {
  auto request = std::make_unique<Request>();
  request->id = id;
  in.list(request->spec.prompt);
  in.list(request->spec.end_ids);
  request->spec.sampling.temperature = in.get<double>();
  request->spec.sampling.top_p = in.get<double>();
  request->spec.sampling.min_p = in.get<double>();
  request->spec.sampling.top_k = in.get<int32_t>();
  request->seed = in.get<uint64_t>();
  request->spec.max_tokens = in.get<int32_t>();
  request->spec.min_tokens = in.get<int32_t>();
  request->spec.background = in.get<uint8_t>() != 0;
  request->spec.logprobs = in.get<int32_t>();
  request->spec.prompt_logprobs = in.get<uint8_t>() != 0;
  ReplyRules& rules = request->spec.rules;
  in.list(rules.bias);
  rules.presence = in.get<double>();
  rules.frequency = in.get<double>();
  rules.repetition = in.get<double>();
  rules.think.inside = in.get<uint8_t>() != 0;
  rules.think.end_id = in.get<int32_t>();
  rules.think.budget = in.get<int32_t>();
  rules.think.loop_guard = in.get<uint8_t>() != 0;
  in.list(rules.think.close);
  if (request->spec.prompt.empty() || request->spec.max_tokens < 1 || request->spec.max_tokens > 1 << 24 ||
      request->spec.logprobs < -1 || request->spec.logprobs > kMaxLogprobs ||
      ((rules.think.budget > 0 || rules.think.loop_guard) && rules.think.close.empty()))
    in.fail();
  if (in.ok()) request->prepare();
  return request;
}

}  // namespace

void encode_round(const RoundRecord& record, std::vector<std::byte>& out) {
  out.clear();
  put(out, RecordKind::kRound);
  put_list(out, record.cancels);
  put_list(out, record.preempts);
  put_list(out, record.forgets);
  put(out, static_cast<uint32_t>(record.admissions.size()));
  for (const RoundRecord::Admission& a : record.admissions) {
    put(out, a.stream);
    put(out, a.request->id);
    put(out, static_cast<uint8_t>(a.request->known_to_ranks));
    if (!a.request->known_to_ranks) put_request(out, *a.request);
    a.request->known_to_ranks = true;
  }
  put_list(out, record.rows);
  put_list(out, record.masked);
  put_list(out, record.masks);
}

void encode_stop(std::vector<std::byte>& out) {
  out.clear();
  put(out, RecordKind::kStop);
}

Result<RecordKind> decode_record(std::span<const std::byte> bytes, const EngineState& state,
                                 KnownRequests& known, RoundRecord& record) {
  const Error broken{ErrorCode::kInternal, "rank 0 sent a record that makes no sense"};
  Reader in(bytes);
  record.clear();
  const auto kind = in.get<RecordKind>();
  if (kind == RecordKind::kStop && in.at_end()) return kind;
  if (kind != RecordKind::kRound) return broken;
  in.list(record.cancels);
  in.list(record.preempts);
  in.list(record.forgets);
  // Rows that a stream has to compute after what the record did so far; 0: free.
  const auto pending = [&](int32_t stream) {
    if (stream < 0 || static_cast<size_t>(stream) >= state.streams.size()) return 0;
    for (const RoundRecord::Admission& a : record.admissions)
      if (a.stream == stream) return a.request->known();
    const auto left = [&](const std::vector<int32_t>& list) {
      return std::find(list.begin(), list.end(), stream) != list.end();
    };
    const Stream& s = state.streams[static_cast<size_t>(stream)];
    return s.request == nullptr || left(record.cancels) || left(record.preempts) ? 0 : s.pending();
  };
  for (const auto* list : {&record.cancels, &record.preempts})
    for (const int32_t stream : *list)
      if (stream < 0 || static_cast<size_t>(stream) >= state.streams.size() ||
          state.streams[static_cast<size_t>(stream)].request == nullptr)
        return broken;
  for (const int32_t stream : record.preempts)
    if (std::find(record.cancels.begin(), record.cancels.end(), stream) != record.cancels.end())
      return broken;
  for (const uint64_t id : record.forgets) {
    for (const Stream& s : state.streams)
      if (s.request != nullptr && s.request->id == id) return broken;
    known.erase(id);
  }
  for (size_t n = in.count(13); n > 0 && in.ok(); --n) {
    const auto stream = in.get<int32_t>();
    const auto id = in.get<uint64_t>();
    const bool seen = in.get<uint8_t>() != 0;
    if (stream < 0 || static_cast<size_t>(stream) >= state.streams.size() || pending(stream) > 0 ||
        seen != known.contains(id))
      return broken;
    if (!seen) {
      auto request = get_request(in, id);
      if (!in.ok()) return broken;
      known.emplace(id, std::move(request));
    }
    Request* const request = known.at(id).get();
    record.admissions.push_back({request, stream});
  }
  in.list(record.rows);
  int32_t last = -1;
  for (const RoundRecord::Rows& r : record.rows) {
    if (r.stream <= last || r.rows < 1 || r.rows > pending(r.stream)) return broken;
    last = r.stream;
  }
  in.list(record.masked);
  in.list(record.masks);
  if (record.masks.size() != record.masked.size() * record.mask_words()) return broken;
  if (!in.at_end()) return broken;
  return kind;
}

}  // namespace firesteel

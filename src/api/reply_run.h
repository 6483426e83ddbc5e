// One request's way from admission to its last byte: follows its generations token by token, turns tokens
// into pieces of text and hands them to the writer; ends when the reply, the client or the server does.
//
// Everything after start() happens on the exchange's sequence. The engine's thread only wakes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/pacer.h"
#include "api/reply.h"
#include "api/service.h"
#include "engine/engine.h"
#include "http/exchange.h"
#include "text/reply_stream.h"

namespace firesteel::api {

struct ReplyPlan {
  std::vector<GenerationRequest> requests;  // one for each choice, in the order of their index
  int64_t prompt_tokens = 0;                // for usage: each distinct prompt counted once
  ReplyOptions text;                        // how tokens become text; its end ids are set from the requests
  std::vector<int32_t> stop_token_ids;      // the caller's own, also among the requests' end ids
  std::string conversation;                 // key under which replies with calls are remembered; "": not
  std::chrono::milliseconds smoothing{0};   // a stream's: pacer.h
  bool predicted = false;                   // usage counts a prediction's tokens
  bool score_only = false;                  // the reply is empty: only the prompt's log-probabilities matter
};

class ReplyRun final : public std::enable_shared_from_this<ReplyRun> {
 public:
  /// Submits the plan and follows it. Refusals of the engine are answered at once, before anything was
  /// written.
  static void start(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange,
                    std::unique_ptr<ReplyWriter> writer, ReplyPlan plan);
  ~ReplyRun();

  /// Any thread: ends the reply with an error, as a server that stops must.
  void abort(ApiError error);

 private:
  struct Choice;
  ReplyRun(std::shared_ptr<Service> service, std::shared_ptr<http::Exchange> exchange,
           std::unique_ptr<ReplyWriter> writer, ReplyPlan plan);

  struct Submitted {
    std::shared_ptr<Generation> generation;
    int64_t prompt_tokens;
  };
  void opened(std::vector<Submitted> submitted);
  void pump();
  bool pump_choice(int index);
  struct Shown;
  using Event = std::vector<Shown>;  // pieces that go out together
  void show(Choice& c, std::vector<ReplyPiece>& pieces);
  void write_waiting(int index, size_t count);
  void write_event(int index, Event& event);
  void give_sign(int index);
  void pump_later();
  void write_scores(int index, const std::vector<size_t>& tokens);
  void write_prompt_scores(int index);
  void end_choice(int index, ReplyEnd end, std::optional<int32_t> stop_token);
  void client_left();
  void cancel();
  void fail(const ApiError& error);
  void finish();
  Usage usage() const;
  ReplyStats stats() const;

  const std::shared_ptr<Service> service_;
  const std::shared_ptr<http::Exchange> exchange_;
  const std::unique_ptr<ReplyWriter> writer_;
  const ReplyPlan plan_;
  std::shared_ptr<http::Waker> waker_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::optional<Pacer::Clock::time_point> next_pump_;  // one is asked for
  bool done_ = false;
};

}  // namespace firesteel::api

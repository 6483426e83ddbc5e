// check tools: tool calls of any OpenAI-compatible server, each task whole and streamed.
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "app/check.h"
#include "app/commands.h"
#include "app/tool_tasks.h"
#include "base/clock.h"

namespace firesteel {
namespace {

/// Prints one line a check as soon as it is decided, and counts.
class Lines {
 public:
  /// On a terminal: what is waited for, until its line comes.
  void waiting(const std::string& name) const {
    if (!terminal_) return;
    std::fprintf(stderr, "      %s …\r", name.c_str());
    std::fflush(stderr);
  }
  void passed(const std::string& name, int64_t ns) {
    line("ok    ", name, std::to_string(ns / 1'000'000) + " ms", &passed_);
  }
  void failed(const std::string& name, const std::string& why) { line("FAIL  ", name, why, &failed_); }
  void skipped(const std::string& name, const std::string& why) { line("skip  ", name, why, &skipped_); }
  /// Exit code.
  int end() const {
    std::printf("%d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  void line(const char* verdict, const std::string& name, const std::string& what, int* count) {
    ++*count;
    if (terminal_) std::fputs("\033[K", stderr);
    std::printf("%s%s: %s\n", verdict, name.c_str(), what.c_str());
    std::fflush(stdout);
  }
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  int passed_ = 0, failed_ = 0, skipped_ = 0;
};

std::string difference(const ToolReply& whole, const ToolReply& streamed) {
  const auto call_text = [](const ToolReply& r) {
    std::string out;
    for (const ToolReply::Call& c : r.calls) out += c.name + c.arguments + " ";
    return out;
  };
  if (whole.finish_reason != streamed.finish_reason) {
    return "finish_reason is " + whole.finish_reason + " whole and " + streamed.finish_reason + " streamed";
  }
  if (call_text(whole) != call_text(streamed)) {
    return "the calls are " + call_text(whole) + "whole and " + call_text(streamed) + "streamed";
  }
  if (whole.content != streamed.content) return "the contents differ";
  if (whole.reasoning != streamed.reasoning) return "the reasoning differs";
  return "";
}

/// The reply of one way to ask, if it is right; what it was is printed.
std::optional<ToolReply> check_way(const ChatServer& server, const ToolTask& task, bool streamed,
                                   Lines& lines) {
  const std::string name = task.name + (streamed ? ", streamed" : ", whole");
  lines.waiting(name);
  const int64_t start = now_ns();
  Result<ToolReply> reply = ask_for_tools(server, task.body, streamed);
  if (!reply.ok()) {
    if (task.optional && reply.error().code == ErrorCode::kUnsupported) {
      lines.skipped(name, reply.error().message);
    } else {
      lines.failed(name, reply.error().message);
    }
    return std::nullopt;
  }
  const std::string fault = reply->fault.empty() ? task.judge(*reply) : reply->fault;
  if (!fault.empty()) {
    lines.failed(name, fault);
    return std::nullopt;
  }
  lines.passed(name, now_ns() - start);
  return std::move(*reply);
}

void check_task(const ChatServer& server, ToolTask task, Lines& lines) {
  task.body["model"] = server.model;
  const int64_t start = now_ns();
  const auto whole = check_way(server, task, false, lines);
  const auto streamed = check_way(server, task, true, lines);
  if (!whole || !streamed) return;
  const std::string name = task.name + ", streamed equals whole";
  const std::string fault = difference(*whole, *streamed);
  fault.empty() ? lines.passed(name, now_ns() - start) : lines.failed(name, fault);
}

Result<int> check_tools(const CheckToolsOptions& options) {
  ChatServer server;
  ASSIGN_OR_RETURN(server.url, parse_server_url(options.url));
  server.key = options.key;
  server.silence = std::chrono::seconds(options.timeout_s);
  server.model = options.model;
  if (server.model.empty()) {
    ASSIGN_OR_RETURN(server.model, first_model(server));
  }
  std::printf("%s, model %s\n", options.url.c_str(), server.model.c_str());
  Lines lines;
  for (ToolTask& task : tool_tasks()) check_task(server, std::move(task), lines);
  return lines.end();
}

}  // namespace

int run_check_tools(const CheckToolsOptions& options) {
  const Result<int> code = check_tools(options);
  return code.ok() ? *code : report(code.error());
}

}  // namespace firesteel

#include "transcript.h"

namespace firesteel::reply_test {

using nlohmann::ordered_json;

namespace {

std::vector<int32_t> end_ids() {
  std::vector<int32_t> ids;
  for (const char* end : {"<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>"})
    ids.push_back(demo().added_id(end));
  return ids;
}

Transcript written(const ordered_json& line, const ordered_json& toolsets) {
  Transcript t;
  t.name = line["name"];
  t.reply = line["reply"];
  const std::string by = line.value("by", "<|endoftext|>");
  t.end_by = by == "length" ? "" : by;
  t.shows_markup = line.value("shows_markup", false);
  ReplyOptions& o = t.options;
  o.raw = line.value("raw", false);
  o.in_think = line.value("think", true);
  o.continues_text = line.value("continues", false);
  if (line.contains("stop")) o.stop = line["stop"].get<std::vector<std::string>>();
  o.stop_in_reasoning = line.value("stop_in_reasoning", false);
  o.include_stop = line.value("include_stop", false);
  o.end_ids = end_ids();
  o.ignore_eos = line.value("ignore_eos", false);
  o.parallel_tool_calls = line.value("parallel", true);
  if (line.contains("tools") && line.value("tool_choice", "auto") != "none")
    o.tools = ToolSet::create(toolsets.at(line["tools"].get<std::string>()));
  t.expected.reasoning = line["reasoning"];
  t.expected.content = line["content"];
  for (const ordered_json& call : line["calls"]) {
    t.expected.calls.push_back({call[0], call[1], ""});
    t.expected.call_at.push_back(call[2]);
  }
  t.expected.finish_reason = line["finish"];
  if (line.contains("stop_reason")) t.expected.stop = line["stop_reason"];
  return t;
}

}  // namespace

std::vector<Transcript> written_transcripts() {
  std::ifstream in(FIRESTEEL_SOURCE_DIR "/tests/data/transcripts.jsonl");
  std::vector<Transcript> all;
  ordered_json toolsets;
  for (std::string line; std::getline(in, line);) {
    const ordered_json parsed = ordered_json::parse(line);
    if (parsed.contains("toolsets")) {
      toolsets = parsed["toolsets"];
    } else {
      all.push_back(written(parsed, toolsets));
    }
  }
  return all;
}

std::vector<Transcript> golden_transcripts() {
  std::ifstream in(FIRESTEEL_SOURCE_DIR "/tests/data/golden/chat.json");
  const ordered_json cases = ordered_json::parse(in)["parsing"];
  std::vector<Transcript> all;
  for (const ordered_json& c : cases) {
    Transcript t;
    t.name = "golden: " + c["name"].get<std::string>();
    t.reply = c["reply"];
    const std::string by = c["ended_by"];
    t.end_by = by == "length" ? "" : by == "stop" ? "<|user|>" : by;
    t.shows_markup = true;  // not said there
    t.options.in_think = c["prompt_ends_in"] == "<think>";
    t.options.end_ids = end_ids();
    const ordered_json& request = c["request"];
    t.options.parallel_tool_calls = request.value("parallel_tool_calls", true);
    if (request.value("tool_choice", "auto") != "none") t.options.tools = ToolSet::create(c["tools"]);
    const ordered_json& e = c["expected"];
    t.expected.reasoning = e["reasoning_content"];
    t.expected.content = e["content"];
    for (const ordered_json& call : e["tool_calls"]) {
      t.expected.calls.push_back({call["name"], call["arguments"], ""});
      t.expected.call_at.push_back(t.expected.content.size());  // none has text behind a call
    }
    t.expected.finish_reason = e["finish_reason"];
    all.push_back(std::move(t));
  }
  return all;
}

}  // namespace firesteel::reply_test

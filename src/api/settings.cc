#include "api/settings.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <system_error>

namespace firesteel::api {
namespace {

constexpr size_t kMaxBiases = 1024;

void read_priority(FieldReader& in, ReplySettings* out) {
  const Json* v = in.find("priority");
  if (v == nullptr) return;
  if (v->is_string()) {
    const std::string& word = v->get_ref<const std::string&>();
    if (word == "background") {
      out->background = true;
    } else if (word != "normal" && word != "default" && word != "foreground") {
      in.fail_value("priority", "priority must be \"background\", \"normal\" or a number");
    }
  } else if (v->is_number()) {
    out->background = v->get<double>() > 0;  // larger is later
  } else {
    in.fail_value("priority", "priority must be \"background\", \"normal\" or a number");
  }
}

void read_stops(FieldReader& in, ReplySettings* out) {
  in.strings("stop", &out->stop);
  if (out->stop.size() > kMaxStops) {
    in.fail_value("stop", "stop may hold at most " + std::to_string(kMaxStops) + " strings");
  }
  for (const std::string& s : out->stop) {
    if (s.empty()) in.fail_value("stop", "a stop string must not be empty");
  }
  in.boolean("stop_in_reasoning", &out->stop_in_reasoning);
  in.boolean("include_stop_str_in_output", &out->include_stop);
  const Json* ids = in.find("stop_token_ids");
  if (ids == nullptr) return;
  bool good = ids->is_array() && ids->size() <= 1024;
  for (size_t i = 0; good && i < ids->size(); ++i) {
    const Json& id = (*ids)[i];
    good = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX;
    if (good) out->stop_token_ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  if (!good) in.fail_value("stop_token_ids", "stop_token_ids must be a list of at most 1024 token ids");
}

void read_stream(FieldReader& in, ReplySettings* out) {
  in.boolean("stream", &out->stream);
  const Json* options = in.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    return in.fail_value("stream_options", "stream_options must be an object or null");
  FieldReader inner(*options);
  if (inner.has("include_usage")) {
    bool include = false;
    inner.boolean("include_usage", &include);
    out->stream_usage = include ? StreamUsage::kOwnChunk : StreamUsage::kNone;
  }
  inner.boolean("continuous_usage_stats", &out->continuous_usage);
  if (const Json* how = inner.find("tool_arguments"); how != nullptr) {
    out->incremental_calls = *how == "incremental";
    if (!out->incremental_calls && *how != "whole")
      inner.fail_value("tool_arguments",
                       "stream_options.tool_arguments must be \"whole\" or \"incremental\"");
  }
  if (!inner.ok()) {
    ApiError e = *inner.error();
    e.param = "stream_options." + e.param;
    in.fail(std::move(e));
  }
}

void read_bias(FieldReader& in, ReplyRules* out) {
  const Json* bias = in.find("logit_bias");
  if (bias == nullptr) return;
  const std::string what =
      "logit_bias must be an object of at most 1024 token ids with numbers from -100 to 100";
  if (!bias->is_object() || bias->size() > kMaxBiases) return in.fail_value("logit_bias", what);
  for (auto it = bias->begin(); it != bias->end(); ++it) {
    const std::string& key = it.key();
    int32_t id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0) {
      return in.fail_value("logit_bias", "logit_bias: " + key.substr(0, 32) + " is no token id");
    }
    const double value = it->is_number() ? it->get<double>() : NAN;
    if (!(value >= -100 && value <= 100)) return in.fail_value("logit_bias", what);
    const float added = value == -100 ? -std::numeric_limits<float>::infinity() : static_cast<float>(value);
    if (added != 0) out->bias.push_back({id, added});
  }
}

void read_penalties(FieldReader& in, ReplyRules* out) {
  in.number("presence_penalty", -2, 2, &out->presence);
  in.number("frequency_penalty", -2, 2, &out->frequency);
  in.number("repetition_penalty", 0.01, 100, &out->repetition);
}

// A text that the reply may resemble. It can only save time, by being offered to a drafter, and no drafter
// here takes one yet: the reply is the same and none of its tokens are counted as accepted.
void read_prediction(FieldReader& in, ReplySettings* out) {
  const Json* v = in.find("prediction");
  if (v == nullptr) return;
  const Json* content = find_field(*v, "content");
  bool good = find_string(*v, "type") == "content" && content != nullptr;
  if (good && !content->is_string()) {
    good = content->is_array();
    for (size_t i = 0; good && i < content->size(); ++i) {
      const Json* text = find_field((*content)[i], "text");
      good = text != nullptr && text->is_string();
    }
  }
  if (!good) {
    return in.fail_value(
        "prediction",
        "prediction must be {\"type\": \"content\", \"content\": a string or text parts}, or null");
  }
  out->predicted = true;
}

// Requests share kept prompts only under the same salt. No prompt outlives its request yet, so there is
// nothing to keep apart.
void check_cache_salt(FieldReader& in) {
  const Json* v = in.find("cache_salt");
  if (v != nullptr && (!v->is_string() || v->get_ref<const std::string&>().empty())) {
    in.fail_value("cache_salt", "cache_salt must be a string that is not empty, or null");
  }
}

}  // namespace

void read_settings(FieldReader& in, const SettingDefaults& defaults,
                   std::initializer_list<const char*> limit_names, ReplySettings* out) {
  SamplingParams& s = out->sampling;
  s.temperature = defaults.temperature;
  s.top_p = defaults.top_p;
  int64_t top_k = defaults.top_k;
  constexpr double kHuge = 1e300;
  in.number("temperature", -kHuge, kHuge, &s.temperature);
  in.number("top_p", 0.0, 1.0, &s.top_p);
  if (in.has("top_p") && s.top_p <= 0.0) in.fail_value("top_p", "top_p must be above 0 and at most 1");
  in.integer("top_k", INT64_MIN, INT64_MAX, &top_k);
  s.top_k = static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(top_k, 0), INT32_MAX));
  in.number("min_p", 0.0, 1.0, &s.min_p);
  in.seed("seed", &s.seed);
  if (!s.seed && defaults.random_seed) {
    std::random_device device;
    s.seed = (static_cast<uint64_t>(device()) << 32 | device()) >> 1;
  }
  for (const char* name : limit_names) {
    int64_t limit = 0;
    in.integer(name, 1, INT64_MAX, &limit);
    if (out->max_tokens == 0) out->max_tokens = limit;
  }
  in.integer("min_tokens", 0, INT32_MAX, &out->min_tokens);
  in.integer("n", 1, kMaxChoices, &out->choices);
  read_bias(in, &out->rules);
  read_penalties(in, &out->rules);
  read_answer_format(in, &out->format);
  in.boolean("ignore_eos", &out->ignore_eos);
  in.boolean("return_token_ids", &out->return_token_ids);
  bool draft = true;  // drafted equals serial, so the switch changes no reply
  in.boolean("draft", &draft);
  read_priority(in, out);
  read_prediction(in, out);
  check_cache_salt(in);
  read_stops(in, out);
  read_stream(in, out);
}

void read_chat_logprobs(FieldReader& in, ReplySettings* out) {
  bool wanted = false;
  int64_t top = 0;
  in.boolean("logprobs", &wanted);
  in.integer("top_logprobs", 0, kMaxLogprobs, &top);
  if (in.has("top_logprobs") && !wanted && (top > 0 || !in.ok())) {
    in.fail_value("top_logprobs", "top_logprobs needs logprobs: true");
  }
  if (wanted) out->logprobs = static_cast<int32_t>(top);
}

void read_completion_logprobs(FieldReader& in, ReplySettings* out) {
  const Json* v = in.find("logprobs");
  if (v == nullptr || (v->is_boolean() && !v->get<bool>())) return;
  int64_t top = 0;
  in.integer("logprobs", 0, kMaxLogprobs, &top);
  out->logprobs = static_cast<int32_t>(top);
}

void refuse_unbuilt(FieldReader& in) {
  const auto refuse = [&](const char* name, const char* why) {
    in.fail(unsupported_parameter(name, std::string(name) + " " + why));
  };
  if (in.has("web_search_options"))
    refuse("web_search_options", "is not supported: this server searches nothing");
  if (const Json* v = in.find("skip_special_tokens"); v != nullptr && !(v->is_boolean() && v->get<bool>())) {
    refuse("skip_special_tokens", "can only be true");
  }
  if (const Json* v = in.find("modalities"); v != nullptr) {
    const bool text_only = v->is_array() && v->size() == 1 && (*v)[0].is_string() && (*v)[0] == "text";
    if (!text_only)
      in.fail(
          unsupported_parameter("modalities", "only text replies are made: modalities must be [\"text\"]"));
  }
  if (in.has("audio")) refuse("audio", "is not supported: only text replies are made");
}

}  // namespace firesteel::api

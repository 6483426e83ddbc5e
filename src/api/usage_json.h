// Small pieces of reply JSON that several routes write. Pure functions, any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "api/reply.h"

namespace firesteel {
class Tokenizer;
}

namespace firesteel::api {

void append_usage(const Usage& usage, std::string* out);
void append_stats(const ReplyStats& stats, std::string* out);
/// {"token","bytes","logprob","top_logprobs"} of each token, with commas between.
void append_token_reports(std::span<const TokenReport> reports, const Tokenizer& tokenizer, std::string* out);
/// A log-probability as a JSON number; what is impossible is -9999.
void append_logprob(float value, std::string* out);
void append_token_ids(const std::vector<int32_t>& ids, std::string* out);
/// The matched stop string, the stop token's id, or null.
void append_stop_reason(const ChoiceEnd& end, std::string* out);
/// Seconds since the epoch, as `created` fields have it.
int64_t unix_time();

}  // namespace firesteel::api

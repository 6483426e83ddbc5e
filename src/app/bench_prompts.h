// What the benches ask: the questions of the sparkDash protocol in our own words, and texts of any length
// that are different each time. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace firesteel {

/// The question of `kind` ("structured", "prose", "code") for stream `index` (from 0) of `count`. `run` makes
/// it unlike the same question of another run, so that no server answers from what it kept.
std::string bench_question(std::string_view kind, int index, int count, std::string_view run);

/// Made-up English of `words` words in sentences, fixed by `seed`.
std::string filler_text(int64_t words, uint64_t seed);

/// A passphrase of three words, fixed by `seed`.
std::string passphrase(uint64_t seed);

}  // namespace firesteel

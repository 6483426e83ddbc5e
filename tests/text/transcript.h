// Replies with what a client must get for them, from files and made up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "text/reply_stream.h"
#include "text/utf8.h"
// after gtest.h and utf8.h
#include "reply_support.h"

namespace firesteel::reply_test {

struct Transcript {
  std::string name;
  ReplyOptions options;
  std::string reply;   // end tokens spelled out
  std::string end_by;  // the end token behind `reply`; empty: cut by the limit
  Outcome expected;    // the markup of its calls is not compared
  bool shows_markup = false;
  std::vector<size_t> call_due;  // bytes of `reply` after which each call must be out; empty: not known
};

/// tests/data/transcripts.jsonl: written by hand from the specification.
std::vector<Transcript> written_transcripts();
/// The parsing cases of the golden data.
std::vector<Transcript> golden_transcripts();
/// Replies put together from parts whose meaning is known, the same for one seed (and compiler: it may order
/// the draws of one expression).
std::vector<Transcript> made_transcripts(uint64_t seed, int count);

}  // namespace firesteel::reply_test

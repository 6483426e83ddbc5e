// Cuts text into the pieces that are merged on their own, as the `pre_tokenizer` node of tokenizer.json says:
// one or more Split steps, then ByteLevel. Immutable after create; split() from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace firesteel {

class PreTokenizer {
 public:
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;

  /// From the JSON node. kUnsupported names a step or option that is not served; kInvalidFile what is
  /// malformed.
  static Result<PreTokenizer> create(const nlohmann::ordered_json& node);

  /// Appends the end offset of each piece. The pieces tile `text`, which is valid UTF-8 below 2 GiB.
  Status split(std::string_view text, std::vector<uint32_t>& ends) const;

 private:
  struct Impl;
  explicit PreTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel

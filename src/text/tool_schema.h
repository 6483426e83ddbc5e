// The tools a request offers: names, and parameter schemas as far as they decide the type of an argument.
//
// The model writes argument values without quotes or types; the schema says what they are. Immutable after
// creation, any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace firesteel {

class ToolSet {
 public:
  /// From a request's `tools`: entries {"type":"function","function":{…}} or bare {"name", "parameters"}.
  /// Entries without a name are left out (the request was checked before). Never null.
  static std::shared_ptr<const ToolSet> create(const nlohmann::ordered_json& tools);
  ~ToolSet();

  bool empty() const;
  /// Index of the tool of this name, without regard to ASCII case when no spelling matches exactly; -1: not
  /// offered.
  int find(std::string_view name) const;
  const std::string& name(int tool) const;
  /// True when `arguments` (an object) has every required parameter.
  bool has_required(int tool, const nlohmann::ordered_json& arguments) const;
  /// The value that `text` stands for as argument `key` of a tool (-1: a tool that is not known, hence no
  /// schema).
  nlohmann::ordered_json value(int tool, std::string_view key, std::string_view text) const;
  /// True where value() is the text itself, whatever it is: it can be passed on before it ends.
  bool is_text(int tool, std::string_view key) const;

 private:
  struct Impl;
  explicit ToolSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel

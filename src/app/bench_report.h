// What every bench hands out: a plain table on standard output and a JSON file that says under which
// conditions its figures were taken.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace firesteel {

/// Right-aligned columns under their names; the first column is aligned left.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> columns) : rows_{std::move(columns)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "12.3"; "-" for what is not known (NaN).
std::string number_text(double value, int decimals);

/// Processor, cores, memory and system of this machine.
nlohmann::ordered_json describe_machine();

/// Writes {"what", "machine", "version", "commit", "taken", "command", …figures} to `file`, unless that is
/// "". `figures` is an object; numbers in it that are not known (NaN) become null,
/// the others have six digits.
Status write_bench_json(const std::string& file, const std::string& what, const std::string& command,
                        const nlohmann::ordered_json& figures);

}  // namespace firesteel

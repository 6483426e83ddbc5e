#include "app/bench_report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

#include "app/version.h"
#include "base/json.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

size_t width_of(const std::string& s) {  // characters, not bytes
  return static_cast<size_t>(std::count_if(
      s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// The value of "KEY : VALUE" or "KEY=VALUE" in a file of such lines.
std::string line_value(const char* path, const std::string& key, char separator) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(separator);
    if (at == std::string::npos || !line.starts_with(key)) continue;
    const size_t first = line.find_first_not_of(" \t\"", at + 1);
    if (first == std::string::npos) return "";
    return line.substr(first, line.find_last_not_of(" \t\"") + 1 - first);
  }
  return "";
}

/// "Debian GNU/Linux 12 (bookworm), Linux 6.1": the kernel by its series.
std::string describe_system() {
  std::string out = line_value("/etc/os-release", "PRETTY_NAME", '=');
  utsname kernel{};
  if (::uname(&kernel) != 0) return out;
  const std::string release = kernel.release;
  const size_t series = release.find('.', release.find('.') + 1);
  return out + (out.empty() ? "" : ", ") + kernel.sysname + " " + release.substr(0, series);
}

/// Unknown numbers as null, the others with six digits: more is noise.
Json tidy(const Json& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!std::isfinite(number)) return nullptr;
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", number);
    return std::strtod(text, nullptr);
  }
  if (!value.is_structured()) return value;
  Json out = value;
  for (auto& item : out) item = tidy(item);
  return out;
}

}  // namespace

std::string TextTable::text() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - width_of(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (i == 0 ? row[i] + pad : pad + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string number_text(double value, int decimals) {
  if (!std::isfinite(value)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

Json describe_machine() {
  Json out;
  std::string cpu = line_value("/proc/cpuinfo", "model name", ':');
  if (cpu.empty()) cpu = line_value("/proc/cpuinfo", "CPU part", ':');  // Arm
  out["cpu"] = cpu.empty() ? "unknown" : cpu;
  out["threads"] = std::thread::hardware_concurrency();
  const std::string memory = line_value("/proc/meminfo", "MemTotal", ':');
  out["memory_gib"] = std::round(std::atof(memory.c_str()) / (1 << 20) * 10) / 10;
  out["system"] = describe_system();
  out["architecture"] = program_architecture();
  return out;
}

Status write_bench_json(const std::string& file, const std::string& what, const std::string& command,
                        const Json& figures) {
  if (file.empty()) return {};
  Json out;
  out["what"] = what;
  out["machine"] = describe_machine();
  out["version"] = program_version();
  out["commit"] = program_commit();
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char day[32];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%SZ", &utc);
  out["taken"] = day;
  out["command"] = command;
  for (const auto& [key, value] : figures.items()) out[key] = tidy(value);
  const JsonStyle style{.key_separator = ": ", .indent = 2};
  std::ofstream to(file, std::ios::binary);
  to << dump_json(out, style) << "\n";
  to.close();
  if (!to) return Error{ErrorCode::kIo, file + ": cannot be written"};
  return {};
}

}  // namespace firesteel

// Logging: one line per event on standard error, through spdlog. Callable from any thread.
#pragma once

#include <spdlog/spdlog.h>

namespace firesteel {
/// Sets pattern and level of the process-wide logger; call once from main().
enum class LogLevel { kDebug, kInfo, kWarning };
void init_logging(LogLevel level);
}  // namespace firesteel

#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)

#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace firesteel {

void init_logging(LogLevel level) {
  auto logger = spdlog::stderr_color_mt("firesteel");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%L%$ %v");
  logger->set_level(level == LogLevel::kDebug  ? spdlog::level::debug
                    : level == LogLevel::kInfo ? spdlog::level::info
                                               : spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace firesteel

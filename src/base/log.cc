#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace firesteel {

void init_logging(bool verbose) {
  auto logger = spdlog::stderr_color_mt("firesteel");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%L%$ %v");
  logger->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace firesteel

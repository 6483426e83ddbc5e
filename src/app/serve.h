// The serve command: options in, exit code out.
#pragma once

#include "app/api_options.h"
#include "app/commands.h"

namespace firesteel {

struct ServeOptions {
  ModelOptions model;
  RankOptions ranks;
  ApiFlags api;
  int streams = 8;  // requests in one batch
  std::string context = "auto";
  bool verbose = false, quiet = false;
};
int run_serve(const ServeOptions& options);

}  // namespace firesteel

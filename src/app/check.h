// The check subcommands: what a running server must do, asked over HTTP. One line for each check, exit code 1
// if one failed.
#pragma once

#include <string>

namespace firesteel {

struct CheckToolsOptions {
  std::string url = "http://127.0.0.1:8888";
  std::string model;  // "": the first that the server lists
  std::string key;
  int timeout_s = 600;  // longest silence of the server
};
int run_check_tools(const CheckToolsOptions& options);

}  // namespace firesteel

// From our own errors to HTTP: the one place where a kind of failure gets its status, type and code.
// Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "http/message.h"
#include "text/messages.h"

namespace firesteel::api {

/// What a client is told. `param` is "" when no field is to blame.
struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;
  std::string param;
  std::string message;
};

/// The envelope that a route's clients understand.
enum class ErrorFormat { kOpenAi, kAnthropic };
ErrorFormat error_format_of(std::string_view path);

ApiError invalid_value(std::string param, std::string message);
ApiError unsupported_parameter(std::string param, std::string message);
/// Failures of our own parts. Texts that could show files or addresses are replaced by a neutral sentence and
/// logged.
ApiError from_error(const Error& error, std::string param = "");
ApiError from_refusal(const Refusal& refusal);
ApiError from_http(const http::Refusal& refusal);

/// The error object alone: {"error":{…}}, or Anthropic's form.
std::string error_body(const ApiError& error, ErrorFormat format, const std::string& request_id);
http::Response error_response(const ApiError& error, ErrorFormat format, const std::string& request_id);

}  // namespace firesteel::api

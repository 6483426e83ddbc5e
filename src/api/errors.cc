#include "api/errors.h"

#include <string>

#include "base/json.h"
#include "base/log.h"

namespace firesteel::api {
namespace {

struct Kind {
  int status;
  const char* code;
};

Kind kind_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return {400, "invalid_value"};
    case ErrorCode::kUnsupported:
      return {400, "unsupported_value"};
    case ErrorCode::kContextLength:
      return {400, "context_length_exceeded"};
    case ErrorCode::kTemplate:
      return {400, "template_error"};
    case ErrorCode::kLimit:
      return {400, "invalid_value"};
    case ErrorCode::kNotFound:
      return {404, "not_found"};
    case ErrorCode::kBusy:
      return {429, "server_busy"};
    case ErrorCode::kUnavailable:
      return {503, "engine_dead"};
    case ErrorCode::kGrammar:
      return {500, "grammar_failed"};
    case ErrorCode::kCancelled:
    case ErrorCode::kInvalidFile:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      break;
  }
  return {500, "internal_error"};
}

std::string type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string anthropic_type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

void append_field(const char* name, const std::string& value, bool null_if_empty, std::string* out) {
  out->append(",\"").append(name).append("\":");
  if (value.empty() && null_if_empty) {
    out->append("null");
  } else {
    append_json_string(value, false, out);
  }
}

}  // namespace

ErrorFormat error_format_of(std::string_view path) {
  const bool messages = path.starts_with("/v1/messages") || path.starts_with("/messages");
  return messages ? ErrorFormat::kAnthropic : ErrorFormat::kOpenAi;
}

ApiError invalid_value(std::string param, std::string message) {
  return {400, "invalid_request_error", "invalid_value", std::move(param), std::move(message)};
}

ApiError unsupported_parameter(std::string param, std::string message) {
  return {400, "invalid_request_error", "unsupported_parameter", std::move(param), std::move(message)};
}

ApiError from_error(const Error& error, std::string param) {
  const Kind kind = kind_of(error.code);
  ApiError out{kind.status, type_of(kind.status), kind.code, std::move(param), error.message};
  if (kind.status == 500 && error.code != ErrorCode::kGrammar) {
    LOG_ERROR("request failed: {}", error.message);
    out.message = "the server failed to answer this request; its log says why";
  }
  return out;
}

ApiError from_refusal(const Refusal& refusal) {
  ApiError out = from_error({refusal.code, refusal.message}, refusal.param);
  if (!refusal.api_code.empty()) out.code = refusal.api_code;
  return out;
}

ApiError from_http(const http::Refusal& refusal) {
  return {refusal.status, type_of(refusal.status), refusal.code, "", refusal.message};
}

std::string error_body(const ApiError& error, ErrorFormat format, const std::string& request_id) {
  std::string out;
  if (format == ErrorFormat::kAnthropic) {
    out = "{\"type\":\"error\",\"error\":{\"type\":";
    append_json_string(anthropic_type_of(error.status), false, &out);
    append_field("message", error.message, false, &out);
    out += "}";
    append_field("request_id", request_id, true, &out);
    return out + "}";
  }
  out = "{\"error\":{\"message\":";
  append_json_string(error.message, false, &out);
  append_field("type", error.type, false, &out);
  append_field("param", error.param, true, &out);
  append_field("code", error.code, true, &out);
  return out + "}}";
}

http::Response error_response(const ApiError& error, ErrorFormat format, const std::string& request_id) {
  http::Response response;
  response.status = error.status;
  response.body = error_body(error, format, request_id);
  response.error_code = error.code;
  if (error.status == 429 || error.status == 503) response.headers.push_back({"Retry-After", "5"});
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace firesteel::api

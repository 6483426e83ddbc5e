// Result<T> and Error: how everything that can go wrong outside our own code is reported.
//
// Owned by nobody, usable from any thread. No exception crosses a module border; a library that throws is
// wrapped where it is called. ErrorCode is the one enum of failures: `api` maps it to HTTP statuses in one
// place, `app` maps it to exit codes.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace firesteel {

enum class ErrorCode {
  kInvalidArgument,  // a caller's value is out of range or malformed        -> 400 invalid_value, exit 2
  kInvalidFile,      // a file on disk is damaged, truncated or mis-shaped    -> exit 1
  kNotFound,         // a file, tensor, key or route does not exist           -> 404, exit 1
  kUnsupported,      // well-formed, but not something this build does        -> 400 unsupported_value, exit 1
  kContextLength,    // prompt (and reply) exceed the window or the pool      -> 400 context_length_exceeded
  kBusy,             // admission refused for now                             -> 429 server_busy
  kUnavailable,      // loading, stopping, or a rank is lost                  -> 503
  kCancelled,        // the caller went away or asked to stop                 -> no bytes written
  kTemplate,         // the chat template refused the conversation            -> 400 template_error
  kLimit,            // a step, size, depth or time limit was reached         -> 400
  kOutOfMemory,      // the memory plan does not fit                          -> exit 1
  kIo,               // the operating system refused (message has errno text) -> exit 1
  kGrammar,          // no token fits what constrains the reply               -> 500 grammar_failed
  kInternal,         // our own bug, contained                                -> 500, exit 1
};

/// What went wrong, in one line that says what to do. `message` never holds addresses or secrets.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

/// A value or an Error. Test with ok() or bool before value(); value() on an error is a CHECK failure (our
/// bug).
template <typename T>
class [[nodiscard]] Result {
 public:
  using ValueType = T;
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return *std::get_if<0>(&checked()); }
  const T& value() const& { return *std::get_if<0>(&const_cast<Result*>(this)->checked()); }
  T&& value() && { return std::move(*std::get_if<0>(&checked())); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error>& checked();
  std::variant<T, Error> state_;
};

/// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : failed_(true), error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  static Status success() { return {}; }
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  bool failed_ = false;
  Error error_;
};

[[noreturn]] void result_without_value(const Error& error);

template <typename T>
std::variant<T, Error>& Result<T>::checked() {
  if (!ok()) result_without_value(*std::get_if<1>(&state_));
  return state_;
}

}  // namespace firesteel

#define FS_CONCAT_INNER(a, b) a##b
#define FS_CONCAT(a, b) FS_CONCAT_INNER(a, b)

/// Returns the error of a Status or Result expression from the enclosing function.
#define RETURN_IF_ERROR(expr)                                                          \
  do {                                                                                 \
    if (auto fs_status = (expr); !fs_status.ok()) return std::move(fs_status).error(); \
  } while (false)

/// `ASSIGN_OR_RETURN(auto x, f());`: x takes the value, or the error is returned.
#define ASSIGN_OR_RETURN(decl, expr) ASSIGN_OR_RETURN_IMPL(FS_CONCAT(fs_result_, __LINE__), decl, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, decl, expr)  \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()

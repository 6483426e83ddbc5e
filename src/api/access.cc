#include "api/access.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

#include "base/log.h"

namespace firesteel::api {
namespace {

constexpr int64_t kLookEveryNs = 1'000'000'000;

std::string_view trim(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

std::string_view key_of(const http::RequestHead& head) {
  const std::string_view authorization = head.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() > kBearer.size() &&
      http::equals_ignoring_case(authorization.substr(0, kBearer.size()), kBearer)) {
    return trim(authorization.substr(kBearer.size()));
  }
  return head.header("x-api-key");
}

}  // namespace

Result<Access::Key> Access::read_key(std::string_view line, size_t number) {
  std::string label = "key-" + std::to_string(number);
  std::string_view key = trim(line);
  const size_t colon = key.find(": ");
  if (colon != std::string_view::npos) {
    label = std::string(trim(key.substr(0, colon)));
    key = trim(key.substr(colon + 2));
  }
  if (key.empty() || label.empty() || key.find_first_of(" \t") != std::string_view::npos) {
    return Error{ErrorCode::kInvalidArgument, "API key " + std::to_string(number) +
                                                  " must be KEY or LABEL: KEY, without blanks in the key"};
  }
  Key out;
  out.label = std::move(label);
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), out.digest.data());
  return out;
}

Result<std::vector<Access::Key>> Access::read_file(FileStamp* stamp) const {
  struct stat info {};
  if (::stat(options_.key_file.c_str(), &info) != 0) {
    return Error{ErrorCode::kIo, "cannot read the key file " + options_.key_file};
  }
  *stamp = {info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_size, static_cast<int64_t>(info.st_ino)};
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error{ErrorCode::kInvalidFile,
                 options_.key_file + " may be read by its owner only: chmod 600 " + options_.key_file};
  }
  std::ifstream in(options_.key_file);
  if (!in) return Error{ErrorCode::kIo, "cannot read the key file " + options_.key_file};
  std::vector<Key> keys;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    const std::string_view text = trim(line);
    if (text.empty() || text.starts_with('#')) continue;
    Result<Key> key = read_key(text, number);
    if (!key.ok()) {
      return Error{ErrorCode::kInvalidFile, options_.key_file + ":" + std::to_string(number) +
                                                ": a line must be "
                                                "KEY or LABEL: KEY"};
    }
    keys.push_back(std::move(key).value());
  }
  if (keys.empty()) return Error{ErrorCode::kInvalidFile, options_.key_file + " holds no key"};
  return keys;
}

Result<std::unique_ptr<Access>> Access::create(AccessOptions options) {
  for (const std::string& origin : options.cors_origins) {
    const bool any = origin == "*" && options.cors_origins.size() == 1;
    const bool web =
        (origin.starts_with("http://") || origin.starts_with("https://")) && !origin.ends_with('/');
    if (!any && !web) {
      return Error{
          ErrorCode::kInvalidArgument,
          "a CORS origin must be http(s)://HOST[:PORT] without a path, or \"*\" alone; not " + origin};
    }
  }
  std::unique_ptr<Access> out(new Access(std::move(options)));
  for (const std::string& text : out->options_.keys) {
    ASSIGN_OR_RETURN(Key key, read_key(text, out->fixed_.size() + 1));
    out->fixed_.push_back(std::move(key));
  }
  if (!out->options_.key_file.empty()) {
    ASSIGN_OR_RETURN(out->from_file_, out->read_file(&out->stamp_));
  }
  return out;
}

bool Access::keys_required() const { return !fixed_.empty() || !options_.key_file.empty(); }

void Access::reload_if_changed() {
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  if (now < next_look_ns_) return;
  next_look_ns_ = now + kLookEveryNs;
  struct stat info {};
  if (::stat(options_.key_file.c_str(), &info) != 0) return;
  const FileStamp seen{info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_size,
                       static_cast<int64_t>(info.st_ino)};
  if (seen == stamp_) return;
  Result<std::vector<Key>> keys = read_file(&stamp_);
  if (!keys.ok()) {
    LOG_WARN("the key file changed and is not used: {}", keys.error().message);
    return;
  }
  from_file_ = std::move(keys).value();
  LOG_INFO("read {} keys from {}", from_file_.size(), options_.key_file);
}

std::optional<std::string> Access::authenticate(const http::RequestHead& head) {
  const std::string_view sent = key_of(head);
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(sent.data()), sent.size(), digest.data());
  std::optional<std::string> label;
  const auto look = [&](const std::vector<Key>& keys) {
    // Every key is compared, so that the time says nothing about which one was near.
    for (const Key& key : keys) {
      if (CRYPTO_memcmp(key.digest.data(), digest.data(), digest.size()) == 0) label = key.label;
    }
  };
  look(fixed_);
  if (!options_.key_file.empty()) {
    std::lock_guard lock(mutex_);
    reload_if_changed();
    look(from_file_);
  }
  if (sent.empty()) return std::nullopt;
  return label;
}

http::Response Access::preflight(const http::RequestHead& head) const {
  http::Response response;
  response.status = 204;
  response.headers.push_back({"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"});
  const std::string_view wanted = head.header("access-control-request-headers");
  if (!wanted.empty()) response.headers.push_back({"Access-Control-Allow-Headers", std::string(wanted)});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

void Access::add_cors_headers(const http::RequestHead& head, http::Headers* out) const {
  if (!cors()) return;
  out->push_back({"Vary", "Origin"});
  const std::string_view origin = head.header("origin");
  if (options_.cors_origins.front() == "*") {
    out->push_back({"Access-Control-Allow-Origin", "*"});
  } else if (std::find(options_.cors_origins.begin(), options_.cors_origins.end(), origin) !=
             options_.cors_origins.end()) {
    out->push_back({"Access-Control-Allow-Origin", std::string(origin)});
  } else {
    return;
  }
  out->push_back({"Access-Control-Expose-Headers", "x-request-id"});
}

}  // namespace firesteel::api

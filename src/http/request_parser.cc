#include "http/request_parser.h"

#include <boost/beast/http/parser.hpp>

namespace firesteel::http {
namespace {

namespace beast = boost::beast;

constexpr std::string_view kLastChunk = "0\r\n\r\n";

// A body that grows with what arrives: the stock string body reserves the declared length at once, which
// would let a header line choose the size of an allocation.
struct GrowingBody {
  struct value_type {
    std::string bytes;
    uint64_t received = 0;
    uint64_t limit = 0;
    bool discard = false;
  };

  class reader {
   public:
    template <bool IsRequest, class Fields>
    reader(beast::http::header<IsRequest, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>&, beast::error_code& ec) { ec = {}; }

    template <class Buffers>
    size_t put(const Buffers& buffers, beast::error_code& ec) {
      size_t taken = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer buffer(*it);
        if (buffer.size() > body_.limit - body_.received) {
          ec = beast::http::error::body_limit;
          return taken;
        }
        body_.received += buffer.size();
        taken += buffer.size();
        if (!body_.discard) body_.bytes.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      ec = {};
      return taken;
    }

    void finish(beast::error_code& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};

std::string_view to_std(beast::string_view s) { return {s.data(), s.size()}; }

bool printable(std::string_view s) {
  for (char c : s) {
    if (c < 33 || c > 126) return false;
  }
  return true;
}

Refusal bad_request(std::string message) { return {400, "bad_request", std::move(message)}; }

/// A line feed alone in the head as far as it is there: readers behind and before us could see other lines.
/// `bytes` begins with a line of the head; an empty one ends it, and what follows is the body's or the next
/// request's.
bool has_bare_line_feed(std::string_view bytes) {
  if (bytes.starts_with("\r\n")) return false;
  const std::string_view head = bytes.substr(0, bytes.find("\r\n\r\n"));
  for (size_t at = head.find('\n'); at != std::string_view::npos; at = head.find('\n', at + 1))
    if (at == 0 || head[at - 1] != '\r') return true;
  return false;
}

Refusal frame_too_large() { return bad_request("a chunk header or the trailers are too large"); }

Refusal refusal_of(const beast::error_code& ec, size_t head_limit) {
  using beast::http::error;
  if (ec == error::header_limit) {
    return {431, "header_too_large",
            "the request head is larger than " + std::to_string(head_limit) + " bytes"};
  }
  if (ec == error::body_limit)
    return {413, "request_too_large", "the request body is larger than this route allows"};
  if (ec == error::bad_version)
    return {505, "http_version_not_supported", "only HTTP/1.1 and HTTP/1.0 are spoken"};
  if (ec == error::bad_content_length || ec == error::multiple_content_length) {
    return bad_request("the Content-Length header is malformed or conflicts with another header");
  }
  if (ec == error::bad_transfer_encoding) {
    return bad_request("the Transfer-Encoding header conflicts with another header");
  }
  if (ec == error::bad_chunk || ec == error::bad_chunk_extension) {
    return bad_request("the chunked body is malformed");
  }
  return bad_request("the request is not well-formed HTTP");
}

}  // namespace

struct RequestParser::Impl {
  explicit Impl(const ParserLimits& l) : limits(l) {
    parser.header_limit(static_cast<std::uint32_t>(limits.head_bytes));
    parser.body_limit(boost::none);  // counted in GrowingBody, where the route's limit is known
    parser.eager(false);
  }

  void fail(Refusal why) {
    if (!failure) failure = std::move(why);
  }

  void accept_head();

  ParserLimits limits;
  beast::http::request_parser<GrowingBody> parser;
  RequestHead head;
  std::optional<Refusal> failure;
  std::optional<uint64_t> length;
  bool head_done = false, keep_alive = false, v11 = false, expects = false;
};

void RequestParser::Impl::accept_head() {
  const auto& message = parser.get();
  v11 = message.version() >= 11;
  keep_alive = message.keep_alive();
  head.method.assign(to_std(message.method_string()));
  size_t count = 0, lengths = 0, codings = 0, hosts = 0;
  for (const auto& field : message) {
    if (++count > limits.headers) {
      fail({431, "header_too_large",
            "the request has more than " + std::to_string(limits.headers) + " headers"});
      return;
    }
    head.headers.push_back({std::string(to_std(field.name_string())), std::string(to_std(field.value()))});
    const std::string& value = head.headers.back().value;
    if (field.name() == beast::http::field::content_length) {
      ++lengths;
      if (value.find(',') != std::string::npos) ++lengths;
    } else if (field.name() == beast::http::field::transfer_encoding) {
      ++codings;
      if (!equals_ignoring_case(value, "chunked")) {
        fail(bad_request("the only transfer coding understood is a single \"chunked\""));
        return;
      }
    } else if (field.name() == beast::http::field::host) {
      ++hosts;
    } else if (field.name() == beast::http::field::expect) {
      if (!equals_ignoring_case(value, "100-continue")) {
        fail({417, "expectation_failed", "the only expectation understood is 100-continue"});
        return;
      }
      expects = v11;
    }
  }
  if (lengths > 1) return fail(bad_request("more than one Content-Length was sent"));
  if (lengths > 0 && codings > 0) {
    return fail(bad_request("both Content-Length and Transfer-Encoding were sent"));
  }
  if (codings > 0 && !v11) return fail(bad_request("HTTP/1.0 has no Transfer-Encoding"));
  if (hosts > 1 || (v11 && hosts == 0)) return fail(bad_request("exactly one Host header is needed"));

  std::string_view target = to_std(message.target());
  if (target.empty() || (target[0] != '/' && target != "*")) {
    // The absolute form that proxies are sent: scheme and authority are dropped.
    const size_t scheme = target.find("://");
    if (scheme == std::string_view::npos) return fail(bad_request("the request target must start with '/'"));
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const size_t hash = target.find('#');
  if (hash != std::string_view::npos) target = target.substr(0, hash);
  const size_t question = target.find('?');
  if (question != std::string_view::npos) head.query.assign(target.substr(question + 1));
  head.path.assign(target.substr(0, question));
  if (head.path.size() > 1 && head.path.back() == '/') head.path.pop_back();

  const std::string_view id = head.header("x-request-id");
  head.request_id = !id.empty() && id.size() <= 128 && printable(id) ? std::string(id) : random_id("req_");
  if (const auto n = parser.content_length()) length = *n;
  if (!parser.chunked() && !length) length = 0;
  head_done = true;
}

RequestParser::RequestParser(const ParserLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::feed(std::string_view bytes) {
  Impl& p = *impl_;
  size_t used = 0;
  while (used < bytes.size() && !p.failure && !complete()) {
    const bool head_before = p.head_done;
    const std::string_view rest = bytes.substr(used);
    if (!head_before && has_bare_line_feed(rest)) {
      p.fail(bad_request("lines of the request head must end in CR LF"));
      break;
    }
    beast::error_code ec;
    // Fewer bytes than a last chunk has cannot end the body, and the parser asserts that many once it has
    // begun the last chunk.
    if (p.parser.is_header_done() && p.parser.chunked() && rest.size() < kLastChunk.size()) break;
    const uint64_t body_before = body_received();
    const size_t n = p.parser.put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
    used += n;
    // What is taken besides the head and the body frames a chunk. One frame is taken whole or not at all, so
    // that this limit and the one on what waits below refuse the same requests, however the bytes arrive.
    if (head_before && n - (body_received() - body_before) > p.limits.frame_bytes) {
      p.fail(frame_too_large());
      break;
    }
    if (ec == beast::http::error::need_more) {
      const size_t limit = p.head_done ? p.limits.frame_bytes : p.limits.head_bytes;
      if (bytes.size() - used > limit) {
        p.fail(p.head_done ? frame_too_large()
                           : refusal_of(beast::http::error::header_limit, p.limits.head_bytes));
      }
      break;
    }
    if (ec) {
      p.fail(refusal_of(ec, p.limits.head_bytes));
      break;
    }
    if (!head_before && p.parser.is_header_done()) {
      p.accept_head();
      break;
    }
  }
  return used;
}

bool RequestParser::head_complete() const { return impl_->head_done; }
bool RequestParser::complete() const {
  return impl_->head_done && !impl_->failure && impl_->parser.is_done();
}
const std::optional<Refusal>& RequestParser::failure() const { return impl_->failure; }
const RequestHead& RequestParser::head() const { return impl_->head; }
RequestHead RequestParser::take_head() { return std::move(impl_->head); }
bool RequestParser::keep_alive() const { return impl_->keep_alive; }
bool RequestParser::http_1_1() const { return impl_->v11; }
bool RequestParser::expects_continue() const { return impl_->expects; }
std::optional<uint64_t> RequestParser::content_length() const { return impl_->length; }

void RequestParser::set_body_limit(uint64_t bytes, bool discard) {
  auto& body = impl_->parser.get().body();
  body.limit = bytes;
  body.discard = discard;
}

uint64_t RequestParser::body_received() const { return impl_->parser.get().body().received; }
std::string RequestParser::take_body() { return std::move(impl_->parser.get().body().bytes); }

}  // namespace firesteel::http

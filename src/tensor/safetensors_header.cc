// The header of a safetensors file: a JSON object {name: {dtype, shape, data_offsets}, "__metadata__": {text:
// text}}.
//
// Read by a SAX state machine that knows the three levels such a header has: anything deeper, or of another
// type than the place allows, ends the parse at once, so hostile JSON costs no stack and no memory beyond the
// text's own size.
#include <algorithm>
#include <cinttypes>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tensor/safetensors.h"

namespace firesteel {
namespace {

using nlohmann::json;

constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameShown = 200;

/// A name from a file as it may stand in a one-line message.
std::string shown(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, kMaxNameShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  if (name.size() > kMaxNameShown) out += "...";
  return out;
}

class HeaderReader {
 public:
  HeaderReader(uint64_t data_start, uint64_t file_size, std::vector<TensorInfo>& out)
      : data_start_(data_start), file_size_(file_size), out_(out) {}

  const std::string& problem() const { return problem_; }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(json::number_integer_t) { return unexpected("a negative number"); }
  bool number_float(json::number_float_t, const json::string_t&) {
    return unexpected("a number that is no 64-bit integer");
  }
  bool binary(json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(json::number_unsigned_t value) {
    if (place_ == Place::kShape) {
      if (tensor_.shape.size() == kMaxRank)
        return fail("more than " + std::to_string(kMaxRank) + " dimensions");
      if (value > static_cast<uint64_t>(INT64_MAX)) return fail("a dimension is too large");
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) return fail("data_offsets holds more than two numbers");
      range_[offsets_++] = value;
      return true;
    }
    return unexpected("a number");
  }

  bool string(json::string_t& value) {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kDtypeValue) return unexpected("a string");
    const auto type = parse_dtype(value);
    if (!type) return fail("unknown dtype \"" + shown(value) + "\"");
    tensor_.dtype = *type;
    place_ = Place::kTensor;
    return true;
  }

  bool start_object(size_t) {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTensorValue:
        place_ = Place::kTensor;
        return true;
      case Place::kMetadataValue:
        place_ = Place::kMetadata;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(json::string_t& name) {
    switch (place_) {
      case Place::kTop:
        if (name == "__metadata__") {
          if (std::exchange(has_metadata_, true)) return fail("__metadata__ appears twice");
          place_ = Place::kMetadataValue;
        } else {
          tensor_ = TensorInfo{};
          tensor_.name = name;
          offsets_ = 0;
          has_dtype_ = has_shape_ = has_offsets_ = false;
          in_tensor_ = true;
          place_ = Place::kTensorValue;
        }
        return true;
      case Place::kTensor:
        if (name == "dtype") return field(has_dtype_, Place::kDtypeValue, name);
        if (name == "shape") return field(has_shape_, Place::kShapeValue, name);
        if (name == "data_offsets") return field(has_offsets_, Place::kOffsetsValue, name);
        return fail("unknown field \"" + shown(name) + "\"");
      default:
        return true;  // a key of __metadata__
    }
  }

  bool end_object() {
    if (place_ == Place::kTensor) {
      place_ = Place::kTop;
      const bool good = finish_tensor();
      in_tensor_ = false;
      return good;
    }
    if (place_ == Place::kMetadata) place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) {
    switch (place_) {
      case Place::kShapeValue:
        place_ = Place::kShape;
        return true;
      case Place::kOffsetsValue:
        place_ = Place::kOffsets;
        return true;
      default:
        return unexpected("an array");
    }
  }

  bool end_array() {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) {
    problem_ = "the header is not valid JSON near byte " + std::to_string(position);
    return false;
  }

 private:
  enum class Place {
    kStart,          // before the outer object
    kTop,            // in it: names
    kMetadataValue,  // an object must follow
    kMetadata,       // text to text
    kTensorValue,    // an object must follow
    kTensor,         // dtype, shape, data_offsets
    kDtypeValue,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
  };

  bool fail(const std::string& what) {
    problem_ = (in_tensor_ ? "tensor " + shown(tensor_.name) + ": " : "header: ") + what;
    return false;
  }

  bool unexpected(const char* what) {
    switch (place_) {
      case Place::kShape:
        return fail(std::string("shape holds ") + what);
      case Place::kOffsets:
        return fail(std::string("data_offsets holds ") + what);
      case Place::kMetadata:
      case Place::kMetadataValue:
        return fail(std::string("__metadata__ must map text to text, found ") + what);
      default:
        return fail(std::string("found ") + what + " where none belongs");
    }
  }

  bool field(bool& seen, Place next, const std::string& name) {
    if (std::exchange(seen, true)) return fail("field \"" + name + "\" appears twice");
    place_ = next;
    return true;
  }

  bool finish_tensor() {
    if (!has_dtype_) return fail("dtype is missing");
    if (!has_shape_) return fail("shape is missing");
    if (!has_offsets_ || offsets_ != 2) return fail("data_offsets must hold two numbers");
    uint64_t bytes = dtype_size(tensor_.dtype);
    for (const int64_t dim : tensor_.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes) ||
          bytes > static_cast<uint64_t>(INT64_MAX)) {
        return fail("its shape overflows 64 bits");
      }
    }
    const auto [begin, end] = range_;
    if (begin > end) return fail("data_offsets run backwards");
    if (end - begin != bytes) {
      return fail("shape and dtype need " + std::to_string(bytes) + " bytes, data_offsets span " +
                  std::to_string(end - begin));
    }
    if (end > file_size_ - data_start_) {
      return fail("ends at byte " + std::to_string(end) + " of the data, which has " +
                  std::to_string(file_size_ - data_start_) + ": the file is truncated or damaged");
    }
    tensor_.begin = data_start_ + begin;
    tensor_.bytes = bytes;
    out_.push_back(std::move(tensor_));
    return true;
  }

  const uint64_t data_start_, file_size_;
  std::vector<TensorInfo>& out_;
  Place place_ = Place::kStart;
  TensorInfo tensor_;
  std::array<uint64_t, 2> range_ = {};
  size_t offsets_ = 0;
  bool in_tensor_ = false;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::string problem_;
};

/// What is wrong between tensors: a name twice, bytes shared. Empty = nothing.
std::string conflict(const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->name == order[i]->name) return "tensor " + shown(order[i]->name) + ": appears twice";
  }
  std::erase_if(order, [](const TensorInfo* t) { return t->bytes == 0; });
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->begin < order[i - 1]->begin + order[i - 1]->bytes) {
      return "tensor " + shown(order[i]->name) + ": its bytes overlap those of " + shown(order[i - 1]->name);
    }
  }
  return {};
}

}  // namespace

Result<std::vector<TensorInfo>> parse_safetensors_header(std::string_view header, uint64_t data_start,
                                                         uint64_t file_size, const std::string& path) {
  const auto invalid = [&](const std::string& what) {
    return Error{ErrorCode::kInvalidFile, path + ": " + what};
  };
  if (header.size() > SafetensorsFile::kMaxHeaderBytes) return invalid("the header is larger than 100 MiB");
  if (data_start > file_size)
    return invalid("the header runs past the end: the file is truncated or damaged");
  if (header.empty() || header.front() != '{') return invalid("the header is not a JSON object");
  // The JSON reader takes a zero byte for the end of the text.
  if (header.find('\0') != std::string_view::npos) return invalid("the header holds a zero byte");

  std::vector<TensorInfo> tensors;
  HeaderReader reader(data_start, file_size, tensors);
  if (!json::sax_parse(header.begin(), header.end(), &reader)) return invalid(reader.problem());
  if (std::string problem = conflict(tensors); !problem.empty()) return invalid(problem);
  return tensors;
}

}  // namespace firesteel

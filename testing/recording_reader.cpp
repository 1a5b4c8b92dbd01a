#include <hyla/error.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "testing/recording_format.h"

namespace hyla::testing {
namespace {

using namespace format;
using nlohmann::json;

constexpr std::size_t kMaxBuffers = 64;
constexpr int kMaxDepth = 8;  // of the header's JSON; ours has 4
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 48;
constexpr int kMaxThreads = 1024;

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3,
                            DType::kInt8,    DType::kInt32,    DType::kInt64,   DType::kUInt32,
                            DType::kUInt8,   DType::kBool};

[[noreturn]] void fail(const std::string& expected, const std::string& got) {
  // What came is quoted from the file: no control character of it may reach a terminal.
  std::string shown = got.substr(0, 120);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  throw InvalidArgument("file", expected, shown);
}

std::string in_quotes(std::string_view text) { return std::string("\"").append(text).append("\""); }

// Brackets outside strings: a file of a million of them must not reach the parser.
void check_depth(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > kMaxDepth) fail("a header of at most 8 levels", "more");
  }
}

const json& member(const json& object, const char* name) {
  if (!object.is_object()) fail("an object with " + in_quotes(name), object.type_name());
  const auto found = object.find(name);
  if (found == object.end()) fail(in_quotes(name) + " in the header", "none");
  return *found;
}

std::string text_of(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_string()) fail("text in " + in_quotes(name), value.type_name());
  return value.get<std::string>();
}

std::int64_t integer_of(const json& value, const char* name, std::int64_t low, std::int64_t high) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    fail(in_quotes(name) + " from " + std::to_string(low) + " to " + std::to_string(high),
         value.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> dims_of(const json& object, const char* name) {
  const json& list = member(object, name);
  if (!list.is_array() || list.size() > static_cast<std::size_t>(TensorView::kMaxRank)) {
    fail("a list of at most 6 sizes in " + in_quotes(name), list.type_name());
  }
  std::vector<std::int64_t> result;
  for (const json& entry : list) result.push_back(integer_of(entry, name, 0, kMaxExtent));
  return result;
}

struct Shape {
  std::vector<std::int64_t> shape, strides;
  std::int64_t elements = 1;  // product of the shape
  std::int64_t extent = 0;    // elements from the first to the last, both included
};

Shape shape_of(const json& entry) {
  Shape s;
  s.shape = dims_of(entry, "shape");
  s.strides = dims_of(entry, "strides");
  if (s.shape.size() != s.strides.size()) fail("as many strides as sizes", "another number");
  std::int64_t last = 0;
  for (std::size_t d = 0; d < s.shape.size(); ++d) {
    std::int64_t step = 0;
    const bool overflow = __builtin_mul_overflow(s.elements, s.shape[d], &s.elements) ||
                          __builtin_mul_overflow(s.shape[d] - 1, s.strides[d], &step) ||
                          __builtin_add_overflow(last, step, &last);
    if (overflow || s.elements > kMaxExtent || last > kMaxExtent) {
      fail("a tensor of at most 2^48 elements", "a larger one");
    }
  }
  s.extent = s.elements == 0 ? 0 : last + 1;
  // Fewer elements than indices would mean that they share memory: a small file could then ask for
  // any amount of work.
  if (s.elements > s.extent) fail("tensors whose elements do not overlap", "overlapping ones");
  return s;
}

DType dtype_of(const json& entry) {
  const std::string name = text_of(entry, "dtype");
  for (DType dtype : kTypes) {
    if (name == name_of(dtype)) return dtype;
  }
  fail("a dtype", in_quotes(name));
}

struct Section {
  std::size_t begin, end;
};

class Reader {
 public:
  Reader(const json& header, std::span<const std::byte> data) : header_(header), data_(data) {}

  std::vector<Buffer> buffers(const char* name) {
    const json& list = member(header_, name);
    if (!list.is_array() || list.size() > kMaxBuffers) {
      fail("a list of at most 64 entries in " + in_quotes(name), list.type_name());
    }
    std::vector<Buffer> result;
    for (const json& entry : list) result.push_back(buffer(entry));
    return result;
  }

  void check_sections() {
    std::sort(sections_.begin(), sections_.end(),
              [](const Section& a, const Section& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < sections_.size(); ++i) {
      if (sections_[i].begin < sections_[i - 1].end) {
        fail("buffers that do not overlap in the file", "overlapping ones");
      }
    }
    const std::size_t end = sections_.empty() ? 0 : align(sections_.back().end);
    if (data_.size() != end) {
      fail(std::to_string(end) + " bytes of data behind the header", std::to_string(data_.size()));
    }
  }

  TensorView tensor(const char* name, const std::vector<Buffer>& buffers) {
    const json& list = member(header_, "tensors");
    if (!list.is_object()) fail("an object in \"tensors\"", list.type_name());
    const auto found = list.find(name);
    if (found == list.end()) return {};
    const auto count = static_cast<std::int64_t>(buffers.size());
    const auto index =
        static_cast<std::size_t>(integer_of(member(*found, "buffer"), "buffer", 0, count - 1));
    const Buffer& buffer = buffers[index];
    const auto elements = static_cast<std::int64_t>(buffer.data_bytes() / size_of(buffer.dtype()));
    const std::int64_t offset = integer_of(member(*found, "offset"), "offset", 0, elements);
    const Shape s = shape_of(*found);
    if (s.extent > elements - offset) {
      fail("tensor " + std::string(name) + " inside its buffer", "one that reaches past its end");
    }
    TensorView view = buffer.view();
    view.data = static_cast<std::byte*>(view.data) +
                offset * static_cast<std::int64_t>(size_of(buffer.dtype()));
    view.rank = static_cast<int>(s.shape.size());
    std::fill(view.shape, view.shape + TensorView::kMaxRank, 0);
    std::fill(view.strides, view.strides + TensorView::kMaxRank, 0);
    std::copy(s.shape.begin(), s.shape.end(), view.shape);
    std::copy(s.strides.begin(), s.strides.end(), view.strides);
    return view;
  }

  template <class T>
  void value(const char* name, T& field) {
    const json& entry = member(member(header_, "values"), name);
    if constexpr (requires { field.has_value(); }) {
      if (entry.is_null()) return field.reset();
      field.emplace();
      plain(name, entry, *field);
    } else {
      plain(name, entry, field);
    }
  }

 private:
  Buffer buffer(const json& entry) {
    const std::string name = text_of(entry, "name");
    const DType dtype = dtype_of(entry);
    const Shape s = shape_of(entry);
    const std::int64_t shift = integer_of(member(entry, "shift"), "shift", 0, 64);
    const auto limit = static_cast<std::int64_t>(data_.size());
    const std::int64_t offset = integer_of(member(entry, "offset"), "offset", 0, limit);
    const std::int64_t bytes = integer_of(member(entry, "bytes"), "bytes", 0, limit - offset);
    if (bytes != s.extent * static_cast<std::int64_t>(size_of(dtype))) {
      fail("\"bytes\" to match the shape and strides of " + name.substr(0, 40),
           std::to_string(bytes));
    }
    const auto begin = static_cast<std::size_t>(offset);
    if (bytes > 0) sections_.push_back({begin, begin + static_cast<std::size_t>(bytes)});
    Buffer result(name, dtype, s.shape, s.strides, shift);
    // Element by element, so that the gaps keep their poison.
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    for_each_element(result.view(), [&](std::int64_t, std::int64_t element) {
      std::memcpy(result.data() + element * size, data_.data() + offset + element * size,
                  static_cast<std::size_t>(size));
    });
    return result;
  }

  void plain(const char* name, const json& entry, bool& field) {
    if (!entry.is_boolean()) fail("true or false in " + in_quotes(name), entry.type_name());
    field = entry.get<bool>();
  }
  void plain(const char* name, const json& entry, std::int64_t& field) {
    field = integer_of(entry, name, INT64_MIN, INT64_MAX);
  }
  void plain(const char* name, const json& entry, double& field) {
    if (!entry.is_number()) fail("a number in " + in_quotes(name), entry.type_name());
    field = entry.get<double>();
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void plain(const char* name, const json& entry, Enum& field) {
    const auto names = enum_names(field);
    const auto found = std::find(names.begin(), names.end(),
                                 entry.is_string() ? entry.get<std::string>() : std::string());
    if (found == names.end()) fail("a known word in " + in_quotes(name), entry.type_name());
    field = static_cast<Enum>(found - names.begin());
  }

  const json& header_;
  std::span<const std::byte> data_;
  std::vector<Section> sections_;
};

template <std::size_t I = 0>
void select_operation(Call& call, const std::string& operation) {
  if constexpr (I < std::variant_size_v<Params>) {
    call.params.emplace<I>();
    if (operation != call.operation()) select_operation<I + 1>(call, operation);
  } else {
    fail("a known operation", in_quotes(operation));
  }
}

void check_name(const std::string& name) {
  const bool good = name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
                    });
  if (!good || name.empty()) fail("the name of an implementation", in_quotes(name.substr(0, 40)));
}

void check_text(const std::string& text) {
  const bool good = text.size() <= 4096 && std::all_of(text.begin(), text.end(),
                                                       [](char c) { return c >= ' ' && c <= '~'; });
  if (!good) fail("names and problems in plain text", "other characters");
}

json parse_header(std::span<const std::byte> bytes, std::size_t header_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kPreludeBytes,
                              header_bytes);
  check_depth(text);
  json header = json::parse(text, nullptr, false);
  if (header.is_discarded()) fail("a JSON header", "something else");
  return header;
}

void check_outputs(const Recording& recording) {
  const std::set<std::size_t> written = written_buffers(recording.call);
  if (recording.outputs.size() != written.size()) {
    fail("one output for each of the " + std::to_string(written.size()) + " written buffers",
         std::to_string(recording.outputs.size()));
  }
  std::size_t i = 0;
  for (std::size_t index : written) {
    const Buffer &before = recording.call.buffers[index], &after = recording.outputs[i++];
    if (before.dtype() != after.dtype() || before.numel() != after.numel()) {
      fail("outputs of the shape of their buffers", after.name().substr(0, 40));
    }
  }
}

}  // namespace

Recording decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kPreludeBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    fail("a recorded call (HYLACALL)", "another kind of file");
  }
  const auto version = read_scalar<std::uint32_t>(bytes, kVersionAt);
  if (version != kVersion) fail("version 1", std::to_string(version));
  const auto header_bytes = std::size_t{read_scalar<std::uint32_t>(bytes, kHeaderSizeAt)};
  if (header_bytes > kMaxHeaderBytes || align(kPreludeBytes + header_bytes) > bytes.size()) {
    fail("a header inside the file, of at most 1 MiB", std::to_string(header_bytes) + " bytes");
  }
  if (read_scalar<std::uint64_t>(bytes, kDigestAt) != digest(bytes.subspan(kPreludeBytes))) {
    fail("contents that match their digest", "a damaged file");
  }
  const json header = parse_header(bytes, header_bytes);
  Reader reader(header, bytes.subspan(align(kPreludeBytes + header_bytes)));
  Recording recording;
  select_operation(recording.call, text_of(header, "operation"));
  recording.problem = text_of(header, "problem");
  recording.implementation = text_of(header, "implementation");
  check_text(recording.problem);
  check_name(recording.implementation);
  recording.call.context.threads =
      static_cast<int>(integer_of(member(header, "threads"), "threads", 0, kMaxThreads));
  recording.call.buffers = reader.buffers("buffers");
  recording.outputs = reader.buffers("outputs");
  reader.check_sections();
  member(header, "values");  // also of an operation that has no numbers
  for (const Buffer& buffer : recording.call.buffers) check_text(buffer.name());
  std::visit(
      [&](auto& p) {
        for_each_field(p, [&](const char* name, auto& field, auto... access) {
          if constexpr (sizeof...(access) == 1) {
            field = reader.tensor(name, recording.call.buffers);
          } else {
            reader.value(name, field);
          }
        });
      },
      recording.call.params);
  check_outputs(recording);
  return recording;
}

Recording read_recording(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) fail("a file at " + path, "none");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail("a readable file", path);
  const auto size = static_cast<std::streamoff>(file.tellg());
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::max<std::streamoff>(size, 0)));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!file) fail("a readable file", path);
  return decode(bytes);
}

}  // namespace hyla::testing

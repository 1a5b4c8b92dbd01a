#include <nlohmann/json.hpp>
#include <stdexcept>

#include "testing/recording_format.h"

namespace hyla::testing {
namespace {

using namespace format;
using nlohmann::json;

json dims(const std::int64_t* values, int rank) {
  return std::vector<std::int64_t>(values, values + rank);
}

json value_json(const auto& value) {
  using T = std::decay_t<decltype(value)>;
  if constexpr (std::is_enum_v<T>) {
    return std::string(enum_names(value)[static_cast<std::size_t>(value)]);
  } else if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? json(*value) : json(nullptr);
  } else {
    return value;
  }
}

struct Writer {
  std::size_t end = 0;  // of the data so far
  std::vector<const Buffer*> order;

  json place(const Buffer& buffer) {
    const TensorView& view = buffer.view();
    json entry = {{"name", buffer.name()},
                  {"dtype", name_of(view.dtype)},
                  {"shape", dims(view.shape, view.rank)},
                  {"strides", dims(view.strides, view.rank)},
                  {"shift", buffer.shift()},
                  {"offset", end},
                  {"bytes", buffer.data_bytes()}};
    order.push_back(&buffer);
    end = align(end + buffer.data_bytes());
    return entry;
  }
};

json header_of(const Recording& recording, Writer& writer) {
  const Call& call = recording.call;
  json header = {{"operation", call.operation()},
                 {"problem", recording.problem},
                 {"implementation", recording.implementation},
                 {"threads", call.context.threads}};
  json &buffers = header["buffers"] = json::array(), &outputs = header["outputs"] = json::array();
  for (const Buffer& buffer : call.buffers) buffers.push_back(writer.place(buffer));
  for (const Buffer& buffer : recording.outputs) outputs.push_back(writer.place(buffer));
  json &values = header["values"] = json::object(), &views = header["tensors"] = json::object();
  std::visit(
      [&](const auto& p) {
        for_each_field(p, [&](const char* name, const auto& field, auto... access) {
          if constexpr (sizeof...(access) == 0) {
            values[name] = value_json(field);
          } else if (field.present()) {
            const std::size_t index = buffer_index(call, field);
            const std::ptrdiff_t bytes =
                static_cast<const std::byte*>(field.data) - call.buffers[index].data();
            views[name] = {{"buffer", index},
                           {"offset", bytes / static_cast<std::ptrdiff_t>(size_of(field.dtype))},
                           {"shape", dims(field.shape, field.rank)},
                           {"strides", dims(field.strides, field.rank)}};
          }
        });
      },
      call.params);
  return header;
}

}  // namespace

std::vector<std::byte> encode(const Recording& recording) {
  Writer writer;
  const std::string header = header_of(recording, writer).dump(1);
  if (header.size() > kMaxHeaderBytes) throw std::logic_error("a header of more than a megabyte");
  const std::size_t data = align(kPreludeBytes + header.size());
  std::vector<std::byte> bytes(data + writer.end);
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  write_scalar(bytes.data() + kVersionAt, kVersion);
  write_scalar(bytes.data() + kHeaderSizeAt, static_cast<std::uint32_t>(header.size()));
  std::memcpy(bytes.data() + kPreludeBytes, header.data(), header.size());
  std::size_t end = data;
  for (const Buffer* buffer : writer.order) {
    if (buffer->data_bytes() > 0) {
      std::memcpy(bytes.data() + end, buffer->data(), buffer->data_bytes());
    }
    end = align(end - data + buffer->data_bytes()) + data;
  }
  seal(bytes);
  return bytes;
}

}  // namespace hyla::testing

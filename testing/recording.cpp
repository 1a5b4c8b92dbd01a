#include "testing/recording.h"

#include <hyla/error.h>

#include <algorithm>

#include "testing/recording_format.h"

namespace hyla::testing {
namespace {

using namespace format;

// Elements in order, without the gaps.
std::vector<std::byte> element_bytes(const Buffer& buffer) {
  const std::size_t size = size_of(buffer.dtype());
  std::vector<std::byte> result(static_cast<std::size_t>(buffer.numel()) * size);
  for_each_element(buffer.view(), [&](std::int64_t index, std::int64_t offset) {
    std::memcpy(result.data() + static_cast<std::size_t>(index) * size,
                buffer.data() + offset * static_cast<std::int64_t>(size), size);
  });
  return result;
}

std::string chosen(const Call& call, const std::string& impl) {
  if (!impl.empty()) return impl;
  for (const Candidate& candidate : explain(call)) {
    if (candidate.supported) return candidate.implementation;
  }
  throw Unsupported(call.operation(), explain(call));
}

}  // namespace

std::uint64_t digest(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  return hash;
}

void seal(std::span<std::byte> bytes) {
  if (bytes.size() < kPreludeBytes) return;
  write_scalar(bytes.data() + kDigestAt, digest(bytes.subspan(kPreludeBytes)));
}

Recording record(const Call& call, const std::string& problem, const std::string& impl) {
  Recording recording{call, problem, chosen(call, impl), {}};
  Call after = call;
  run(after, recording.implementation);
  for (std::size_t index : written_buffers(after)) {
    recording.outputs.push_back(after.buffers[index]);
  }
  return recording;
}

Replayed replay(const Recording& recording, const std::string& impl) {
  Replayed result{impl.empty() ? recording.implementation : impl, true, {}, {}, recording.call};
  run(result.result, result.implementation);
  std::size_t i = 0;
  for (std::size_t index : written_buffers(result.result)) {
    const Buffer& buffer = result.result.buffers[index];
    const std::vector<std::byte> now = element_bytes(buffer);
    const std::vector<std::byte> then = element_bytes(recording.outputs[i++]);
    result.digests.emplace_back(buffer.name(), digest(now));
    if (now == then || !result.bit_exact) continue;
    result.bit_exact = false;
    const auto at = std::mismatch(now.begin(), now.end(), then.begin()).first - now.begin();
    const auto element = static_cast<std::size_t>(at) / size_of(buffer.dtype());
    result.difference = buffer.name() + ": element " + std::to_string(element) + " differs";
  }
  return result;
}

}  // namespace hyla::testing

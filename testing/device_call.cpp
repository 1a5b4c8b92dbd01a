#include "testing/device_call.h"

#include <algorithm>

#include "testing/device_memory.h"

namespace hyla::testing {

void DeviceCall::Free::operator()(void* memory) const { cuda::release(memory); }

DeviceCall::DeviceCall(const Call& host, int device)
    : host_(host), params_(host.params), context_(host.context) {
  context_.device = Device::cuda(device);
  context_.stream = cuda::stream();
  for (const Buffer& buffer : host.buffers) {
    buffers_.emplace_back(cuda::allocate(buffer.memory().size()));
  }
  upload(host);
  std::visit(
      [&](auto& p) {
        for_each_tensor(p, [&](const char*, TensorView& view, Access) {
          if (!view.present()) return;
          const Buffer& buffer = host_.buffer_of(view);
          const auto index = static_cast<std::size_t>(&buffer - host_.buffers.data());
          const std::ptrdiff_t bytes =
              static_cast<const std::byte*>(view.data) - buffer.memory().data();
          view.data = static_cast<std::byte*>(buffers_[index].get()) + bytes;
          view.device = context_.device;
        });
      },
      params_);
  workspace_bytes_ = workspace_bytes(params_, context_);
  if (workspace_bytes_ > 0) workspace_.reset(cuda::allocate(workspace_bytes_));
}

std::vector<Candidate> DeviceCall::explain() const {
  return std::visit([&](const auto& p) { return hyla::explain(p, context_); }, params_);
}

void DeviceCall::launch(const std::string& impl) const {
  run(params_, {workspace_.get(), workspace_bytes_, context_.device}, context_, impl);
}

void DeviceCall::upload(const Call& other) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const std::span<const std::byte> memory = other.buffers[i].memory();
    cuda::upload(buffers_[i].get(), memory.data(), memory.size());
  }
}

Call DeviceCall::result() const {
  cuda::synchronize();
  Call result = host_;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const std::span<std::byte> memory = result.buffers[i].memory();
    cuda::download(memory.data(), buffers_[i].get(), memory.size());
  }
  return result;
}

double device_call_us(const Call& host, const std::string& impl, double seconds) {
  constexpr std::size_t kColdBytes = std::size_t{512} << 20, kMostCopies = 64;
  std::size_t bytes = 0;
  for (const Buffer& buffer : host.buffers) bytes += buffer.memory().size();
  const std::size_t fitting = std::max<std::size_t>(1, cuda::free_bytes() / 2 / bytes);
  const std::size_t copies =
      std::clamp<std::size_t>(kColdBytes / bytes + 1, 1, std::min(kMostCopies, fitting));
  std::vector<DeviceCall> calls;
  for (std::size_t i = 0; i < copies; ++i) calls.emplace_back(host);
  const double us = cuda::graph_us(
      [&] {
        for (const DeviceCall& call : calls) call.launch(impl);
      },
      seconds);
  return us / static_cast<double>(copies);
}

}  // namespace hyla::testing

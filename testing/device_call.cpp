#include "testing/device_call.h"

#include <algorithm>
#include <chrono>

#include "testing/device_memory.h"
#include "testing/far_pool.h"
#include "testing/median.h"

namespace hyla::testing {

std::size_t DeviceCall::buffer_index(const TensorView& view) const {
  return static_cast<std::size_t>(&host_.buffer_of(view) - host_.buffers.data());
}

DeviceCall::DeviceCall(const Call& host, const DeviceOptions& options)
    : host_(host), params_(host.params), context_(host.context) {
  context_.device = Device::cuda(options.device);
  context_.stream = cuda::stream();
  std::vector<std::size_t> front(host.buffers.size(), 0);
  for (const NamedTensor& tensor : tensors(host)) {
    if (options.far_slots == 0 || !is_pool(tensor.name)) continue;
    front[buffer_index(tensor.view)] =
        static_cast<std::size_t>(options.far_slots * tensor.view.strides[0]) *
        size_of(tensor.view.dtype);
  }
  for (std::size_t i = 0; i < host.buffers.size(); ++i) {
    buffers_.push_back(
        {cuda::Memory(cuda::allocate(front[i] + host.buffers[i].memory().size())), front[i]});
    if (front[i] > 0) cuda::fill_async(buffers_.back().memory.get(), 0xff, front[i]);  // NaN
  }
  if (options.like != nullptr) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      cuda::copy_async(buffers_[i].copy(), options.like->buffers_[i].copy(),
                       host.buffers[i].memory().size());
    }
  } else {
    upload(host);
  }
  std::visit(
      [&](auto& p) {
        for_each_tensor(p, [&](const char*, TensorView& view, Access access) {
          if (!view.present() || access == Access::kHost) return;
          const std::size_t index = buffer_index(view);
          const std::ptrdiff_t bytes =
              static_cast<const std::byte*>(view.data) - host_.buffers[index].memory().data();
          // A far pool begins at the first slot in front.
          view.data = buffers_[index].copy() + bytes - buffers_[index].front;
          if (buffers_[index].front > 0) view.shape[0] += options.far_slots;
          view.device = context_.device;
        });
      },
      params_);
  workspace_bytes_ = workspace_bytes(params_, context_);
  if (workspace_bytes_ > 0) {
    workspace_.reset(cuda::allocate(workspace_bytes_));
    cuda::fill_async(workspace_.get(), 0xff, workspace_bytes_);  // it may hold anything
  }
}

std::vector<Candidate> DeviceCall::explain() const {
  return std::visit([&](const auto& p) { return hyla::explain(p, context_); }, params_);
}

void DeviceCall::launch(const std::string& impl) const {
  run(params_, {workspace_.get(), workspace_bytes_, context_.device}, context_, impl);
}

void DeviceCall::prefer(const char* impl) {
  std::visit([&](auto& p) { p.impl = impl; }, params_);
}

void DeviceCall::launch() const {
  run(params_, {workspace_.get(), workspace_bytes_, context_.device}, context_);
}

void DeviceCall::upload(const Call& other) const {
  std::vector<cuda::Upload> copies;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    copies.push_back({buffers_[i].copy(), other.buffers[i].memory()});
  }
  cuda::upload_all(copies);
}

Call DeviceCall::result() const {
  Call result = host_;
  std::vector<cuda::Download> copies;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    copies.push_back({result.buffers[i].memory(), buffers_[i].copy()});
  }
  cuda::download_all(copies);
  return result;
}

double device_call_us(const Call& host, const std::string& impl, double seconds) {
  constexpr std::size_t kMostCopies = 64;
  std::size_t bytes = 0;
  for (const Buffer& buffer : host.buffers) bytes += buffer.memory().size();
  const std::size_t fitting = std::max<std::size_t>(1, cuda::free_bytes() / 2 / bytes);
  const std::size_t copies =
      std::clamp<std::size_t>(cuda::kColdBytes / bytes + 1, 1, std::min(kMostCopies, fitting));
  std::vector<DeviceCall> calls;
  calls.reserve(copies);
  calls.emplace_back(host);
  for (std::size_t i = 1; i < copies; ++i) {
    calls.emplace_back(host, DeviceOptions{.like = &calls.front()});
  }
  const double us = cuda::graph_us(
      [&] {
        for (const DeviceCall& call : calls) call.launch(impl);
      },
      seconds);
  return us / static_cast<double>(copies);
}

namespace {

// Adds what each of `count` launches took. One by one: a batch begins with calls whose code the
// wait before it has driven out of the caches.
template <class Launch>
void add_host_us(int count, const Launch& launch, std::vector<double>& times) {
  using Clock = std::chrono::steady_clock;
  auto before = Clock::now();
  for (int i = 0; i < count; ++i) {
    launch();
    const auto now = Clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(now - before).count());
    before = now;
  }
}

// Does the library take this one of itself?
bool is_chosen(const DeviceCall& call, const std::string& impl) {
  for (const Candidate& candidate : call.explain()) {
    if (candidate.supported) return candidate.implementation == impl;
  }
  return false;
}

}  // namespace

HostTime device_call_host_time(const Call& host, const std::string& impl) {
  // Few enough to fit the driver's queue: a launch into a full one waits for the device.
  constexpr int kLeastBatches = 5, kMostBatches = 41, kCalls = 32;
  constexpr double kSeconds = 0.05;
  using Clock = std::chrono::steady_clock;
  DeviceCall call(host);
  call.prefer(is_chosen(call, impl) ? nullptr : impl.c_str());
  call.launch();
  cuda::launch_nothing();
  cuda::synchronize();
  std::vector<double> calls, launches;
  const auto begin = Clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  // The device works on long calls for longer than the host takes to send them: that counts, too.
  for (int i = 0; i < kLeastBatches || (i < kMostBatches && spent() < kSeconds); ++i) {
    add_host_us(
        kCalls, [&] { call.launch(); }, calls);
    add_host_us(kCalls, cuda::launch_nothing, launches);
    cuda::synchronize();
  }
  return {median(calls), median(launches)};
}

}  // namespace hyla::testing

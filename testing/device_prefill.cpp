#include "testing/device_prefill.h"

#include <hyla/error.h>

#include <algorithm>
#include <cmath>

#include "testing/device_memory.h"

namespace hyla::testing {
namespace {

using Dims = std::initializer_list<std::int64_t>;

// Takes memory for tensors, or only counts it.
struct Maker {
  DeviceArena* arena;
  Device device;
  std::uint64_t seed = 0;
  std::size_t bytes = 0;

  TensorView tensor(DType dtype, Dims shape) {
    TensorView view = TensorView::dense(nullptr, dtype, shape, device);
    const std::size_t size = static_cast<std::size_t>(view.numel()) * size_of(dtype);
    bytes +=
        (size + DeviceArena::kAlignment - 1) / DeviceArena::kAlignment * DeviceArena::kAlignment;
    if (arena != nullptr) view.data = arena->take(size);
    return view;
  }
  TensorView normal(DType dtype, Dims shape, double mean, double deviation) {
    const TensorView view = tensor(dtype, shape);
    if (arena != nullptr) {
      cuda::fill_normal(view.data, dtype, static_cast<std::size_t>(view.numel()), mean, deviation,
                        ++seed);
    }
    return view;
  }
  template <class T>
  TensorView values(const std::vector<T>& numbers) {
    const TensorView view = tensor(dtype_of<T>, {std::ssize(numbers)});
    if (arena != nullptr) cuda::upload(view.data, numbers.data(), numbers.size() * sizeof(T));
    return view;
  }
};

// What all copies share.
struct Shared {
  TensorView cu_seqlens, A_log, dt_bias;
};

// As random_call has them: ln(alpha) about -0.05 a token, 0 for a quarter of the heads.
Shared make_shared(const ProblemSpec& spec, std::int64_t heads, Maker& maker) {
  std::vector<std::int32_t> offsets{0};
  for (const std::int64_t length : row_lengths(spec)) {
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
  }
  std::vector<float> rates, biases;
  for (std::int64_t head = 0; head < heads; ++head) {
    rates.push_back(std::log(0.05f / 0.8f));
    biases.push_back(head % 4 == 3 ? -60.0f : 0.0f);
  }
  return {maker.values(offsets), maker.values(rates), maker.values(biases)};
}

gdn::PrefillParams make(const ProblemSpec& spec, const std::vector<std::int64_t>& lengths,
                        const Shared& shared, Maker& maker) {
  const std::int64_t rows = std::ssize(lengths), total = total_tokens(spec);
  const std::int64_t heads = std::max(spec.hq, spec.hv);
  const double deviation = spec.norm ? 1.0 : 1.0 / std::sqrt(static_cast<double>(spec.k));
  gdn::PrefillParams p;
  p.q = maker.normal(spec.io, {total, spec.hq, spec.k}, 0, deviation);
  p.k = maker.normal(spec.io, {total, spec.hk, spec.k}, 0, deviation);
  p.v = maker.normal(spec.io, {total, spec.hv, spec.v}, 0, 1);
  p.out = maker.tensor(spec.io, {total, heads, spec.v});
  p.gate =
      gdn::Gate::raw(maker.normal(spec.io, {total, heads}, 0, 1), shared.A_log, shared.dt_bias);
  p.beta = gdn::Beta::logit(maker.normal(spec.io, {total, heads}, 0, 1));
  const bool kv = spec.layout == gdn::StateLayout::kKV;
  const std::int64_t outer = kv ? spec.k : spec.v, inner = kv ? spec.v : spec.k;
  if (spec.initial) {
    p.state = maker.normal(spec.state, {rows, heads, outer, inner}, 0, 0.3);
  } else {
    p.state_out = maker.tensor(spec.state, {rows, heads, outer, inner});
  }
  p.cu_seqlens = shared.cu_seqlens;
  if (spec.longest) p.max_length = *std::max_element(lengths.begin(), lengths.end());
  if (spec.told) {
    p.host_lengths = TensorView::dense(const_cast<std::int64_t*>(lengths.data()), DType::kInt64,
                                       {rows}, Device::cpu());
  }
  p.layout = spec.layout;
  p.l2norm = spec.norm;
  return p;
}

void check(const ProblemSpec& spec) {
  if (spec.operation != Operation::kGdnPrefill) {
    throw InvalidArgument("operation", "gdn_prefill", name_of(spec.operation));
  }
  if (spec.device != Device::Kind::kCuda) throw InvalidArgument("device", "cuda", "cpu");
  if (spec.gate != gdn::Gate::Kind::kRaw) throw InvalidArgument("gate", "raw", "another kind");
  if (spec.beta != gdn::Beta::Kind::kLogit) throw InvalidArgument("beta", "logit", "another kind");
  if (spec.checkpoint != 0) throw InvalidArgument("checkpoint", "none", "some");
  if (row_lengths(spec).empty()) throw InvalidArgument("lens", "at least one row", "none");
}

}  // namespace

void DeviceArena::restart(std::size_t bytes) {
  used_ = 0;
  if (bytes <= bytes_) return;
  memory_.reset();
  bytes_ = 0;
  memory_.reset(cuda::allocate(bytes));
  bytes_ = bytes;
}

void* DeviceArena::take(std::size_t bytes) {
  void* const piece = static_cast<std::byte*>(memory_.get()) + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ > bytes_) throw InvalidArgument("arena", "room for every tensor", "too little");
  return piece;
}

DevicePrefill::DevicePrefill(const ProblemSpec& spec, DeviceArena& arena, std::size_t most_copies)
    : lengths_(row_lengths(spec)) {
  check(spec);
  context_.device = Device::cuda(0);
  context_.stream = cuda::stream();
  context_.programmatic_launch = spec.pdl;
  context_.batch_invariant = spec.invariant;
  const std::int64_t heads = std::max(spec.hq, spec.hv);
  Maker shares{nullptr, context_.device}, copies{nullptr, context_.device};
  make(spec, lengths_, make_shared(spec, heads, shares), copies);
  // Half as cold as single measurements: a sweep has hundreds of shapes.
  const std::size_t count = std::min(cuda::kColdBytes / 2 / copies.bytes + 1, most_copies);

  gdn::PrefillBounds bounds;
  bounds.max_sequences = std::ssize(lengths_);
  bounds.max_tokens = total_tokens(spec);
  bounds.query_heads = spec.hq, bounds.key_heads = spec.hk, bounds.value_heads = spec.hv;
  bounds.key_dim = spec.k, bounds.value_dim = spec.v;
  bounds.io = spec.io;
  bounds.device = context_.device;
  workspace_.bytes = gdn::prefill_workspace_bytes(bounds);
  workspace_.device = context_.device;

  arena.restart(shares.bytes + count * copies.bytes + workspace_.bytes + DeviceArena::kAlignment);
  workspace_.data = arena.take(workspace_.bytes);
  Maker maker{&arena, context_.device, static_cast<std::uint64_t>(spec.seed) << 32};
  const Shared shared = make_shared(spec, heads, maker);
  while (copies_.size() < count) copies_.push_back(make(spec, lengths_, shared, maker));
  cuda::synchronize();
}

std::vector<Candidate> DevicePrefill::explain() const {
  return hyla::explain(copies_.front(), context_);
}

void DevicePrefill::launch(const std::string& impl) const {
  for (gdn::PrefillParams p : copies_) {
    p.impl = impl.c_str();
    gdn::prefill(p, workspace_, context_);
  }
}

#ifdef HYLA_HAS_CUDA
std::vector<gdn::PlanForm> DevicePrefill::forms() const {
  return gdn::prefill_forms(gdn::validate(copies_.front(), context_), context_);
}

void DevicePrefill::launch(const gdn::PlanForm& form) const {
  for (const gdn::PrefillParams& p : copies_) {
    gdn::launch_prefill_form(gdn::validate(p, context_), workspace_, context_, form);
  }
}

gdn::PlanLook DevicePrefill::look(const std::string& impl, const gdn::Walks& walks,
                                  bool longest) const {
  gdn::PrefillParams p = copies_.front();
  if (longest) {
    p.host_lengths = {};
    p.max_length = *std::max_element(lengths_.begin(), lengths_.end());
  }
  return gdn::look_at_plan(gdn::validate(p, context_), context_, impl, walks);
}
#else
std::vector<gdn::PlanForm> DevicePrefill::forms() const { return {}; }
gdn::PlanLook DevicePrefill::look(const std::string&, const gdn::Walks&, bool) const { return {}; }
void DevicePrefill::launch(const gdn::PlanForm&) const {}
#endif

}  // namespace hyla::testing

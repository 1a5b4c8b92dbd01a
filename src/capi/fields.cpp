#include "capi/fields.h"

#include <hyla/dlpack.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/check.h"

namespace hyla::capi {
namespace {

// No version of a struct will be larger; it keeps a size that was never set from being walked.
constexpr std::size_t kLargestStruct = 16384;

std::string number(std::size_t value) { return core::text(static_cast<std::int64_t>(value)); }

}  // namespace

void copy_struct(std::string_view argument, const void* given, std::size_t required,
                 std::size_t known, void* copy) {
  if (given == nullptr) core::fail(argument, "a pointer to a struct", "a null pointer");
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < required || size > kLargestStruct || size % alignof(DLTensor) != 0) {
    core::fail(std::string(argument) + ".struct_size",
               "sizeof the struct: " + number(known) + ", at least " + number(required),
               number(size));
  }
  const char* bytes = static_cast<const char*>(given);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] != 0) {
      core::fail(argument, "zeros behind the " + number(known) + " bytes that this version knows",
                 "something at byte " + number(i));
    }
  }
  std::memcpy(copy, given, std::min<std::size_t>(size, known));
}

TensorView view(std::string_view argument, const DLTensor& tensor) {
  return from_dlpack(tensor, argument);
}

Device device(std::string_view argument, const DLDevice& given) {
  if (static_cast<int>(given.device_type) == 0 && given.device_id == 0) return Device::cpu();
  // A scalar on that device takes the same numbers.
  DLTensor probe{};
  probe.device = given;
  probe.dtype = {2, 32, 1};
  return from_dlpack(probe, argument).device;
}

DType io_type(std::string_view argument, const DLDataType& type, DType fallback) {
  if (type.code == 0 && type.bits == 0 && type.lanes == 0) return fallback;
  DLTensor probe{};
  probe.device.device_type = kDLCPU;
  probe.dtype = type;
  return from_dlpack(probe, argument).dtype;
}

Context context(const hyla_context* given) {
  Context result;
  if (given == nullptr) return result;
  const hyla_context c = whole("context", given, offsetof(hyla_context, device));
  result.device = device("context.device", c.device);
  if (c.has_stream != 0) {
    result.stream = Stream::cuda(c.stream);
  } else if (c.stream != nullptr) {
    core::fail("context.has_stream", "1 beside a stream", "0");
  }
  if (c.reserved != 0) core::fail("context.reserved", "0", core::text(std::int64_t{c.reserved}));
  result.threads = c.threads;
  result.batch_invariant = c.batch_invariant != 0;
  result.programmatic_launch = c.programmatic_launch != 0;
  result.parallel_for = c.parallel_for;
  result.parallel_pool = c.parallel_pool;
  return result;
}

bool switched(std::string_view argument, std::int32_t value, bool fallback) {
  switch (value) {
    case HYLA_DEFAULT:
      return fallback;
    case HYLA_ON:
      return true;
    case HYLA_OFF:
      return false;
    default:
      core::fail(argument, "HYLA_DEFAULT, HYLA_ON or HYLA_OFF", core::text(std::int64_t{value}));
  }
}

gdn::StateLayout layout(std::int32_t value, gdn::StateLayout fallback) {
  switch (value) {
    case HYLA_STATE_DEFAULT:
      return fallback;
    case HYLA_STATE_KV:
      return gdn::StateLayout::kKV;
    case HYLA_STATE_VK:
      return gdn::StateLayout::kVK;
    default:
      core::fail("layout", "a hyla_state_layout", core::text(std::int64_t{value}));
  }
}

std::optional<double> given_if(std::int32_t has, double value) {
  return has != 0 ? std::optional(value) : std::nullopt;
}

double eps(double value, double fallback) { return value == 0 ? fallback : value; }

gdn::Gate gate(const hyla_gate& given) {
  gdn::Gate result;
  switch (given.kind) {
    case HYLA_GATE_NONE:
      result.kind = gdn::Gate::Kind::kNone;
      break;
    case HYLA_GATE_LINEAR:
      result.kind = gdn::Gate::Kind::kLinear;
      break;
    case HYLA_GATE_LOG:
      result.kind = gdn::Gate::Kind::kLog;
      break;
    case HYLA_GATE_RAW:
      result.kind = gdn::Gate::Kind::kRaw;
      break;
    default:
      core::fail("gate.kind", "a hyla_gate_kind", core::text(std::int64_t{given.kind}));
  }
  result.value = view("gate", given.value);
  result.A_log = view("A_log", given.A_log);
  result.dt_bias = view("dt_bias", given.dt_bias);
  return result;
}

gdn::Beta beta(const hyla_beta& given) {
  gdn::Beta result;
  switch (given.kind) {
    case HYLA_BETA_NONE:
      result.kind = gdn::Beta::Kind::kNone;
      break;
    case HYLA_BETA_PROBABILITY:
      result.kind = gdn::Beta::Kind::kProbability;
      break;
    case HYLA_BETA_LOGIT:
      result.kind = gdn::Beta::Kind::kLogit;
      break;
    default:
      core::fail("beta.kind", "a hyla_beta_kind", core::text(std::int64_t{given.kind}));
  }
  result.value = view("beta", given.value);
  return result;
}

norm::GatedNorm gated_norm(const hyla_gated_norm& given) {
  norm::GatedNorm result;
  result.z = view("norm.z", given.z);
  result.weight = view("norm.weight", given.weight);
  result.eps = eps(given.eps, result.eps);
  result.gate = norm_activation("norm.gate", given.gate);
  return result;
}

norm::Activation norm_activation(std::string_view argument, std::int32_t value) {
  switch (value) {
    case HYLA_ACTIVATION_DEFAULT:
    case HYLA_ACTIVATION_SILU:
      return norm::Activation::kSilu;
    case HYLA_ACTIVATION_SIGMOID:
      return norm::Activation::kSigmoid;
    default:
      core::fail(argument, "HYLA_ACTIVATION_SILU or HYLA_ACTIVATION_SIGMOID",
                 core::text(std::int64_t{value}));
  }
}

conv::Activation conv_activation(std::int32_t value) {
  switch (value) {
    case HYLA_ACTIVATION_NONE:
      return conv::Activation::kNone;
    case HYLA_ACTIVATION_DEFAULT:
    case HYLA_ACTIVATION_SILU:
      return conv::Activation::kSilu;
    default:
      core::fail("activation", "HYLA_ACTIVATION_NONE or HYLA_ACTIVATION_SILU",
                 core::text(std::int64_t{value}));
  }
}

}  // namespace hyla::capi

// Single fields of the C structs, as the C++ API wants them. Each throws InvalidArgument with the
// field's name.
#pragma once

#include <hyla/c_api.h>
#include <hyla/context.h>
#include <hyla/conv.h>
#include <hyla/gdn.h>
#include <hyla/norm.h>

#include <cstddef>
#include <optional>
#include <string_view>

namespace hyla::capi {

// Copies `given` of its own struct_size over `known` bytes of zeros.
void copy_struct(std::string_view argument, const void* given, std::size_t required,
                 std::size_t known, void* copy);

// The struct as this library knows it, whatever version of the header the caller was built with.
template <class Struct>
Struct whole(std::string_view argument, const Struct* given, std::size_t required) {
  Struct copy{};
  copy_struct(argument, given, required, sizeof(Struct), &copy);
  return copy;
}

TensorView view(std::string_view argument, const DLTensor& tensor);
Device device(std::string_view argument, const DLDevice& device);  // zeros: the CPU
// zeros: the fallback
DType io_type(std::string_view argument, const DLDataType& type, DType fallback = DType::kBFloat16);
Context context(const hyla_context* given);  // null: the default

bool switched(std::string_view argument, std::int32_t value, bool fallback);
gdn::StateLayout layout(std::int32_t value, gdn::StateLayout fallback);
std::optional<double> given_if(std::int32_t has, double value);
double eps(double value, double fallback);  // 0: the fallback

gdn::Gate gate(const hyla_gate& given);
gdn::Beta beta(const hyla_beta& given);
norm::GatedNorm gated_norm(const hyla_gated_norm& given);
norm::Activation norm_activation(std::string_view argument, std::int32_t value);
conv::Activation conv_activation(std::int32_t value);

// Fields that several operations share, under the same names in C and C++.
template <class Params, class C>
void take_slots(Params& p, const C& c) {
  p.read_slots = view("read_slots", c.read_slots);
  p.read_columns = view("read_columns", c.read_columns);
  p.write_slots = view("write_slots", c.write_slots);
  p.first_slot = c.first_slot;
}

template <class Params, class C>
void take_sequences(Params& p, const C& c) {
  p.cu_seqlens = view("cu_seqlens", c.cu_seqlens);
  p.starts = view("starts", c.starts);
  p.lengths = view("lengths", c.lengths);
}

// Layout, scale and norm of the GDN operations.
template <class Params, class C>
void take_numbers(Params& p, const C& c) {
  p.layout = layout(c.layout, p.layout);
  p.scale = given_if(c.has_scale, c.scale);
  p.l2norm = switched("l2norm", c.l2norm, p.l2norm);
  p.l2norm_eps = eps(c.l2norm_eps, p.l2norm_eps);
}

}  // namespace hyla::capi

// The document's function over gdn.recurrence: its sizes are checked against each other here, its
// tensors there, and an error comes back under the document's names.
#include <hyla/gdn.h>
#include <hyla/recurrence_kernel.h>

#include <algorithm>
#include <string>

#include "core/check.h"

namespace hyla::gdn {
namespace {

using Arguments = detail::RecurrenceArguments;

// One size of the call: what it must be, and why.
void check_size(const char* argument, std::int64_t value, std::int64_t wanted, const char* rule) {
  if (value != wanted) {
    core::fail(argument, core::text(wanted) + " = " + rule, core::text(value));
  }
}

void check_count(const char* argument, std::int64_t value, std::int64_t least) {
  // Counts of 32-bit indices and strides: their products fit 64 bits.
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  if (value < least || value > kMost) {
    core::fail(argument, "a number from " + core::text(least) + " to 2^32", core::text(value));
  }
}

void check_heads(const Arguments& a) {
  constexpr std::int64_t kMaxHeads = 1 << 20;  // as gdn::recurrence
  if (a.num_key_heads < 1 || a.num_key_heads > kMaxHeads) {
    core::fail("num_key_heads", "1 to 2^20 heads", core::text(a.num_key_heads));
  }
  if (a.num_value_heads < 1 || a.num_value_heads > kMaxHeads ||
      a.num_value_heads % a.num_key_heads != 0) {
    core::fail("num_value_heads",
               "a multiple of the " + core::text(a.num_key_heads) + " key heads, up to 2^20",
               core::text(a.num_value_heads));
  }
}

void check_sizes(const Arguments& a) {
  check_count("batch_size", a.batch_size, 0);
  check_count("total_seq_len", a.total_seq_len, 0);
  check_heads(a);
  check_size("key_dim", a.key_dim, a.num_key_heads * a.key_head_dim,
             "num_key_heads * KEY_HEAD_DIM");
  check_size("value_dim", a.value_dim, a.num_value_heads * a.value_head_dim,
             "num_value_heads * VALUE_HEAD_DIM");
  check_size("conv_dim", a.conv_dim, 2 * a.key_dim + a.value_dim, "2 * key_dim + value_dim");
  check_size("total_threads", a.total_threads, a.batch_size * a.value_dim,
             "batch_size * num_value_heads * VALUE_HEAD_DIM");
}

void check_shapes(const Arguments& a) {
  core::Shapes shapes;
  shapes.bind("total_seq_len", a.total_seq_len);
  shapes.bind("batch_size", a.batch_size);
  shapes.bind("conv_dim", a.conv_dim);
  shapes.bind("value_dim", a.value_dim);
  shapes.bind("num_value_heads", a.num_value_heads);
  shapes.bind("KEY_HEAD_DIM", a.key_head_dim);
  shapes.bind("VALUE_HEAD_DIM", a.value_head_dim);
  shapes.match("recurrence_output", a.recurrence_output, "total_seq_len value_dim");
  shapes.match("recurrent_state", a.recurrent_state,
               "max_slots num_value_heads KEY_HEAD_DIM VALUE_HEAD_DIM");
  shapes.match("slot_idx", a.slot_idx, "batch_size");
  shapes.match("qkv_conv_output", a.qkv_conv_output, "total_seq_len conv_dim");
  shapes.match("decay_per_token", a.decay_per_token, "total_seq_len num_value_heads");
  shapes.match("beta_per_token", a.beta_per_token, "total_seq_len num_value_heads");
  shapes.match("input_row_offsets", a.input_row_offsets, "batch_size+1");
}

struct Name {
  const char* ours;
  const char* documented;
};
constexpr Name kNames[] = {
    {"qkv", "qkv_conv_output"},  {"state", "recurrent_state"}, {"out", "recurrence_output"},
    {"gate", "decay_per_token"}, {"beta", "beta_per_token"},   {"cu_seqlens", "input_row_offsets"},
    {"read_slots", "slot_idx"},
};

std::string documented(const std::string& ours) {
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames),
                                   [&](const Name& n) { return ours == n.ours; });
  return found == std::end(kNames) ? ours : found->documented;
}

// Overlaps name the other tensor at the end of the message.
std::string documented_got(const std::string& got) {
  const std::string prefix = "memory shared with ";
  return got.starts_with(prefix) ? prefix + documented(got.substr(prefix.size())) : got;
}

}  // namespace

void detail::gated_delta_recurrence_fwd(const RecurrenceArguments& a, const Context& context) {
  check_sizes(a);
  check_shapes(a);
  RecurrenceParams params;
  params.qkv = a.qkv_conv_output;
  params.state = a.recurrent_state;
  params.out = a.recurrence_output;
  params.key_heads = a.num_key_heads;
  params.value_heads = a.num_value_heads;
  params.key_dim = a.key_head_dim;
  params.value_dim = a.value_head_dim;
  params.cu_seqlens = a.input_row_offsets;
  params.read_slots = a.slot_idx;
  params.gate = Gate::linear(a.decay_per_token);
  params.beta = Beta::probability(a.beta_per_token);
  params.layout = StateLayout::kKV;
  params.l2norm = true;
  params.l2norm_eps = 1e-6;
  try {
    recurrence(params, context);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(documented(error.argument()), error.expected(),
                          documented_got(error.got()));
  }
}

}  // namespace hyla::gdn

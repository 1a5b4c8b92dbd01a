// The operations of hyla.conv and hyla.norm: what stands around a recurrence.
#include "arguments.h"
#include "operations.h"

namespace hyla::python {
namespace {

conv::Activation activation(auto& in) {
  // None is torch's word for "no activation".
  if (!in.given("activation")) return conv::Activation::kNone;
  return in.template choice<conv::Activation>(
      "activation", {{"silu", static_cast<int>(conv::Activation::kSilu)},
                     {"none", static_cast<int>(conv::Activation::kNone)}});
}

// `slots` is read_slots under the name of calls that have no other.
template <class In, class Params>
void read_pool_arguments(In& in, Params& p) {
  in.maybe_read("bias", p.bias);
  in.maybe_read("cu_seqlens", p.cu_seqlens);
  in.maybe_read("starts", p.starts);
  in.maybe_read("lengths", p.lengths);
  in.maybe_read("read_slots", p.read_slots);
  if (in.given("slots")) {
    if (p.read_slots.present()) {
      throw InvalidArgument("slots", "none beside read_slots", "both");
    }
    in.read("slots", p.read_slots);
    in.call.rename("read_slots", "slots");
  }
  in.maybe_read("read_columns", p.read_columns);
  in.maybe_read("write_slots", p.write_slots);
  p.first_slot = in.integer("first_slot");
  in.maybe_read("window_offsets", p.window_offsets);
  p.activation = activation(in);
}

template <class Params>
bool may_skip_tokens(const Params& p) {
  return p.read_slots.present() || p.cu_seqlens.present() || p.starts.present();
}

constexpr auto kPrefill = std::to_array<const char*>({"x",
                                                      "weight",
                                                      "state",
                                                      "bias",
                                                      "cu_seqlens",
                                                      "starts",
                                                      "lengths",
                                                      "slots",
                                                      "read_slots",
                                                      "read_columns",
                                                      "write_slots",
                                                      "first_slot",
                                                      "window_offsets",
                                                      "has_initial_state",
                                                      "checkpoint_offsets",
                                                      "checkpoint_slots",
                                                      "activation",
                                                      "out",
                                                      "stream",
                                                      "impl"});

PyObject* prefill(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kPrefill>("conv.prefill", arguments, count, [](auto& in) {
    conv::PrefillParams p;
    in.read("x", p.x);
    in.read("weight", p.weight);
    in.maybe_write("state", p.state);
    read_pool_arguments(in, p);
    in.maybe_read("has_initial_state", p.has_initial_state);
    in.maybe_read("checkpoint_offsets", p.checkpoint_offsets);
    in.maybe_read("checkpoint_slots", p.checkpoint_slots);
    in.output(p.out, "out", p.x, may_skip_tokens(p));
    return perform(in.call, p, conv::prefill);
  });
}

constexpr auto kUpdate = std::to_array<const char*>(
    {"x", "weight", "state", "bias", "cu_seqlens", "starts", "lengths", "slots", "read_slots",
     "read_columns", "write_slots", "first_slot", "window_offsets", "commit_lengths", "activation",
     "out", "stream", "impl"});

PyObject* update(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kUpdate>("conv.update", arguments, count, [](auto& in) {
    conv::UpdateParams p;
    in.read("x", p.x);
    in.read("weight", p.weight);
    in.write("state", p.state);
    read_pool_arguments(in, p);
    in.maybe_read("commit_lengths", p.commit_lengths);
    in.output(p.out, "out", p.x, may_skip_tokens(p));
    return perform(in.call, p, conv::update);
  });
}

constexpr auto kGatedRms =
    std::to_array<const char*>({"x", "z", "weight", "eps", "gate", "out", "stream", "impl"});

PyObject* gated_rms(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kGatedRms>("norm.gated_rms", arguments, count, [](auto& in) {
    norm::GatedRmsParams p;
    in.read("x", p.x);
    in.read("z", p.z);
    in.read("weight", p.weight);
    p.eps = in.number("eps");
    p.gate = in.template choice<norm::Activation>(
        "gate", {{"silu", static_cast<int>(norm::Activation::kSilu)},
                 {"sigmoid", static_cast<int>(norm::Activation::kSigmoid)}});
    in.output(p.out, "out", p.x, false);
    return perform(in.call, p, norm::gated_rms);
  });
}

}  // namespace

std::span<const Operation> layer_operations() {
  static constexpr Operation kOperations[] = {
      {"conv_prefill", prefill, kPrefill},
      {"conv_update", update, kUpdate},
      {"norm_gated_rms", gated_rms, kGatedRms},
  };
  return kOperations;
}

}  // namespace hyla::python

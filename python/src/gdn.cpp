// The operations of hyla.gdn. Each list of names is the order of the arguments that the functions in
// hyla/gdn.py pass.
#include "arguments.h"
#include "operations.h"

namespace hyla::python {
namespace {

template <class In>
void read_gate(In& in, gdn::Gate& gate) {
  int kinds = 0;
  const auto take = [&](auto key, gdn::Gate::Kind kind, const char* name) {
    if (!in.given(key)) return;
    gate.kind = kind;
    in.call.rename("gate", name);
    if (++kinds > 1) throw InvalidArgument(name, "at most one of alpha, log_alpha and a", "more");
    in.read(key, gate.value);
  };
  using Key = typename In::Key;
  take(Key("alpha"), gdn::Gate::Kind::kLinear, "alpha");
  take(Key("log_alpha"), gdn::Gate::Kind::kLog, "log_alpha");
  take(Key("a"), gdn::Gate::Kind::kRaw, "a");
  in.maybe_read("A_log", gate.A_log);
  in.maybe_read("dt_bias", gate.dt_bias);
  if (gate.kind != gdn::Gate::Kind::kRaw && gate.A_log.present()) {
    throw InvalidArgument("A_log", "none without a", "a tensor");
  }
  if (gate.kind != gdn::Gate::Kind::kRaw && gate.dt_bias.present()) {
    throw InvalidArgument("dt_bias", "none without a", "a tensor");
  }
}

template <class In>
void read_beta(In& in, gdn::Beta& beta) {
  if (in.given("beta")) {
    beta.kind = gdn::Beta::Kind::kProbability;
    in.read("beta", beta.value);
  }
  if (!in.given("b")) return;
  if (in.given("beta")) throw InvalidArgument("b", "at most one of beta and b", "both");
  beta.kind = gdn::Beta::Kind::kLogit;
  in.read("b", beta.value);
  in.call.rename("beta", "b");
}

template <class In, class Params>
void read_slots(In& in, Params& p) {
  in.maybe_read("read_slots", p.read_slots);
  in.maybe_read("read_columns", p.read_columns);
  in.maybe_read("write_slots", p.write_slots);
  p.first_slot = in.integer("first_slot");
}

template <class In, class Params>
void read_sequences(In& in, Params& p) {
  in.maybe_read("cu_seqlens", p.cu_seqlens);
  in.maybe_read("starts", p.starts);
  in.maybe_read("lengths", p.lengths);
}

template <class In, class Params>
void read_math(In& in, Params& p) {
  p.layout = in.template choice<gdn::StateLayout>(
      "layout", {{"vk", static_cast<int>(gdn::StateLayout::kVK)},
                 {"kv", static_cast<int>(gdn::StateLayout::kKV)}});
  p.scale = in.maybe_number("scale");
  p.l2norm = in.flag("l2norm");
  p.l2norm_eps = in.number("l2norm_eps");
  in.call.context().batch_invariant = in.flag("batch_invariant");
}

template <class In>
void read_norm(In& in, norm::GatedNorm& norm) {
  in.maybe_read("z", norm.z);
  in.maybe_read("norm_weight", norm.weight);
  norm.eps = in.number("norm_eps");
  norm.gate = in.template choice<norm::Activation>(
      "norm_gate", {{"silu", static_cast<int>(norm::Activation::kSilu)},
                    {"sigmoid", static_cast<int>(norm::Activation::kSigmoid)}});
  in.call.rename("norm.z", "z");
  in.call.rename("norm.weight", "norm_weight");
  in.call.rename("norm.eps", "norm_eps");
  in.call.rename("norm.gate", "norm_gate");
}

constexpr auto kDecode = std::to_array<const char*>({"q",
                                                     "k",
                                                     "v",
                                                     "state",
                                                     "alpha",
                                                     "log_alpha",
                                                     "a",
                                                     "A_log",
                                                     "dt_bias",
                                                     "beta",
                                                     "b",
                                                     "read_slots",
                                                     "read_columns",
                                                     "write_slots",
                                                     "first_slot",
                                                     "layout",
                                                     "scale",
                                                     "l2norm",
                                                     "l2norm_eps",
                                                     "z",
                                                     "norm_weight",
                                                     "norm_eps",
                                                     "norm_gate",
                                                     "batch_invariant",
                                                     "out",
                                                     "stream",
                                                     "impl"});

PyObject* decode(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kDecode>("gdn.decode", arguments, count, [](auto& in) {
    gdn::DecodeParams p;
    in.read("q", p.q);
    in.read("k", p.k);
    in.read("v", p.v);
    in.write("state", p.state);
    read_gate(in, p.gate);
    read_beta(in, p.beta);
    read_slots(in, p);
    read_math(in, p);
    read_norm(in, p.norm);
    in.output(p.out, "out", p.v, p.read_slots.present());
    return perform(in.call, p, gdn::decode);
  });
}

constexpr auto kMtp = std::to_array<const char*>({"q",
                                                  "k",
                                                  "v",
                                                  "state",
                                                  "alpha",
                                                  "log_alpha",
                                                  "a",
                                                  "A_log",
                                                  "dt_bias",
                                                  "beta",
                                                  "b",
                                                  "read_slots",
                                                  "read_columns",
                                                  "write_slots",
                                                  "first_slot",
                                                  "states_out",
                                                  "step_slots",
                                                  "commit_lengths",
                                                  "update_state",
                                                  "cu_seqlens",
                                                  "starts",
                                                  "lengths",
                                                  "layout",
                                                  "scale",
                                                  "l2norm",
                                                  "l2norm_eps",
                                                  "z",
                                                  "norm_weight",
                                                  "norm_eps",
                                                  "norm_gate",
                                                  "batch_invariant",
                                                  "out",
                                                  "stream",
                                                  "impl"});

PyObject* mtp(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kMtp>("gdn.mtp", arguments, count, [](auto& in) {
    gdn::MtpParams p;
    in.read("q", p.q);
    in.read("k", p.k);
    in.read("v", p.v);
    in.write("state", p.state);
    read_gate(in, p.gate);
    read_beta(in, p.beta);
    read_slots(in, p);
    in.maybe_write("states_out", p.states_out);
    in.maybe_read("step_slots", p.step_slots);
    in.maybe_read("commit_lengths", p.commit_lengths);
    p.update_state = in.flag("update_state");
    read_sequences(in, p);
    read_math(in, p);
    read_norm(in, p.norm);
    const bool ragged = p.cu_seqlens.present() || p.starts.present();
    in.output(p.out, "out", p.v, ragged || p.read_slots.present());
    return perform(in.call, p, gdn::mtp);
  });
}

constexpr auto kPrefill = std::to_array<const char*>({"q",
                                                      "k",
                                                      "v",
                                                      "cu_seqlens",
                                                      "starts",
                                                      "lengths",
                                                      "state",
                                                      "state_out",
                                                      "update_state",
                                                      "alpha",
                                                      "log_alpha",
                                                      "a",
                                                      "A_log",
                                                      "dt_bias",
                                                      "beta",
                                                      "b",
                                                      "read_slots",
                                                      "read_columns",
                                                      "write_slots",
                                                      "first_slot",
                                                      "has_initial_state",
                                                      "checkpoints",
                                                      "checkpoint_starts",
                                                      "checkpoint_slots",
                                                      "checkpoint_every",
                                                      "checkpoint_offsets",
                                                      "layout",
                                                      "scale",
                                                      "l2norm",
                                                      "l2norm_eps",
                                                      "decay_cutoff_log2",
                                                      "max_length",
                                                      "host_lengths",
                                                      "batch_invariant",
                                                      "workspace",
                                                      "out",
                                                      "stream",
                                                      "impl"});

std::size_t workspace_bytes(const gdn::PrefillParams& p, const Context& context) {
  if (p.q.rank != 3 || p.k.rank != 3 || p.v.rank != 3) return 0;  // the call says it better
  gdn::PrefillBounds bounds;
  const TensorView& rows = p.cu_seqlens.present() ? p.cu_seqlens : p.lengths;
  bounds.max_sequences = rows.rank == 1 ? rows.shape[0] : 0;
  bounds.max_tokens = p.q.shape[0];
  bounds.query_heads = p.q.shape[1];
  bounds.key_heads = p.k.shape[1];
  bounds.value_heads = p.v.shape[1];
  bounds.key_dim = p.q.shape[2];
  bounds.value_dim = p.v.shape[2];
  bounds.io = p.q.dtype;
  bounds.device = context.device;
  try {
    return gdn::prefill_workspace_bytes(bounds);
  } catch (const InvalidArgument&) {
    return 0;
  }
}

PyObject* prefill(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kPrefill>("gdn.prefill", arguments, count, [](auto& in) {
    gdn::PrefillParams p;
    in.read("q", p.q);
    in.read("k", p.k);
    in.read("v", p.v);
    read_sequences(in, p);
    in.maybe_write("state_out", p.state_out);
    p.update_state = in.flag("update_state");
    const bool state_written = !p.state_out.present() && p.update_state;
    if (state_written) {
      in.maybe_write("state", p.state);
    } else {
      in.maybe_read("state", p.state);
    }
    read_gate(in, p.gate);
    read_beta(in, p.beta);
    read_slots(in, p);
    in.maybe_read("has_initial_state", p.has_initial_state);
    in.maybe_write("checkpoints", p.checkpoints);
    in.maybe_read("checkpoint_starts", p.checkpoint_starts);
    in.maybe_read("checkpoint_slots", p.checkpoint_slots);
    p.checkpoint_every = in.integer("checkpoint_every");
    in.maybe_read("checkpoint_offsets", p.checkpoint_offsets);
    read_math(in, p);
    p.decay_cutoff_log2 = in.maybe_number("decay_cutoff_log2");
    p.max_length = in.integer("max_length");
    in.maybe_read("host_lengths", p.host_lengths);
    TensorView like = p.v;  // [total, Hs, V]
    if (like.rank == 3 && p.q.rank == 3) like.shape[1] = std::max(p.q.shape[1], p.v.shape[1]);
    in.output(p.out, "out", like, true);
    const Workspace workspace =
        in.workspace("workspace", [&] { return workspace_bytes(p, in.call.context()); });
    return perform(in.call, p, [&](const auto& params, const Context& context) {
      gdn::prefill(params, workspace, context);
    });
  });
}

constexpr auto kRecurrence = std::to_array<const char*>(
    {"qkv",       "cu_seqlens",  "starts",       "lengths",     "state",
     "key_heads", "value_heads", "key_dim",      "value_dim",   "alpha",
     "log_alpha", "a",           "A_log",        "dt_bias",     "beta",
     "b",         "read_slots",  "read_columns", "write_slots", "first_slot",
     "layout",    "scale",       "l2norm",       "l2norm_eps",  "batch_invariant",
     "out",       "stream",      "impl"});

PyObject* recurrence(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kRecurrence>("gdn.recurrence", arguments, count, [](auto& in) {
    gdn::RecurrenceParams p;
    in.read("qkv", p.qkv);
    read_sequences(in, p);
    in.write("state", p.state);
    p.key_heads = in.integer("key_heads");
    p.value_heads = in.integer("value_heads");
    p.key_dim = in.integer("key_dim");
    p.value_dim = in.integer("value_dim");
    in.call.rename("key_heads", "heads");
    in.call.rename("value_heads", "heads");
    in.call.rename("key_dim", "dims");
    in.call.rename("value_dim", "dims");
    read_gate(in, p.gate);
    read_beta(in, p.beta);
    read_slots(in, p);
    read_math(in, p);
    std::int64_t channels = 0;
    if (__builtin_mul_overflow(p.value_heads, p.value_dim, &channels) || channels < 0) {
      throw InvalidArgument("heads", "sizes >= 0", "others");
    }
    const std::int64_t shape[2] = {p.qkv.rank > 0 ? p.qkv.shape[0] : 0, channels};
    in.output(p.out, "out", p.qkv.dtype, shape, true);
    return perform(in.call, p, gdn::recurrence);
  });
}

}  // namespace

std::span<const Operation> gdn_operations() {
  static constexpr Operation kOperations[] = {
      {"gdn_decode", decode, kDecode},
      {"gdn_mtp", mtp, kMtp},
      {"gdn_prefill", prefill, kPrefill},
      {"gdn_recurrence", recurrence, kRecurrence},
  };
  return kOperations;
}

}  // namespace hyla::python

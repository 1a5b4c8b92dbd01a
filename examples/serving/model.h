// The model over hyla: which operation runs on which part of a step's batch, and how the views of
// one packed projection are handed from one to the next. Matrix products and plain RMSNorm are
// loops.
#pragma once

#include <hyla/attention.h>
#include <hyla/backend.h>
#include <hyla/conv.h>
#include <hyla/gdn.h>
#include <hyla/norm.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "batch.h"
#include "dense.h"
#include "memory.h"
#include "weights.h"

namespace serving {

inline constexpr int kPageSize = 16;

class Model {
 public:
  // `slots` counts the null slot. Memory is filled with NaN: whatever is read before it was written
  // shows up in the logits.
  Model(const Weights& weights, Tensors& tensors, int slots, int pages, int max_positions,
        int max_drafts)
      : weights_(weights), tensors_(tensors), drafts_(max_drafts) {
    const auto nothing = [](std::int64_t size) {
      return std::vector<float>(std::size_t(size), kNaN);
    };
    const hyla::DType f32 = hyla::DType::kFloat32, io = tensors.activations();
    for (int i = 0; i < kGdnLayers; ++i) {
      const GdnWeights& w = weights.gdn[i];
      GdnTensors& t = gdn_[i];
      t.conv = tensors.keep(f32, w.conv.data, {kConvDim, kConvWidth});
      t.A_log = tensors.keep(f32, w.A_log, {kValueHeads});
      t.dt_bias = tensors.keep(f32, w.dt_bias, {kValueHeads});
      t.out_norm = tensors.keep(f32, w.out_norm, {kValueDim});
      t.state = tensors.keep(f32, nothing(slots * kValues * kKeyDim),
                             {slots, kValueHeads, kValueDim, kKeyDim});
      t.windows =
          tensors.keep(io, nothing(slots * kConvDim * window()), {slots, kConvDim, window()});
    }
    for (hyla::TensorView* pool : {&k_pages_, &v_pages_}) {
      *pool = tensors.keep(io, nothing(std::int64_t{pages} * kPageSize * kKv),
                           {pages, kPageSize, kKvHeads, kHeadDim});
    }
    Matrix cos(max_positions, kRopeDim / 2), sin = cos;
    for (int p = 0; p < max_positions; ++p) {
      for (int i = 0; i < kRopeDim / 2; ++i) {
        cos.row(p)[i] = float(std::cos(rope_angle(p, i)));
        sin.row(p)[i] = float(std::sin(rope_angle(p, i)));
      }
    }
    cos_ = tensors.keep(f32, cos.data, {max_positions, kRopeDim / 2});
    sin_ = tensors.keep(f32, sin.data, {max_positions, kRopeDim / 2});
  }

  // Runs one step and returns the logits of batch.logit_places.
  Matrix forward(const Batch& batch) {
    tensors_.begin_step();
    Matrix x = embed<float>(weights_, batch.tokens);
    for (int layer = 0; layer < kGdnLayers; ++layer) {
      const GdnWeights& w = weights_.gdn[layer];
      add(x, gdn(w, gdn_[layer], rms_norm(x, w.norm), batch));
      add(x, mlp(w.mlp, rms_norm(x, w.mlp.norm)));
    }
    const AttentionWeights& w = weights_.attention;
    add(x, attention(w, rms_norm(x, w.norm), batch));
    add(x, mlp(w.mlp, rms_norm(x, w.mlp.norm)));

    Matrix wanted(int(batch.logit_places.size()), kHidden);
    for (int i = 0; i < wanted.rows; ++i) {
      std::copy_n(x.row(batch.logit_places[i]), kHidden, wanted.row(i));
    }
    return multiply(rms_norm(wanted, weights_.norm), weights_.head);
  }

  // Which implementations ran, by operation.
  const std::map<std::string, std::set<std::string>>& implementations() const { return ran_; }

 private:
  using View = hyla::TensorView;

  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

  // What a layer's operations read, and its memory by slot. A slot holds a recurrent state and a
  // window of conv inputs.
  struct GdnTensors {
    View conv, A_log, dt_bias, out_norm;
    View state;    // [slots, HV, V, K]
    View windows;  // [slots, channels, window()]
  };

  // The last inputs of the convolution, and room for those of the drafts.
  int window() const { return kConvWidth - 1 + drafts_; }

  // A GDN layer without its residual: projection, convolution, recurrence, gated norm, projection.
  Matrix gdn(const GdnWeights& w, const GdnTensors& layer, const Matrix& x, const Batch& batch) {
    const View packed = tensors_.put(multiply(x, w.in));  // q | k | v | z | b | a
    const View qkv = tensors_.empty(x.rows, kConvDim), out = tensors_.empty(x.rows, kValues);
    const int decoded = batch.decode.tokens;
    if (decoded > 0) {
      convolve_decode(layer, batch.decode, packed, qkv);
      if (batch.decode.drafts) {
        verify_drafts(layer, batch.decode, packed, qkv, out);
      } else {
        decode(layer, batch.decode, packed, qkv, out);
      }
    }
    if (decoded < x.rows) prefill(layer, batch.prefill, decoded, packed, qkv, out);
    return multiply(tensors_.get(out), w.out);
  }

  // Every row starts from the window after the last token that was accepted.
  void convolve_decode(const GdnTensors& layer, const DecodeSection& decode, const View& packed,
                       const View& qkv) {
    run("conv.update", hyla::conv::update,
        hyla::conv::UpdateParams{
            .x = part(packed, 0, decode.tokens, 0, kConvDim),
            .weight = layer.conv,
            .out = part(qkv, 0, decode.tokens, 0, kConvDim),
            .state = layer.windows,
            .cu_seqlens = tensors_.put(decode.cu_seqlens),
            .read_slots = tensors_.put(decode.slots).select(1, 0),  // one wide window a request
            .first_slot = 1,
            .window_offsets = tensors_.put(decode.columns)});
  }

  // What decode, MTP and prefill have in common: heads of q, k and v cut from the convolution's
  // output, gates cut from the projection. Nothing is copied.
  template <class Params>
  Params recurrence(const GdnTensors& layer, int begin, int count, const View& packed,
                    const View& qkv, const View& out) const {
    Params p;
    p.q = part(qkv, begin, count, 0, kKeys).split(1, kKeyDim);
    p.k = part(qkv, begin, count, kKeys, kKeys).split(1, kKeyDim);
    p.v = part(qkv, begin, count, 2 * kKeys, kValues).split(1, kValueDim);
    p.out = part(out, begin, count, 0, kValues).split(1, kValueDim);
    p.gate = hyla::gdn::Gate::raw(part(packed, begin, count, kA, kValueHeads), layer.A_log,
                                  layer.dt_bias);
    p.beta = hyla::gdn::Beta::logit(part(packed, begin, count, kB, kValueHeads));
    p.state = layer.state;
    p.layout = hyla::gdn::StateLayout::kVK;
    p.first_slot = 1;
    p.l2norm = true;
    return p;
  }

  static hyla::norm::GatedNorm fused_norm(const GdnTensors& layer, int count, const View& packed) {
    return {.z = part(packed, 0, count, kZ, kValues).split(1, kValueDim),
            .weight = layer.out_norm,
            .eps = kNormEps};
  }

  // Nobody drafted in this step. A row still starts from the state that its last step left in some
  // column, and leaves its own in column 0.
  void decode(const GdnTensors& layer, const DecodeSection& decode, const View& packed,
              const View& qkv, const View& out) {
    auto p = recurrence<hyla::gdn::DecodeParams>(layer, 0, decode.tokens, packed, qkv, out);
    p.read_slots = tensors_.put(decode.slots);
    p.read_columns = tensors_.put(decode.columns);
    p.write_slots = p.read_slots.select(1, 0);
    p.norm = fused_norm(layer, decode.tokens, packed);
    run("gdn.decode", hyla::gdn::decode, p);
  }

  // The state after every token is kept, column by column: whichever draft turns out to be the last
  // accepted one, the next step starts from its column and the rejected tail is forgotten.
  void verify_drafts(const GdnTensors& layer, const DecodeSection& decode, const View& packed,
                     const View& qkv, const View& out) {
    auto p = recurrence<hyla::gdn::MtpParams>(layer, 0, decode.tokens, packed, qkv, out);
    p.cu_seqlens = tensors_.put(decode.cu_seqlens);
    p.read_slots = tensors_.put(decode.slots);
    p.read_columns = tensors_.put(decode.columns);
    p.step_slots = p.read_slots;
    p.update_state = true;
    p.norm = fused_norm(layer, decode.tokens, packed);
    run("gdn.mtp", hyla::gdn::mtp, p);
  }

  // Chunks of prompts. A request's first chunk reads a checkpoint of a shared prefix or starts from
  // zero; it and all later ones write to the request's own slot, and leave checkpoints on the way.
  void prefill(const GdnTensors& layer, const PrefillSection& prefill, int begin,
               const View& packed, const View& qkv, const View& out) {
    const int tokens = int(packed.shape[0]), count = tokens - begin;
    const View cu_seqlens = tensors_.put(prefill.cu_seqlens);
    const View read_slots = tensors_.put(prefill.read_slots);
    const View write_slots = tensors_.put(prefill.write_slots);
    const View has_initial_state = tensors_.put(prefill.has_initial_state);
    const View checkpoint_offsets = tensors_.put(prefill.checkpoint_offsets);
    const View checkpoint_slots = tensors_.put(prefill.checkpoint_slots);
    run("conv.prefill", hyla::conv::prefill,
        hyla::conv::PrefillParams{.x = part(packed, begin, count, 0, kConvDim),
                                  .weight = layer.conv,
                                  .out = part(qkv, begin, count, 0, kConvDim),
                                  .state = layer.windows,
                                  .cu_seqlens = cu_seqlens,
                                  .read_slots = read_slots,
                                  .write_slots = write_slots,
                                  .first_slot = 1,
                                  .window_offsets = tensors_.put(prefill.window_offsets),
                                  .has_initial_state = has_initial_state,
                                  .checkpoint_offsets = checkpoint_offsets,
                                  .checkpoint_slots = checkpoint_slots});

    const View core = tensors_.empty(tokens, kValues);
    auto p = recurrence<hyla::gdn::PrefillParams>(layer, begin, count, packed, qkv, core);
    p.cu_seqlens = cu_seqlens;
    p.read_slots = read_slots;
    p.write_slots = write_slots;
    p.has_initial_state = has_initial_state;
    p.checkpoint_offsets = checkpoint_offsets;
    p.checkpoint_slots = checkpoint_slots;
    note("gdn.prefill", p);
    hyla::gdn::prefill(p,
                       tensors_.workspace(hyla::gdn::prefill_workspace_bytes(
                           {.max_sequences = p.read_slots.shape[0],
                            .max_tokens = count,
                            .query_heads = kKeyHeads,
                            .key_heads = kKeyHeads,
                            .value_heads = kValueHeads,
                            .key_dim = kKeyDim,
                            .value_dim = kValueDim,
                            .io = tensors_.activations(),
                            .device = tensors_.context().device})),
                       tensors_.context());

    run("norm.gated_rms", hyla::norm::gated_rms,
        hyla::norm::GatedRmsParams{.x = p.out,
                                   .z = part(packed, begin, count, kZ, kValues).split(1, kValueDim),
                                   .weight = layer.out_norm,
                                   .out = part(out, begin, count, 0, kValues).split(1, kValueDim),
                                   .eps = kNormEps});
  }

  // The attention layer without its residual. One call serves decode rows and prefill chunks: both
  // are queries at the end of their request's keys.
  Matrix attention(const AttentionWeights& w, const Matrix& x, const Batch& batch) {
    Matrix packed = multiply(x, w.in);  // queries | gates | keys | values
    for (int t = 0; t < x.rows; ++t) {
      float* row = packed.row(t);
      for (int h = 0; h < kQueryHeads; ++h) {
        rms_norm(row + h * kHeadDim, w.q_norm);
        rope(row + h * kHeadDim, batch.positions[t]);
      }
      for (int h = 0; h < kKvHeads; ++h) rms_norm(row + kK + h * kHeadDim, w.k_norm);
    }
    const View on_device = tensors_.put(packed), attended = tensors_.empty(x.rows, kQueries);
    const View starts = tensors_.put(batch.starts), lengths = tensors_.put(batch.lengths);
    const View kv_lengths = tensors_.put(batch.kv_lengths);
    const auto cache =
        hyla::attention::KvCache::paged(k_pages_, v_pages_, tensors_.put(batch.page_table));
    run("attention.append", hyla::attention::append,
        hyla::attention::AppendParams{.cache = cache,
                                      .k = part(on_device, 0, x.rows, kK, kKv).split(1, kHeadDim),
                                      .v = part(on_device, 0, x.rows, kV, kKv).split(1, kHeadDim),
                                      .starts = starts,
                                      .lengths = lengths,
                                      .kv_lengths = kv_lengths,
                                      .rope = {.cos = cos_, .sin = sin_}});
    const hyla::attention::RunParams p = {
        .q = part(on_device, 0, x.rows, 0, kQueries).split(1, kHeadDim),
        .cache = cache,
        .out = attended.split(1, kHeadDim),
        .starts = starts,
        .lengths = lengths,
        .kv_lengths = kv_lengths};
    note("attention.run", p);
    hyla::attention::run(p,
                         tensors_.workspace(hyla::attention::run_workspace_bytes(
                             {.max_sequences = std::int64_t(batch.starts.size()),
                              .max_tokens = x.rows,
                              .max_kv_length = std::int64_t{batch.page_table.cols} * kPageSize,
                              .query_heads = kQueryHeads,
                              .kv_heads = kKvHeads,
                              .head_dim = kHeadDim,
                              .value_dim = kHeadDim,
                              .io = tensors_.activations(),
                              .device = tensors_.context().device})),
                         tensors_.context());
    Matrix out = tensors_.get(attended);
    for (int t = 0; t < x.rows; ++t) {
      for (int i = 0; i < kQueries; ++i) out.row(t)[i] *= sigmoid(packed.row(t)[kGate + i]);
    }
    return multiply(out, w.out);
  }

  static View part(const View& m, int row, int rows, int col, int cols) {
    return m.slice(0, row, rows).slice(1, col, cols);
  }

  // Calls an operation that needs no scratch memory.
  template <class Params>
  void run(const char* operation, void (*function)(const Params&, const hyla::Context&),
           const Params& params) {
    note(operation, params);
    function(params, tensors_.context());
  }
  template <class Params>
  void note(const char* operation, const Params& params) {
    for (const hyla::Candidate& candidate : hyla::explain(params, tensors_.context())) {
      if (!candidate.supported) continue;
      ran_[operation].insert(candidate.implementation);
      return;
    }
  }

  const Weights& weights_;
  Tensors& tensors_;
  int drafts_;
  GdnTensors gdn_[kGdnLayers];
  View k_pages_, v_pages_;  // [pages, kPageSize, heads, dim]
  View cos_, sin_;          // [positions, rope pairs]
  std::map<std::string, std::set<std::string>> ran_;
};

}  // namespace serving

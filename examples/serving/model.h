// The model over hyla: which operation runs on which part of a step's batch, and how the views of
// one packed projection are handed from one to the next. Matrix products and plain RMSNorm are
// loops.
#pragma once

#include <hyla/attention.h>
#include <hyla/conv.h>
#include <hyla/gdn.h>
#include <hyla/norm.h>

#include <cmath>
#include <limits>

#include "batch.h"
#include "dense.h"
#include "weights.h"

namespace serving {

inline constexpr int kPageSize = 16;

template <class T>
hyla::TensorView view(const std::vector<T>& v) {
  return {v.data(), {std::int64_t(v.size())}};
}
inline hyla::TensorView view(const Matrix& m) { return {m.data.data(), {m.rows, m.cols}}; }
inline hyla::TensorView view(const Table& t) {
  return {t.data.data(), {std::int64_t(t.data.size()) / t.cols, t.cols}};
}

class Model {
 public:
  // `slots` counts the null slot. Memory is filled with NaN: whatever is read before it was written
  // shows up in the logits.
  Model(const Weights& weights, int slots, int pages, int max_positions, int max_drafts)
      : weights_(weights), slots_(slots), pages_(pages), drafts_(max_drafts) {
    for (GdnPools& pools : gdn_) {
      pools.state.assign(std::size_t(slots) * kValues * kKeyDim, kNaN);
      pools.windows.assign(std::size_t(slots) * kConvDim * window(), kNaN);
    }
    k_pages_.assign(std::size_t(pages) * kPageSize * kKv, kNaN);
    v_pages_ = k_pages_;
    cos_ = sin_ = Matrix(max_positions, kRopeDim / 2);
    for (int p = 0; p < max_positions; ++p) {
      for (int i = 0; i < kRopeDim / 2; ++i) {
        cos_.row(p)[i] = float(std::cos(rope_angle(p, i)));
        sin_.row(p)[i] = float(std::sin(rope_angle(p, i)));
      }
    }
  }

  // Runs one step and returns the logits of batch.logit_places.
  Matrix forward(const Batch& batch) {
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

 private:
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

  // One layer's memory, by slot. A slot holds a recurrent state and a window of conv inputs.
  struct GdnPools {
    std::vector<float> state;    // [slots, HV, V, K]
    std::vector<float> windows;  // [slots, channels, window()]
  };

  // The last inputs of the convolution, and room for those of the drafts.
  int window() const { return kConvWidth - 1 + drafts_; }

  // A GDN layer without its residual: projection, convolution, recurrence, gated norm, projection.
  Matrix gdn(const GdnWeights& w, GdnPools& pools, const Matrix& x, const Batch& batch) const {
    const Matrix packed = multiply(x, w.in);  // q | k | v | z | b | a
    Matrix qkv(x.rows, kConvDim), out(x.rows, kValues);
    const int decoded = batch.decode.tokens;
    if (decoded > 0) {
      convolve_decode(w, pools, batch.decode, packed, qkv);
      if (batch.decode.drafts) {
        verify_drafts(w, pools, batch.decode, packed, qkv, out);
      } else {
        decode(w, pools, batch.decode, packed, qkv, out);
      }
    }
    if (decoded < x.rows) prefill(w, pools, batch.prefill, decoded, packed, qkv, out);
    return multiply(out, w.out);
  }

  // Every row starts from the window after the last token that was accepted.
  void convolve_decode(const GdnWeights& w, GdnPools& pools, const DecodeSection& decode,
                       const Matrix& packed, Matrix& qkv) const {
    hyla::conv::update({.x = part(packed, 0, decode.tokens, 0, kConvDim),
                        .weight = view(w.conv),
                        .out = part(qkv, 0, decode.tokens, 0, kConvDim),
                        .state = windows(pools),
                        .cu_seqlens = view(decode.cu_seqlens),
                        .read_slots = view(decode.slots).select(1, 0),  // one wide window a request
                        .first_slot = 1,
                        .window_offsets = view(decode.columns)});
  }

  // What decode, MTP and prefill have in common: heads of q, k and v cut from the convolution's
  // output, gates cut from the projection. Nothing is copied.
  template <class Params>
  Params recurrence(const GdnWeights& w, GdnPools& pools, int begin, int count,
                    const Matrix& packed, const Matrix& qkv, Matrix& out) const {
    Params p;
    p.q = part(qkv, begin, count, 0, kKeys).split(1, kKeyDim);
    p.k = part(qkv, begin, count, kKeys, kKeys).split(1, kKeyDim);
    p.v = part(qkv, begin, count, 2 * kKeys, kValues).split(1, kValueDim);
    p.out = part(out, begin, count, 0, kValues).split(1, kValueDim);
    p.gate = hyla::gdn::Gate::raw(part(packed, begin, count, kA, kValueHeads), view(w.A_log),
                                  view(w.dt_bias));
    p.beta = hyla::gdn::Beta::logit(part(packed, begin, count, kB, kValueHeads));
    p.state = {pools.state.data(), {slots_, kValueHeads, kValueDim, kKeyDim}};
    p.layout = hyla::gdn::StateLayout::kVK;
    p.first_slot = 1;
    p.l2norm = true;
    return p;
  }

  static hyla::norm::GatedNorm fused_norm(const GdnWeights& w, int count, const Matrix& packed) {
    return {.z = part(packed, 0, count, kZ, kValues).split(1, kValueDim),
            .weight = view(w.out_norm),
            .eps = kNormEps};
  }

  // Nobody drafted in this step. A row still starts from the state that its last step left in some
  // column, and leaves its own in column 0.
  void decode(const GdnWeights& w, GdnPools& pools, const DecodeSection& decode,
              const Matrix& packed, const Matrix& qkv, Matrix& out) const {
    auto p = recurrence<hyla::gdn::DecodeParams>(w, pools, 0, decode.tokens, packed, qkv, out);
    p.read_slots = view(decode.slots);
    p.read_columns = view(decode.columns);
    p.write_slots = view(decode.slots).select(1, 0);
    p.norm = fused_norm(w, decode.tokens, packed);
    hyla::gdn::decode(p);
  }

  // The state after every token is kept, column by column: whichever draft turns out to be the last
  // accepted one, the next step starts from its column and the rejected tail is forgotten.
  void verify_drafts(const GdnWeights& w, GdnPools& pools, const DecodeSection& decode,
                     const Matrix& packed, const Matrix& qkv, Matrix& out) const {
    auto p = recurrence<hyla::gdn::MtpParams>(w, pools, 0, decode.tokens, packed, qkv, out);
    p.cu_seqlens = view(decode.cu_seqlens);
    p.read_slots = view(decode.slots);
    p.read_columns = view(decode.columns);
    p.step_slots = view(decode.slots);
    p.update_state = true;
    p.norm = fused_norm(w, decode.tokens, packed);
    hyla::gdn::mtp(p);
  }

  // Chunks of prompts. A request's first chunk reads a checkpoint of a shared prefix or starts from
  // zero; it and all later ones write to the request's own slot, and leave checkpoints on the way.
  void prefill(const GdnWeights& w, GdnPools& pools, const PrefillSection& prefill, int begin,
               const Matrix& packed, Matrix& qkv, Matrix& out) const {
    const int count = packed.rows - begin;
    hyla::conv::prefill({.x = part(packed, begin, count, 0, kConvDim),
                         .weight = view(w.conv),
                         .out = part(qkv, begin, count, 0, kConvDim),
                         .state = windows(pools),
                         .cu_seqlens = view(prefill.cu_seqlens),
                         .read_slots = view(prefill.read_slots),
                         .write_slots = view(prefill.write_slots),
                         .first_slot = 1,
                         .window_offsets = view(prefill.window_offsets),
                         .has_initial_state = view(prefill.has_initial_state),
                         .checkpoint_offsets = view(prefill.checkpoint_offsets),
                         .checkpoint_slots = view(prefill.checkpoint_slots)});

    Matrix core(packed.rows, kValues);
    auto p = recurrence<hyla::gdn::PrefillParams>(w, pools, begin, count, packed, qkv, core);
    p.cu_seqlens = view(prefill.cu_seqlens);
    p.read_slots = view(prefill.read_slots);
    p.write_slots = view(prefill.write_slots);
    p.has_initial_state = view(prefill.has_initial_state);
    p.checkpoint_offsets = view(prefill.checkpoint_offsets);
    p.checkpoint_slots = view(prefill.checkpoint_slots);
    hyla::gdn::prefill(p);

    hyla::norm::gated_rms({.x = p.out,
                           .z = part(packed, begin, count, kZ, kValues).split(1, kValueDim),
                           .weight = view(w.out_norm),
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
    const auto cache =
        hyla::attention::KvCache::paged(pages(k_pages_), pages(v_pages_), view(batch.page_table));
    hyla::attention::append({.cache = cache,
                             .k = part(packed, 0, x.rows, kK, kKv).split(1, kHeadDim),
                             .v = part(packed, 0, x.rows, kV, kKv).split(1, kHeadDim),
                             .starts = view(batch.starts),
                             .lengths = view(batch.lengths),
                             .kv_lengths = view(batch.kv_lengths),
                             .rope = {.cos = view(cos_), .sin = view(sin_)}});
    Matrix out(x.rows, kQueries);
    hyla::attention::run({.q = part(packed, 0, x.rows, 0, kQueries).split(1, kHeadDim),
                          .cache = cache,
                          .out = view(out).split(1, kHeadDim),
                          .starts = view(batch.starts),
                          .lengths = view(batch.lengths),
                          .kv_lengths = view(batch.kv_lengths)});
    for (int t = 0; t < x.rows; ++t) {
      for (int i = 0; i < kQueries; ++i) out.row(t)[i] *= sigmoid(packed.row(t)[kGate + i]);
    }
    return multiply(out, w.out);
  }

  static hyla::TensorView part(const Matrix& m, int row, int rows, int col, int cols) {
    return view(m).slice(0, row, rows).slice(1, col, cols);
  }
  hyla::TensorView windows(GdnPools& pools) const {
    return {pools.windows.data(), {slots_, kConvDim, window()}};
  }
  hyla::TensorView pages(std::vector<float>& memory) const {
    return {memory.data(), {pages_, kPageSize, kKvHeads, kHeadDim}};
  }

  const Weights& weights_;
  int slots_, pages_, drafts_;
  GdnPools gdn_[kGdnLayers];
  std::vector<float> k_pages_, v_pages_;  // [pages, kPageSize, heads, dim]
  Matrix cos_, sin_;                      // [positions, rope pairs]
};

}  // namespace serving

// The same model computed from scratch: a whole sequence at once, plain loops, no hyla, no cache,
// no pages, no slots, no chunks. What was served is compared with this.
//
// Twice: in double for the truth, and in float to learn how far rounding alone takes the logits of
// this sequence. Serving may differ from the truth by kErrorFactor times that much: it rounds in
// the same places, in another order. With bfloat16 activations the float run rounds what operations
// read and write to bfloat16 too.
#pragma once

#include <hyla/float.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "dense.h"
#include "weights.h"

namespace serving {

inline constexpr double kErrorFactor = 8;

template <class Real>
class Recomputation {
 public:
  explicit Recomputation(const Weights& weights, bool bfloat16 = false)
      : weights_(weights), bfloat16_(bfloat16) {}

  // Logits after every token of the sequence: [tokens, vocabulary].
  MatrixOf<Real> logits(const std::vector<int>& tokens) const {
    M x = embed<Real>(weights_, tokens);
    for (const GdnWeights& layer : weights_.gdn) {
      add(x, gdn(layer, rms_norm(x, layer.norm)));
      add(x, mlp(layer.mlp, rms_norm(x, layer.mlp.norm)));
    }
    const AttentionWeights& layer = weights_.attention;
    add(x, attention(layer, rms_norm(x, layer.norm)));
    add(x, mlp(layer.mlp, rms_norm(x, layer.mlp.norm)));
    return multiply(rms_norm(x, weights_.norm), weights_.head);
  }

 private:
  using M = MatrixOf<Real>;

  static Real silu(Real x) { return x * sigmoid(x); }
  static Real softplus(Real x) { return std::max(x, Real(0)) + std::log1p(std::exp(-std::abs(x))); }

  // What an operation reads or writes.
  void store(Real* x, int count) const {
    if (!bfloat16_) return;
    for (int i = 0; i < count; ++i) x[i] = Real(float(hyla::bfloat16(float(x[i]))));
  }
  M stored(M x) const {
    store(x.data.data(), int(x.data.size()));
    return x;
  }

  M gdn(const GdnWeights& w, const M& x) const {
    const M packed = stored(multiply(x, w.in));
    M qkv(x.rows, kConvDim), out(x.rows, kValues);
    for (int t = 0; t < x.rows; ++t) {
      for (int c = 0; c < kConvDim; ++c) {
        Real sum = 0;
        for (int j = 0; j < kConvWidth; ++j) {
          const int from = t - (kConvWidth - 1) + j;
          if (from >= 0) sum += w.conv.row(c)[j] * packed.row(from)[c];
        }
        qkv.row(t)[c] = silu(sum);
      }
      store(qkv.row(t), kConvDim);
      for (int h = 0; h < 2 * kKeyHeads; ++h) {  // q and k to unit length
        Real* head = qkv.row(t) + h * kKeyDim;
        const Real factor = 1 / std::sqrt(dot(head, head, kKeyDim) + Real(1e-6));
        for (int i = 0; i < kKeyDim; ++i) head[i] *= factor;
      }
    }
    for (int hv = 0; hv < kValueHeads; ++hv) {
      const int h = hv / (kValueHeads / kKeyHeads);
      M S(kValueDim, kKeyDim);
      for (int t = 0; t < x.rows; ++t) {
        const Real* q = qkv.row(t) + h * kKeyDim;
        const Real* k = qkv.row(t) + kKeys + h * kKeyDim;
        const Real* v = qkv.row(t) + 2 * kKeys + hv * kValueDim;
        const Real dt = softplus(packed.row(t)[kA + hv] + w.dt_bias[hv]);
        const Real alpha = std::exp(-std::exp(Real(w.A_log[hv])) * dt);
        const Real beta = sigmoid(packed.row(t)[kB + hv]);
        Real* o = out.row(t) + hv * kValueDim;
        for (int j = 0; j < kValueDim; ++j) {
          Real* s = S.row(j);
          for (int i = 0; i < kKeyDim; ++i) s[i] *= alpha;
          const Real delta = beta * (v[j] - dot(s, k, kKeyDim));
          for (int i = 0; i < kKeyDim; ++i) s[i] += delta * k[i];
          o[j] = dot(s, q, kKeyDim) / std::sqrt(Real(kKeyDim));
        }
        store(o, kValueDim);
        rms_norm(o, w.out_norm);
        for (int j = 0; j < kValueDim; ++j) o[j] *= silu(packed.row(t)[kZ + hv * kValueDim + j]);
      }
    }
    return multiply(stored(std::move(out)), w.out);
  }

  M attention(const AttentionWeights& w, const M& x) const {
    M packed = multiply(x, w.in), out(x.rows, kQueries);
    for (int t = 0; t < x.rows; ++t) {
      for (int h = 0; h < kQueryHeads + kKvHeads; ++h) {
        const bool query = h < kQueryHeads;
        const int column = query ? h * kHeadDim : kK + (h - kQueryHeads) * kHeadDim;
        rms_norm(packed.row(t) + column, query ? w.q_norm : w.k_norm);
        if (!query) store(packed.row(t) + column, kHeadDim);
        rope(packed.row(t) + column, t);
        store(packed.row(t) + column, kHeadDim);
      }
      store(packed.row(t) + kV, kKv);
    }
    std::vector<Real> weight(x.rows);
    for (int t = 0; t < x.rows; ++t) {
      for (int h = 0; h < kQueryHeads; ++h) {
        const int kv = h / (kQueryHeads / kKvHeads) * kHeadDim;
        const Real* q = packed.row(t) + h * kHeadDim;
        Real largest = -INFINITY, sum = 0;
        for (int s = 0; s <= t; ++s) {
          weight[s] = dot(q, packed.row(s) + kK + kv, kHeadDim) / std::sqrt(Real(kHeadDim));
          largest = std::max(largest, weight[s]);
        }
        for (int s = 0; s <= t; ++s) sum += weight[s] = std::exp(weight[s] - largest);
        for (int i = 0; i < kHeadDim; ++i) {
          Real value = 0;
          for (int s = 0; s <= t; ++s) value += weight[s] / sum * packed.row(s)[kV + kv + i];
          store(&value, 1);
          out.row(t)[h * kHeadDim + i] = value * sigmoid(packed.row(t)[kGate + h * kHeadDim + i]);
        }
      }
    }
    return multiply(out, w.out);
  }

  const Weights& weights_;
  bool bfloat16_;
};

struct Verdict {
  int tokens = 0, wrong = 0;         // generated tokens; those that are not the most likely one
  double difference = 0, bound = 0;  // of logits, the largest
  bool good() const { return wrong == 0 && difference <= bound; }
};

// `served` holds the logits that each generated token was chosen from.
inline Verdict verify(const Weights& weights, const std::vector<int>& tokens, int prompt_length,
                      const std::vector<std::vector<float>>& served, bool bfloat16) {
  const MatrixOf<double> truth = Recomputation<double>(weights).logits(tokens);
  const MatrixOf<float> rounded = Recomputation<float>(weights, bfloat16).logits(tokens);
  Verdict verdict;
  verdict.tokens = int(tokens.size()) - prompt_length;
  if (verdict.tokens != int(served.size())) verdict.wrong = verdict.tokens;
  for (std::size_t i = 0; i < truth.data.size(); ++i) {
    verdict.bound = std::max(verdict.bound, std::abs(rounded.data[i] - truth.data[i]));
  }
  verdict.bound *= kErrorFactor;
  for (int i = 0; i < int(served.size()) && verdict.wrong < verdict.tokens; ++i) {
    const double* expected = truth.row(prompt_length + i - 1);
    for (int id = 0; id < kVocabulary; ++id) {
      const double difference = std::abs(served[i][id] - expected[id]);
      verdict.difference =
          std::max(verdict.difference, std::isnan(difference) ? INFINITY : difference);
    }
    // Two logits closer than rounding may be taken in either order.
    const double best = *std::max_element(expected, expected + kVocabulary);
    if (!(best - expected[tokens[prompt_length + i]] <= 2 * verdict.bound)) ++verdict.wrong;
  }
  return verdict;
}

}  // namespace serving

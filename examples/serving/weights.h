// The model that is served: sizes and random weights. Qwen3.5's layer order in small: three Gated
// DeltaNet layers, then one attention layer, each followed by a gated MLP.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace serving {

inline constexpr int kVocabulary = 256, kHidden = 64, kMlp = 96;
inline constexpr int kGdnLayers = 3;
inline constexpr double kNormEps = 1e-6;
inline constexpr float kHabit = 0.1f;

// Gated DeltaNet: H key heads, HV value heads, and a causal convolution over q | k | v.
inline constexpr int kKeyHeads = 2, kValueHeads = 4, kKeyDim = 32, kValueDim = 32;
inline constexpr int kKeys = kKeyHeads * kKeyDim, kValues = kValueHeads * kValueDim;
inline constexpr int kConvDim = 2 * kKeys + kValues, kConvWidth = 4;
// One packed projection: q | k | v, z (the output gate), b (beta's logit), a (the decay).
inline constexpr int kZ = kConvDim, kB = kZ + kValues, kA = kB + kValueHeads;
inline constexpr int kGdnPacked = kA + kValueHeads;

// Attention: grouped query heads, rotary embedding of the first quarter of a head.
inline constexpr int kQueryHeads = 4, kKvHeads = 2, kHeadDim = 32, kRopeDim = 8;
inline constexpr int kQueries = kQueryHeads * kHeadDim, kKv = kKvHeads * kHeadDim;
inline constexpr double kRopeBase = 10000;
// One packed projection: queries, their output gates, keys, values.
inline constexpr int kGate = kQueries, kK = kGate + kQueries, kV = kK + kKv;
inline constexpr int kAttentionPacked = kV + kKv;

inline double rope_angle(int position, int pair) {
  return position * std::pow(kRopeBase, -2.0 * pair / kRopeDim);
}

// Row-major [rows, cols]; as a weight, [outputs, inputs].
template <class Real>
struct MatrixOf {
  int rows = 0, cols = 0;
  std::vector<Real> data;

  MatrixOf() = default;
  MatrixOf(int rows_, int cols_) : rows(rows_), cols(cols_), data(std::size_t(rows_) * cols_) {}
  Real* row(int r) { return data.data() + std::size_t(r) * cols; }
  const Real* row(int r) const { return data.data() + std::size_t(r) * cols; }
};
using Matrix = MatrixOf<float>;

struct MlpWeights {
  std::vector<float> norm;
  Matrix gate, up, down;
};

struct GdnWeights {
  std::vector<float> norm, A_log, dt_bias, out_norm;
  Matrix in, conv, out;
  MlpWeights mlp;
};

struct AttentionWeights {
  std::vector<float> norm, q_norm, k_norm;
  Matrix in, out;
  MlpWeights mlp;
};

struct Weights {
  Matrix embedding, head;
  GdnWeights gdn[kGdnLayers];
  AttentionWeights attention;
  std::vector<float> norm;
  std::vector<int> successor;  // the token that tends to follow each token
};

inline Weights random_weights(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto matrix = [&](int rows, int cols) {
    Matrix m(rows, cols);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(float(cols)));
    for (float& x : m.data) x = normal(random);
    return m;
  };
  const auto vector = [&](int size, float low, float high) {
    std::vector<float> v(size);
    std::uniform_real_distribution<float> uniform(low, high);
    for (float& x : v) x = uniform(random);
    return v;
  };
  const auto mlp = [&] {
    return MlpWeights{vector(kHidden, 0.5, 1.5), matrix(kMlp, kHidden), matrix(kMlp, kHidden),
                      matrix(kHidden, kMlp)};
  };
  Weights w;
  w.embedding = matrix(kVocabulary, kHidden);
  for (float& x : w.embedding.data) x *= 2 * std::sqrt(float(kHidden));
  for (GdnWeights& layer : w.gdn) {
    layer.norm = vector(kHidden, 0.5, 1.5);
    layer.in = matrix(kGdnPacked, kHidden);
    layer.conv = matrix(kConvDim, kConvWidth);
    // Heads that forget within a few tokens and heads that remember hundreds.
    layer.A_log = vector(kValueHeads, -1, 2);
    layer.dt_bias = vector(kValueHeads, -6, -2);
    layer.out_norm = vector(kValueDim, 0.5, 1.5);
    layer.out = matrix(kHidden, kValues);
    layer.mlp = mlp();
  }
  w.attention = {vector(kHidden, 0.5, 1.5),  vector(kHeadDim, 0.5, 1.5),
                 vector(kHeadDim, 0.5, 1.5), matrix(kAttentionPacked, kHidden),
                 matrix(kHidden, kQueries),  mlp()};
  w.norm = vector(kHidden, 0.5, 1.5);
  w.head = matrix(kVocabulary, kHidden);
  // A purely random model never repeats itself, and no draft would ever be right. So every token
  // has a successor that the head leans towards; the layers still overrule it often.
  w.successor.resize(kVocabulary);
  for (int token = 0; token < kVocabulary; ++token) {
    w.successor[token] = std::uniform_int_distribution<int>(0, kVocabulary - 1)(random);
    float* row = w.head.row(w.successor[token]);
    for (int i = 0; i < kHidden; ++i) row[i] += kHabit * w.embedding.row(token)[i];
  }
  return w;
}

}  // namespace serving

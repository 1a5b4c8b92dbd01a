// The parts of the model that are not hyla's: plain loops, in float for serving and in double for
// the verification.
#pragma once

#include <algorithm>
#include <cmath>

#include "weights.h"

namespace serving {

template <class Real>
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

template <class Real, class Other>
Real dot(const Real* a, const Other* b, int n) {
  Real sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * Real(b[i]);
  return sum;
}

template <class Real>
MatrixOf<Real> multiply(const MatrixOf<Real>& x, const Matrix& w) {
  MatrixOf<Real> y(x.rows, w.rows);
  for (int t = 0; t < x.rows; ++t) {
    for (int o = 0; o < w.rows; ++o) y.row(t)[o] = dot(x.row(t), w.row(o), w.cols);
  }
  return y;
}

template <class Real>
void add(MatrixOf<Real>& x, const MatrixOf<Real>& y) {
  for (std::size_t i = 0; i < x.data.size(); ++i) x.data[i] += y.data[i];
}

template <class Real>
void rms_norm(Real* x, const std::vector<float>& weight) {
  const int n = int(weight.size());
  const Real factor = 1 / std::sqrt(dot(x, x, n) / n + Real(kNormEps));
  for (int i = 0; i < n; ++i) x[i] *= factor * weight[i];
}

template <class Real>
MatrixOf<Real> rms_norm(MatrixOf<Real> x, const std::vector<float>& weight) {
  for (int t = 0; t < x.rows; ++t) rms_norm(x.row(t), weight);
  return x;
}

template <class Real>
MatrixOf<Real> mlp(const MlpWeights& w, const MatrixOf<Real>& x) {
  MatrixOf<Real> gate = multiply(x, w.gate);
  const MatrixOf<Real> up = multiply(x, w.up);
  for (std::size_t i = 0; i < up.data.size(); ++i) {
    gate.data[i] *= sigmoid(gate.data[i]) * up.data[i];
  }
  return multiply(gate, w.down);
}

// Pairs (i, i + kRopeDim/2) of a head are turned by the position.
template <class Real>
void rope(Real* head, int position) {
  for (int i = 0; i < kRopeDim / 2; ++i) {
    const double angle = rope_angle(position, i);
    const Real c = Real(std::cos(angle)), s = Real(std::sin(angle));
    const Real a = head[i], b = head[i + kRopeDim / 2];
    head[i] = a * c - b * s;
    head[i + kRopeDim / 2] = b * c + a * s;
  }
}

template <class Real>
MatrixOf<Real> embed(const Weights& weights, const std::vector<int>& tokens) {
  MatrixOf<Real> x(int(tokens.size()), kHidden);
  for (int t = 0; t < x.rows; ++t) {
    std::copy_n(weights.embedding.row(tokens[t]), kHidden, x.row(t));
  }
  return x;
}

}  // namespace serving

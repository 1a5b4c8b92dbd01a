#include "ops/support/gdn_oracle.h"

#include <algorithm>
#include <cmath>

namespace hyla::gdn_test {
namespace {

std::size_t at(std::int64_t row, std::int64_t column, std::int64_t columns) {
  return static_cast<std::size_t>(row * columns + column);
}

// [m, n] x [n, p]
Matrix multiply(const Matrix& a, const Matrix& b, std::int64_t m, std::int64_t n, std::int64_t p) {
  Matrix c(static_cast<std::size_t>(m * p), 0.0);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t l = 0; l < n; ++l) {
      const double x = a[at(i, l, n)];
      if (x == 0) continue;
      for (std::int64_t j = 0; j < p; ++j) c[at(i, j, p)] += x * b[at(l, j, p)];
    }
  }
  return c;
}

// alpha (I - beta k k^T) of one token
Matrix transition(const HeadInput& h, std::int64_t t) {
  Matrix A(static_cast<std::size_t>(h.K * h.K));
  const double alpha = std::exp(h.log_alpha[static_cast<std::size_t>(t)]);
  const double beta = h.beta[static_cast<std::size_t>(t)];
  for (std::int64_t i = 0; i < h.K; ++i) {
    for (std::int64_t j = 0; j < h.K; ++j) {
      const double kk = h.k[at(t, i, h.K)] * h.k[at(t, j, h.K)];
      A[at(i, j, h.K)] = alpha * ((i == j ? 1.0 : 0.0) - beta * kk);
    }
  }
  return A;
}

// beta k v^T of one token
Matrix inflow(const HeadInput& h, std::int64_t t) {
  Matrix B(static_cast<std::size_t>(h.K * h.V));
  for (std::int64_t i = 0; i < h.K; ++i) {
    for (std::int64_t j = 0; j < h.V; ++j) {
      B[at(i, j, h.V)] =
          h.beta[static_cast<std::size_t>(t)] * h.k[at(t, i, h.K)] * h.v[at(t, j, h.V)];
    }
  }
  return B;
}

void add(Matrix& to, const Matrix& what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

void append_output(HeadResult& result, const HeadInput& h, std::int64_t t, const Matrix& S) {
  const Matrix q(h.q.begin() + t * h.K, h.q.begin() + (t + 1) * h.K);
  for (double o : multiply(q, S, 1, h.K, h.V)) result.o.push_back(h.scale * o);
}

// Sums of logs, kept apart from the wipes (alpha = 0) so that no -inf is subtracted from itself.
struct Decays {
  std::vector<double> logs{0.0};
  std::vector<int> wipes{0};
  void push(double log_alpha) {
    const bool wipe = std::isinf(log_alpha);
    logs.push_back(logs.back() + (wipe ? 0.0 : log_alpha));
    wipes.push_back(wipes.back() + (wipe ? 1 : 0));
  }
  double from_to(std::int64_t from, std::int64_t to) const {
    const auto f = static_cast<std::size_t>(from), t = static_cast<std::size_t>(to);
    return wipes[t] > wipes[f] ? 0.0 : std::exp(logs[t] - logs[f]);
  }
};

// (I + L)^-1 of a strictly lower triangular L, row by row.
Matrix unit_lower_inverse(const Matrix& L, std::int64_t C) {
  Matrix T(static_cast<std::size_t>(C * C), 0.0);
  for (std::int64_t i = 0; i < C; ++i) {
    T[at(i, i, C)] = 1;
    for (std::int64_t j = 0; j < i; ++j) {
      double sum = 0;
      for (std::int64_t l = j; l < i; ++l) sum += L[at(i, l, C)] * T[at(l, j, C)];
      T[at(i, j, C)] = -sum;
    }
  }
  return T;
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Tokens [begin, begin + C) of h, from S on: appends outputs, leaves the chunk's final state in S.
void wy_chunk(const HeadInput& h, std::int64_t begin, std::int64_t C, Matrix& S, Matrix& o) {
  const double *q = h.q.data() + begin * h.K, *k = h.k.data() + begin * h.K;
  const double *v = h.v.data() + begin * h.V, *beta = h.beta.data() + begin;
  Decays decay;
  for (std::int64_t i = 0; i < C; ++i) decay.push(h.log_alpha[static_cast<std::size_t>(begin + i)]);

  Matrix L(static_cast<std::size_t>(C * C), 0.0), P = L;  // P: masked q k^T
  for (std::int64_t i = 0; i < C; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const double d = decay.from_to(j + 1, i + 1);
      if (j < i) L[at(i, j, C)] = beta[i] * d * dot(k + i * h.K, k + j * h.K, h.K);
      P[at(i, j, C)] = d * dot(q + i * h.K, k + j * h.K, h.K);
    }
  }
  const Matrix T = unit_lower_inverse(L, C);
  Matrix bk(static_cast<std::size_t>(C * h.K)), bv(static_cast<std::size_t>(C * h.V));
  for (std::int64_t i = 0; i < C; ++i) {
    for (std::int64_t c = 0; c < h.K; ++c) {
      bk[at(i, c, h.K)] = beta[i] * decay.from_to(0, i + 1) * k[i * h.K + c];
    }
    for (std::int64_t c = 0; c < h.V; ++c) bv[at(i, c, h.V)] = beta[i] * v[i * h.V + c];
  }
  const Matrix W = multiply(T, bk, C, C, h.K), U = multiply(T, bv, C, C, h.V);
  Matrix delta = multiply(W, S, C, h.K, h.V);
  for (std::size_t i = 0; i < delta.size(); ++i) delta[i] = U[i] - delta[i];

  const Matrix inside = multiply(P, delta, C, C, h.V);
  Matrix next(S.size());
  for (std::size_t i = 0; i < S.size(); ++i) next[i] = decay.from_to(0, C) * S[i];
  for (std::int64_t i = 0; i < C; ++i) {
    const Matrix row(q + i * h.K, q + (i + 1) * h.K);
    const Matrix before = multiply(row, S, 1, h.K, h.V);
    for (std::int64_t c = 0; c < h.V; ++c) {
      o.push_back(h.scale * (decay.from_to(0, i + 1) * before[static_cast<std::size_t>(c)] +
                             inside[at(i, c, h.V)]));
    }
    for (std::int64_t r = 0; r < h.K; ++r) {
      for (std::int64_t c = 0; c < h.V; ++c) {
        next[at(r, c, h.V)] += decay.from_to(i + 1, C) * k[i * h.K + r] * delta[at(i, c, h.V)];
      }
    }
  }
  S = next;
}

}  // namespace

HeadResult dense(const HeadInput& h) {
  HeadResult result;
  Matrix S = h.S0;
  result.states[0] = S;
  for (std::int64_t t = 0; t < h.T; ++t) {
    S = multiply(transition(h, t), S, h.K, h.K, h.V);
    add(S, inflow(h, t));
    append_output(result, h, t, S);
    result.states[t + 1] = S;
  }
  return result;
}

HeadResult expanded(const HeadInput& h) {
  HeadResult result;
  result.states[0] = h.S0;
  for (std::int64_t t = 0; t < h.T; ++t) {
    Matrix product(static_cast<std::size_t>(h.K * h.K), 0.0);  // A_t ... A_{s+1}, from s = t down
    for (std::int64_t i = 0; i < h.K; ++i) product[at(i, i, h.K)] = 1;
    Matrix S(static_cast<std::size_t>(h.K * h.V), 0.0);
    for (std::int64_t s = t; s >= 0; --s) {
      add(S, multiply(product, inflow(h, s), h.K, h.K, h.V));
      product = multiply(product, transition(h, s), h.K, h.K, h.K);
    }
    add(S, multiply(product, h.S0, h.K, h.K, h.V));
    append_output(result, h, t, S);
    result.states[t + 1] = S;
  }
  return result;
}

HeadResult wy(const HeadInput& h, const std::vector<std::int64_t>& cuts) {
  HeadResult result;
  Matrix S = h.S0;
  result.states[0] = S;
  std::int64_t begin = 0;
  for (std::int64_t end : cuts) {
    if (end > begin) wy_chunk(h, begin, end - begin, S, result.o);
    result.states[end] = S;
    begin = end;
  }
  return result;
}

std::vector<std::int64_t> every(std::int64_t chunk, std::int64_t T) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t end = chunk; end < T; end += chunk) cuts.push_back(end);
  cuts.push_back(T);
  return cuts;
}

double largest(const Matrix& values) {
  double result = 0;
  for (double value : values) result = std::max(result, std::fabs(value));
  return result;
}

}  // namespace hyla::gdn_test

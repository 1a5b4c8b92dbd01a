// One value head of one row: load its state, walk its tokens, show the state after each of them.
#pragma once

#include <cmath>
#include <vector>

#include "problem/gdn.h"
#include "reference/norm.h"
#include "reference/scalar.h"

namespace hyla::reference {

using State = std::vector<double>;  // [K, V]

inline double alpha_of(const gdn::GateView& gate, std::int64_t row, std::int64_t token,
                       std::int64_t head) {
  if (gate.kind == gdn::Gate::Kind::kNone) return 1.0;
  const double value = load(gate.value, row, token, head);
  if (gate.kind == gdn::Gate::Kind::kLinear) return value;
  if (gate.kind == gdn::Gate::Kind::kLog) return std::exp(value);
  return std::exp(-std::exp(load(gate.A_log, head)) * softplus(value + load(gate.dt_bias, head)));
}

inline double beta_of(const gdn::BetaView& beta, std::int64_t row, std::int64_t token,
                      std::int64_t head) {
  if (beta.kind == gdn::Beta::Kind::kNone) return 1.0;
  const double value = load(beta.value, row, token, head);
  return beta.kind == gdn::Beta::Kind::kLogit ? sigmoid(value) : value;
}

// q or k of one token and head, normalised when asked.
inline std::vector<double> load_key(const gdn::Problem& p, const core::TokenView& view,
                                    std::int64_t row, std::int64_t token, std::int64_t head) {
  std::vector<double> x(static_cast<std::size_t>(p.K));
  double sum = 0;
  for (std::int64_t i = 0; i < p.K; ++i) {
    x[static_cast<std::size_t>(i)] = load(view, row, token, head, i);
    sum += x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(i)];
  }
  if (p.l2norm) {
    for (double& value : x) value /= std::sqrt(sum + p.l2norm_eps);
  }
  return x;
}

// S = alpha S;  delta = beta (v - k^T S);  S = S + k (outer) delta;  returns scale * q^T S.
inline std::vector<double> step(State& S, const std::vector<double>& q,
                                const std::vector<double>& k, const std::vector<double>& v,
                                double alpha, double beta, double scale) {
  const std::size_t K = k.size(), V = v.size();
  std::vector<double> delta(V, 0.0), o(V, 0.0);
  for (std::size_t i = 0; i < K; ++i) {
    for (std::size_t j = 0; j < V; ++j) {
      S[i * V + j] *= alpha;
      delta[j] += k[i] * S[i * V + j];
    }
  }
  for (std::size_t j = 0; j < V; ++j) delta[j] = beta * (v[j] - delta[j]);
  for (std::size_t i = 0; i < K; ++i) {
    for (std::size_t j = 0; j < V; ++j) {
      S[i * V + j] += k[i] * delta[j];
      o[j] += q[i] * S[i * V + j];
    }
  }
  for (double& value : o) value *= scale;
  return o;
}

inline State load_state(const gdn::Problem& p, const gdn::PoolView& pool, std::int64_t slot,
                        std::int64_t head) {
  State S(static_cast<std::size_t>(p.K * p.V), 0.0);
  if (!pool.present()) return S;
  const std::int64_t base = slot * pool.slot_stride + head * pool.head_stride;
  for (std::int64_t i = 0; i < p.K; ++i) {
    for (std::int64_t j = 0; j < p.V; ++j) {
      S[static_cast<std::size_t>(i * p.V + j)] =
          load(pool.data, pool.dtype, base + i * pool.k_stride + j * pool.v_stride);
    }
  }
  return S;
}

inline void store_state(const gdn::Problem& p, const gdn::PoolView& pool, std::int64_t slot,
                        std::int64_t head, const State& S) {
  const std::int64_t base = slot * pool.slot_stride + head * pool.head_stride;
  for (std::int64_t i = 0; i < p.K; ++i) {
    for (std::int64_t j = 0; j < p.V; ++j) {
      store(pool.data, pool.dtype, base + i * pool.k_stride + j * pool.v_stride,
            S[static_cast<std::size_t>(i * p.V + j)]);
    }
  }
}

// Calls on_state(tokens so far, S) for 0, 1, ..., length tokens.
template <class OnState>
void run_head(const gdn::Problem& p, std::int64_t row, std::int64_t head, State S,
              OnState&& on_state) {
  const std::int64_t q_head = head / (p.heads / p.q_heads);
  const std::int64_t k_head = head / (p.heads / p.k_heads);
  const std::int64_t v_head = head / (p.heads / p.v_heads);
  const std::int64_t begin = p.sequences.begin(row), length = p.sequences.length(row);
  on_state(std::int64_t{0}, S);
  for (std::int64_t t = 0; t < length; ++t) {
    const std::int64_t token = begin + t;
    std::vector<double> v(static_cast<std::size_t>(p.V));
    for (std::int64_t j = 0; j < p.V; ++j) {
      v[static_cast<std::size_t>(j)] = load(p.v, row, token, v_head, j);
    }
    std::vector<double> o =
        step(S, load_key(p, p.q, row, token, q_head), load_key(p, p.k, row, token, k_head), v,
             alpha_of(p.gate, row, token, head), beta_of(p.beta, row, token, head), p.scale);
    if (p.norm.present()) gated_norm(o, p.norm, row, token, head);
    for (std::int64_t j = 0; j < p.V; ++j) {
      store(p.out.data, p.out.dtype, p.out.offset(row, token, head, j),
            o[static_cast<std::size_t>(j)]);
    }
    on_state(t + 1, S);
  }
}

// Every row that is not padding, every head, starting from the row's slot of the pool.
template <class Body>
void for_each_head(const gdn::Problem& p, Body&& body) {
  for (std::int64_t row = 0; row < p.sequences.rows; ++row) {
    const std::int64_t slot = p.slots.read_slot(row);
    if (slot == core::kNullSlot) continue;
    for (std::int64_t head = 0; head < p.heads; ++head) body(row, head, slot);
  }
}

}  // namespace hyla::reference

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "testing/naive.h"

namespace hyla::testing {
namespace {

using std::int64_t;

// All four operations brought to one form: q, k, v, out, gates as [B, T, ...] or [total, ...].
struct Form {
  bool ragged = false;
  int64_t rows = 0, tokens = 0;  // tokens: of each row when not ragged
  TensorView q, k, v, out, cu_seqlens, starts, lengths;
  gdn::Gate gate;
  gdn::Beta beta;
  norm::GatedNorm norm;
  TensorView initial;  // pool
  TensorView read_slots, read_columns, has_initial_state;
  int64_t first_slot = 0;
  gdn::StateLayout layout{};
  std::optional<double> scale;
  bool l2norm = false;
  double eps = 0;
  // Where the state of (row, head) after `count` tokens goes: pool views and slots.
  struct Target {
    TensorView pool;  // [slots, heads, ., .]
    int64_t slot;
  };
  std::function<std::vector<Target>(int64_t row, int64_t count, int64_t length)> targets;
};

int64_t length_of(const Form& f, int64_t row) {
  if (f.cu_seqlens.present())
    return integer(f.cu_seqlens, {row + 1}) - integer(f.cu_seqlens, {row});
  return f.lengths.present() ? integer(f.lengths, {row}) : f.tokens;
}

int64_t begin_of(const Form& f, int64_t row) {
  if (f.cu_seqlens.present()) return integer(f.cu_seqlens, {row});
  return f.starts.present() ? integer(f.starts, {row}) : 0;
}

// [heads, dim] or [heads] of one token.
TensorView token(const Form& f, const TensorView& view, int64_t row, int64_t t) {
  return f.ragged ? view.select(0, begin_of(f, row) + t) : view.select(0, row).select(0, t);
}

int64_t read_slot(const Form& f, int64_t row) { return naive_read_slot(f, row); }

int64_t write_slot(const Form& f, const TensorView& write_slots, int64_t row) {
  return write_slots.present() ? integer(write_slots, {row}) : read_slot(f, row);
}

// [V, K] of one slot and head, whatever the layout.
TensorView matrix(const Form& f, const TensorView& pool, int64_t slot, int64_t head) {
  const TensorView m = pool.select(0, slot).select(0, head);
  return f.layout == gdn::StateLayout::kVK ? m : m.swap(0, 1);
}

template <class Real>
class Walker {
 public:
  Walker(const Form& form, const NaiveOptions& options)
      : f_(form),
        operands_(options.float64 ? DType::kFloat32 : options.operands),
        chunked_(options.chunked) {}

  void run() {
    for (int64_t row = 0; row < f_.rows; ++row) {
      const int64_t slot = read_slot(f_, row);
      if (slot < f_.first_slot) continue;
      const int64_t heads = f_.out.shape[f_.out.rank - 2];
      for (int64_t head = 0; head < heads; ++head) walk(row, head, slot);
    }
  }

 private:
  using Vector = std::vector<Real>;

  // One row of one head: first everything that belongs to tokens, then value row by value row.
  void walk(int64_t row, int64_t head, int64_t slot) {
    const int64_t length = length_of(f_, row);
    const int64_t heads = f_.out.shape[f_.out.rank - 2], V = f_.out.shape[f_.out.rank - 1];
    const auto K = static_cast<std::size_t>(f_.q.shape[f_.q.rank - 1]);
    const auto group = [&](const TensorView& x) { return head / (heads / x.shape[x.rank - 2]); };
    std::vector<Vector> q, k, out;
    Vector alpha, beta;
    for (int64_t t = 0; t < length; ++t) {
      q.push_back(key(token(f_, f_.q, row, t).select(0, group(f_.q))));
      k.push_back(key(token(f_, f_.k, row, t).select(0, group(f_.k))));
      alpha.push_back(decay(row, t, head));
      beta.push_back(strength(row, t, head));
      out.emplace_back(static_cast<std::size_t>(V));
    }
    const Real scale = static_cast<Real>(
        f_.scale.has_value() ? *f_.scale : 1.0 / std::sqrt(static_cast<double>(K)));
    const bool fresh = !f_.initial.present() || (f_.has_initial_state.present() &&
                                                 integer(f_.has_initial_state, {row}) == 0);
    const std::vector<Matrices> chunks =
        chunked_ ? matrices(q, k, alpha, beta) : std::vector<Matrices>();
    for (int64_t j = 0; j < V; ++j) {
      Vector s(K, Real(0));
      if (!fresh) {
        const TensorView line = matrix(f_, f_.initial, slot, head).select(0, j);
        for (std::size_t i = 0; i < K; ++i) {
          s[i] = static_cast<Real>(number(line, {static_cast<int64_t>(i)}));
        }
      }
      keep(row, head, j, 0, length, s);
      Vector values;
      for (int64_t t = 0; t < length; ++t) {
        values.push_back(static_cast<Real>(number(token(f_, f_.v, row, t), {group(f_.v), j})));
      }
      for (std::size_t c = 0; c < chunks.size(); ++c) {
        const std::size_t first = c * kChunk;
        walk_chunk(
            chunks[c], &q[first], &k[first], &values[first], s,
            [&](std::size_t i, Real o) { out[first + i][static_cast<std::size_t>(j)] = scale * o; },
            [&](std::size_t count, auto&& state) {
              const auto all = static_cast<int64_t>(first + count);
              if (!f_.targets(row, all, length).empty()) keep(row, head, j, all, length, state());
            });
      }
      if (chunked_) continue;
      for (int64_t t = 0; t < length; ++t) {
        const auto n = static_cast<std::size_t>(t);
        out[n][static_cast<std::size_t>(j)] =
            scale * step(s, q[n], k[n], values[n], alpha[n], beta[n]);
        keep(row, head, j, t + 1, length, s);
      }
    }
    for (int64_t t = 0; t < length; ++t) {
      store_output(row, t, head, out[static_cast<std::size_t>(t)]);
    }
  }

  Real step(Vector& s, const Vector& q, const Vector& k, Real value, Real alpha, Real beta) const {
    Real seen = 0, result = 0;
    for (std::size_t i = 0; i < s.size(); ++i) {
      s[i] = alpha == Real(0) ? Real(0) : alpha * s[i];
      seen += k[i] * operand(s[i]);
    }
    const Real delta = operand(beta * (value - seen));
    for (std::size_t i = 0; i < s.size(); ++i) {
      s[i] += k[i] * delta;
      result += q[i] * operand(s[i]);
    }
    return result;
  }

  // Of 64 tokens of a head, factors[i][n]: what is left of token n's share behind token i.
  struct Matrices {
    std::vector<Vector> factors, inverse, scores;  // inverse: (1 + L)^-1 beta, rounded as scores
    Vector decay;                                  // what is left of the state
  };

  std::vector<Matrices> matrices(const std::vector<Vector>& q, const std::vector<Vector>& k,
                                 const Vector& alpha, const Vector& beta) const {
    std::vector<Matrices> result;
    for (std::size_t first = 0; first < q.size(); first += kChunk) {
      const std::size_t tokens = std::min(kChunk, q.size() - first);
      const std::vector<Vector> zeros(tokens, Vector(tokens, Real(0)));
      Matrices m{zeros, zeros, zeros, Vector(tokens)};
      for (std::size_t i = 0; i < tokens; ++i) {
        m.decay[i] = (i == 0 ? Real(1) : m.decay[i - 1]) * alpha[first + i];
        m.inverse[i][i] = beta[first + i];
        for (std::size_t n = 0; n <= i; ++n) {
          m.factors[i][n] = n == i ? Real(1) : m.factors[i - 1][n] * alpha[first + i];
          m.scores[i][n] = operand(m.factors[i][n] * dot(q[first + i], k[first + n]));
        }
        for (std::size_t n = 0; n < i; ++n) {
          const Real l = beta[first + i] * m.factors[i][n] * dot(k[first + i], k[first + n]);
          for (std::size_t x = 0; x <= n; ++x) m.inverse[i][x] -= l * m.inverse[n][x];
        }
      }
      for (Vector& line : m.inverse) {
        for (Real& value : line) value = operand(value);
      }
      result.push_back(std::move(m));
    }
    return result;
  }

  // The plain chunked algorithm for one value row: give(token, output), keep(count, state of it).
  template <class Give, class Keep>
  void walk_chunk(const Matrices& m, const Vector* q, const Vector* k, const Real* values,
                  Vector& s, Give give, Keep keep_state) const {
    const std::size_t tokens = m.decay.size();
    Vector rounded_s, w, u(tokens, Real(0));
    for (const Real x : s) rounded_s.push_back(operand(x));
    for (std::size_t i = 0; i < tokens; ++i) {
      w.push_back(operand(values[i] - m.decay[i] * dot(k[i], rounded_s)));
      for (std::size_t n = 0; n <= i; ++n) u[i] += m.inverse[i][n] * w[n];
      Real o = m.decay[i] * dot(q[i], rounded_s);
      for (std::size_t n = 0; n <= i; ++n) o += m.scores[i][n] * operand(u[n]);
      give(i, o);
    }
    const auto state = [&](std::size_t last) {
      Vector next;
      for (const Real x : s) next.push_back(m.decay[last] * x);
      for (std::size_t n = 0; n <= last; ++n) {
        const Real share = operand(m.factors[last][n] * u[n]);
        for (std::size_t i = 0; i < next.size(); ++i) next[i] += k[n][i] * share;
      }
      return next;
    };
    for (std::size_t i = 0; i < tokens; ++i) keep_state(i + 1, [&] { return state(i); });
    s = state(tokens - 1);
  }

  static Real dot(const Vector& a, const Vector& b) {
    Real sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }

  Real operand(Real value) const {
    return operands_ == DType::kFloat32 ? value : static_cast<Real>(rounded(value, operands_));
  }

  Vector key(const TensorView& line) const {
    Vector x;
    Real sum = 0;
    for (int64_t i = 0; i < line.shape[0]; ++i) {
      x.push_back(static_cast<Real>(number(line, {i})));
      sum += x.back() * x.back();
    }
    if (!f_.l2norm) return x;
    const Real factor = Real(1) / std::sqrt(sum + static_cast<Real>(f_.eps));
    for (Real& value : x) value = operand(value * factor);
    return x;
  }

  Real decay(int64_t row, int64_t t, int64_t head) const {
    using Kind = gdn::Gate::Kind;
    if (f_.gate.kind == Kind::kNone) return 1;
    const auto value = static_cast<Real>(number(token(f_, f_.gate.value, row, t), {head}));
    if (f_.gate.kind == Kind::kLinear) return value;
    if (f_.gate.kind == Kind::kLog) return std::exp(value);
    const auto rate = std::exp(static_cast<Real>(number(f_.gate.A_log, {head})));
    const Real x = value + static_cast<Real>(number(f_.gate.dt_bias, {head}));
    const Real softplus = x > Real(20) ? x : std::log1p(std::exp(x));
    return std::exp(-rate * softplus);
  }

  Real strength(int64_t row, int64_t t, int64_t head) const {
    using Kind = gdn::Beta::Kind;
    if (f_.beta.kind == Kind::kNone) return 1;
    const auto value = static_cast<Real>(number(token(f_, f_.beta.value, row, t), {head}));
    return f_.beta.kind == Kind::kProbability ? value : Real(1) / (Real(1) + std::exp(-value));
  }

  void keep(int64_t row, int64_t head, int64_t j, int64_t count, int64_t length, const Vector& s) {
    for (const Form::Target& target : f_.targets(row, count, length)) {
      if (target.slot < 0 || target.slot >= target.pool.shape[0]) continue;
      const TensorView line = matrix(f_, target.pool, target.slot, head).select(0, j);
      for (std::size_t i = 0; i < s.size(); ++i) {
        store_element(line, static_cast<int64_t>(i) * line.strides[0], static_cast<double>(s[i]));
      }
    }
  }

  void store_output(int64_t row, int64_t t, int64_t head, Vector& o) const {
    if (f_.norm.z.present()) {
      Real sum = 0;
      for (Real value : o) sum += value * value;
      const Real mean = sum / static_cast<Real>(o.size());
      const Real factor = Real(1) / std::sqrt(mean + static_cast<Real>(f_.norm.eps));
      const TensorView z = token(f_, f_.norm.z, row, t).select(0, head);
      for (std::size_t j = 0; j < o.size(); ++j) {
        const auto dim = static_cast<int64_t>(j);
        const auto x = static_cast<Real>(number(z, {dim}));
        const Real sigmoid = Real(1) / (Real(1) + std::exp(-x));
        const Real gate = f_.norm.gate == norm::Activation::kSilu ? x * sigmoid : sigmoid;
        o[j] *= factor * static_cast<Real>(number(f_.norm.weight, {dim})) * gate;
      }
    }
    const TensorView line = token(f_, f_.out, row, t).select(0, head);
    for (std::size_t j = 0; j < o.size(); ++j) {
      store_element(line, static_cast<int64_t>(j) * line.strides[0], static_cast<double>(o[j]));
    }
  }

  static constexpr std::size_t kChunk = 64;

  const Form& f_;
  DType operands_;
  bool chunked_;
};

void walk(const Form& form, const NaiveOptions& options) {
  if (options.float64) {
    Walker<double>(form, options).run();
  } else {
    Walker<float>(form, options).run();
  }
}

template <class P>
Form common(const P& p) {
  Form f;
  f.gate = p.gate;
  f.beta = p.beta;
  f.initial = p.state;
  f.read_slots = p.read_slots;
  f.read_columns = p.read_columns;
  f.first_slot = p.first_slot;
  f.layout = p.layout;
  f.scale = p.scale;
  f.l2norm = p.l2norm;
  f.eps = p.l2norm_eps;
  return f;
}

template <class P>
void take_sequences(Form& f, const P& p) {
  f.ragged = true;
  f.cu_seqlens = p.cu_seqlens;
  f.starts = p.starts;
  f.lengths = p.lengths;
  f.rows = p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : p.starts.shape[0];
}

int64_t or_null(int64_t slot, int64_t first_slot) { return slot < first_slot ? -1 : slot; }

}  // namespace

void naive_decode(const gdn::DecodeParams& p, const NaiveOptions& options) {
  Form f = common(p);
  const auto rows = [&](const TensorView& x, int rank) {
    return x.present() && x.rank == rank ? x.split(0, 1) : x;
  };
  f.q = rows(p.q, 3);
  f.k = rows(p.k, 3);
  f.v = rows(p.v, 3);
  f.out = rows(p.out, 3);
  f.gate.value = rows(p.gate.value, 2);
  f.beta.value = rows(p.beta.value, 2);
  f.norm = p.norm;
  f.norm.z = rows(p.norm.z, 3);
  f.rows = p.q.shape[0];
  f.tokens = 1;
  f.targets = [&](int64_t row, int64_t count, int64_t) {
    std::vector<Form::Target> result;
    if (count == 1) {
      result.push_back({p.state, or_null(write_slot(f, p.write_slots, row), p.first_slot)});
    }
    return result;
  };
  walk(f, options);
}

void naive_mtp(const gdn::MtpParams& p, const NaiveOptions& options) {
  Form f = common(p);
  f.q = p.q;
  f.k = p.k;
  f.v = p.v;
  f.out = p.out;
  f.norm = p.norm;
  if (p.cu_seqlens.present() || p.starts.present()) {
    take_sequences(f, p);
  } else {
    f.rows = p.q.shape[0];
    f.tokens = p.q.shape[1];
  }
  const bool writes_final = p.step_slots.present() ? p.write_slots.present() : *p.update_state;
  f.targets = [&, writes_final](int64_t row, int64_t count, int64_t length) {
    std::vector<Form::Target> result;
    if (count > 0 && p.states_out.present()) {
      result.push_back({p.states_out.select(0, row), count - 1});
    }
    if (count > 0 && p.step_slots.present()) {
      result.push_back({p.state, or_null(integer(p.step_slots, {row, count - 1}), p.first_slot)});
    }
    const int64_t commit = p.commit_lengths.present() ? integer(p.commit_lengths, {row}) : length;
    if (writes_final && count == commit) {
      result.push_back({p.state, or_null(write_slot(f, p.write_slots, row), p.first_slot)});
    }
    return result;
  };
  walk(f, options);
}

void naive_prefill(const gdn::PrefillParams& p, const NaiveOptions& options) {
  Form f = common(p);
  f.q = p.q;
  f.k = p.k;
  f.v = p.v;
  f.out = p.out;
  f.has_initial_state = p.has_initial_state;
  take_sequences(f, p);
  const TensorView final = p.state_out.present() ? p.state_out : p.state;
  f.targets = [&, final](int64_t row, int64_t count, int64_t length) {
    std::vector<Form::Target> result;
    int64_t checkpoint = -1;  // the how many-th of this row
    if (p.checkpoint_every > 0 && count > 0 && count % p.checkpoint_every == 0) {
      checkpoint = count / p.checkpoint_every - 1;
    }
    if (p.checkpoint_offsets.present()) {
      for (int64_t i = 0; i < p.checkpoint_offsets.shape[1]; ++i) {
        const int64_t at = integer(p.checkpoint_offsets, {row, i});
        if (at < 0) break;
        if (at == count) checkpoint = i;
      }
    }
    if (checkpoint >= 0 && p.checkpoints.present()) {
      result.push_back({p.checkpoints, integer(p.checkpoint_starts, {row}) + checkpoint});
    } else if (checkpoint >= 0) {
      result.push_back(
          {final, or_null(integer(p.checkpoint_slots, {row, checkpoint}), p.first_slot)});
    }
    if (count == length && p.update_state && final.present()) {
      result.push_back({final, or_null(write_slot(f, p.write_slots, row), p.first_slot)});
    }
    return result;
  };
  walk(f, options);
}

void naive_recurrence(const gdn::RecurrenceParams& p, const NaiveOptions& options) {
  Form f = common(p);
  const int64_t keys = p.key_heads * p.key_dim, values = p.value_heads * p.value_dim;
  f.q = p.qkv.slice(1, 0, keys).split(1, p.key_dim);
  f.k = p.qkv.slice(1, keys, keys).split(1, p.key_dim);
  f.v = p.qkv.slice(1, 2 * keys, values).split(1, p.value_dim);
  f.out = p.out.split(1, p.value_dim);
  take_sequences(f, p);
  f.targets = [&](int64_t row, int64_t count, int64_t length) {
    std::vector<Form::Target> result;
    if (count == length) {
      result.push_back({p.state, or_null(write_slot(f, p.write_slots, row), p.first_slot)});
    }
    return result;
  };
  walk(f, options);
}

}  // namespace hyla::testing

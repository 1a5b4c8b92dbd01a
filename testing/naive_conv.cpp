#include <cmath>

#include "testing/naive.h"

namespace hyla::testing {
namespace {

using std::int64_t;

// One channel of one row as a function of time: negative times lie in the window of the past.
struct Channel {
  TensorView past;  // [L] of the slot that is read; absent: zeros
  int64_t end = 0;  // column after the newest input of the past
  std::vector<double> tokens;

  double at(int64_t time) const {
    if (time >= 0) return tokens[static_cast<std::size_t>(time)];
    return past.present() && end + time >= 0 ? number(past, {end + time}) : 0.0;
  }
};

template <class P>
class Convolver {
 public:
  Convolver(const P& p, bool ragged) : p_(p), ragged_(ragged), W_(p.weight.shape[1]) {}

  // finish(row, channel index, history, tokens)
  template <class Finish>
  void run(bool float64, Finish&& finish) {
    const int64_t rows = ragged_ ? naive_rows(p_) : p_.x.shape[0];
    for (int64_t row = 0; row < rows; ++row) {
      if (p_.state.present() && naive_read_slot(p_, row) < p_.first_slot) continue;
      for (int64_t c = 0; c < p_.weight.shape[0]; ++c) {
        const Channel channel = history(row, c);
        const TensorView out = line(p_.out, row, c);
        for (int64_t t = 0; t < out.shape[0]; ++t) {
          put(out, {t}, float64 ? value<double>(channel, c, t) : value<float>(channel, c, t));
        }
        finish(row, c, channel, out.shape[0]);
      }
    }
  }

 private:
  // [T] of one row and channel.
  TensorView line(const TensorView& x, int64_t row, int64_t c) const {
    if (ragged_) return x.slice(0, naive_begin(p_, row), naive_length(p_, row)).select(1, c);
    return x.rank == 2 ? x.slice(0, row, 1).select(1, c) : x.select(0, row).select(1, c);
  }

  Channel history(int64_t row, int64_t c) const {
    Channel channel;
    const TensorView tokens = line(p_.x, row, c);
    for (int64_t t = 0; t < tokens.shape[0]; ++t) channel.tokens.push_back(number(tokens, {t}));
    bool fresh = !p_.state.present();
    if constexpr (requires { p_.has_initial_state; }) {
      fresh = fresh || (p_.has_initial_state.present() && !integer(p_.has_initial_state, {row}));
    }
    if (fresh) return channel;
    channel.past = p_.state.select(0, naive_read_slot(p_, row)).select(0, c);
    channel.end = channel.past.shape[0];
    if (p_.window_offsets.present()) {
      const int64_t last = channel.end - (W_ - 1);
      channel.end =
          std::min(std::max<int64_t>(integer(p_.window_offsets, {row}), 0), last) + W_ - 1;
    }
    return channel;
  }

  template <class Real>
  double value(const Channel& channel, int64_t c, int64_t t) const {
    Real sum = 0;
    for (int64_t j = W_ - 1; j >= 0; --j) {
      sum += static_cast<Real>(number(p_.weight, {c, j})) *
             static_cast<Real>(channel.at(t - (W_ - 1) + j));
    }
    if (p_.bias.present()) sum += static_cast<Real>(number(p_.bias, {c}));
    if (p_.activation == conv::Activation::kNone) return static_cast<double>(sum);
    return static_cast<double>(sum / (Real(1) + std::exp(-sum)));
  }

  const P& p_;
  bool ragged_;
  int64_t W_;
};

// Columns [0, count) of a slot become the inputs from time `first` on. All are read before any is
// written: the slot may be the one of the past.
template <class P>
void leave(const P& p, int64_t slot, int64_t c, const Channel& channel, int64_t first,
           int64_t count) {
  if (slot < p.first_slot || slot >= p.state.shape[0]) return;
  std::vector<double> kept;
  for (int64_t i = 0; i < count; ++i) kept.push_back(channel.at(first + i));
  for (int64_t i = 0; i < count; ++i) put(p.state, {slot, c, i}, kept[static_cast<std::size_t>(i)]);
}

template <class P>
int64_t write_slot(const P& p, int64_t row) {
  return p.write_slots.present() ? integer(p.write_slots, {row}) : naive_read_slot(p, row);
}

}  // namespace

void naive_conv_prefill(const conv::PrefillParams& p, const NaiveOptions& options) {
  const int64_t W = p.weight.shape[1];
  const bool ragged = p.x.rank == 2;
  Convolver<conv::PrefillParams>(p, ragged).run(
      options.float64, [&](int64_t row, int64_t c, const Channel& channel, int64_t tokens) {
        if (!p.state.present()) return;
        const int64_t columns = p.window_offsets.present() ? W - 1 : p.state.shape[2];
        if (p.checkpoint_offsets.present()) {
          for (int64_t i = 0; i < p.checkpoint_offsets.shape[1]; ++i) {
            const int64_t at = integer(p.checkpoint_offsets, {row, i});
            if (at < 0) break;
            leave(p, integer(p.checkpoint_slots, {row, i}), c, channel, at - columns, columns);
          }
        }
        leave(p, write_slot(p, row), c, channel, tokens - columns, columns);
      });
}

void naive_conv_update(const conv::UpdateParams& p, const NaiveOptions& options) {
  const int64_t W = p.weight.shape[1];
  const bool ragged = p.cu_seqlens.present() || p.starts.present();
  Convolver<conv::UpdateParams>(p, ragged).run(
      options.float64, [&](int64_t row, int64_t c, Channel channel, int64_t tokens) {
        const int64_t L = p.state.shape[2], slot = write_slot(p, row);
        if (!p.window_offsets.present()) {
          const int64_t kept =
              p.commit_lengths.present() ? integer(p.commit_lengths, {row}) : tokens;
          leave(p, slot, c, channel, kept - L, L);
        } else if (tokens == 0) {
          channel.end = L;
          leave(p, slot, c, channel, -L, L);
        } else {
          // The window after one token starts at column 0, after two at column 1, ...
          leave(p, slot, c, channel, 1 - (W - 1), W - 2 + tokens);
        }
      });
}

namespace {

template <class Real>
void gated_rms(const norm::GatedRmsParams& p) {
  const int last = p.x.rank - 1;
  const int64_t D = p.x.shape[last];
  const int64_t tokens = p.x.rank == 3 ? p.x.shape[0] : 1, heads = p.x.shape[last - 1];
  for (int64_t n = 0; n < tokens * heads; ++n) {
    const auto line = [&](const TensorView& view) {
      return view.rank == 3 ? view.select(0, n / heads).select(0, n % heads) : view.select(0, n);
    };
    const TensorView x = line(p.x), z = line(p.z), out = line(p.out);
    Real sum = 0;
    for (int64_t i = D - 1; i >= 0; --i) {
      const auto value = static_cast<Real>(number(x, {i}));
      sum += value * value;
    }
    const Real root = std::sqrt(sum / static_cast<Real>(D) + static_cast<Real>(p.eps));
    for (int64_t i = 0; i < D; ++i) {
      const auto gate = static_cast<Real>(number(z, {i}));
      const Real sigmoid = Real(1) / (Real(1) + std::exp(-gate));
      const Real scaled =
          static_cast<Real>(number(x, {i})) / root * static_cast<Real>(number(p.weight, {i}));
      put(out, {i},
          static_cast<double>(scaled *
                              (p.gate == norm::Activation::kSilu ? gate * sigmoid : sigmoid)));
    }
  }
}

}  // namespace

void naive_gated_rms(const norm::GatedRmsParams& p, const NaiveOptions& options) {
  if (options.float64) {
    gated_rms<double>(p);
  } else {
    gated_rms<float>(p);
  }
}

}  // namespace hyla::testing

#include "ops/attention/expected.h"

#include <algorithm>
#include <cmath>

#include "device/launch.h"
#include "ops/attention/padded_dim.h"
#include "ops/attention_prefill/launch_prefill.h"
#include "ops/attention_prefill/widened_room.h"

namespace hyla::attention {
namespace {

// Every constant for heads of 256, 128 and 64 values.
using Fit = double[3];

int place(int dim) { return dim == 256 ? 0 : dim == 128 ? 1 : 2; }

// The prefill kernel: a CTA an SM, and a key of a tile of a prompt (`tile`) or of a row of few
// queries (`light`).
struct TileFit {
  Fit whole, cut, tile, light, row;
};
constexpr TileFit kTiles = {{6.2, 7.3, 7.9},
                            {20.6, 18.3, 18.5},
                            {0.0192, 0.0155, 0.0101},
                            {0.0249, 0.0148, 0.0105},
                            {0.14, 0.14, 0.18}};
constexpr TileFit kByteTiles = {{8.7, 6.9, 8.5},
                                {22.3, 17.1, 19.0},
                                {0.0359, 0.0325, 0.0214},
                                {0.0567, 0.0239, 0.0165},
                                {0.04, 0.44, 0.18}};
constexpr TileFit kWidened = {{23.7, 19.5, 20.1},
                              {35.2, 31.4, 29.8},
                              {0.0227, 0.0183, 0.0119},
                              {0.108, 0.0258, 0.0107},
                              {0, 0.47, 1.18}};
constexpr Fit kSecondLaunch = {21.7, 14.2, 17.6};  // rows that are not widened

// The decode kernel: two CTAs an SM, a key of a chunk, and what it reads.
struct ChunkFit {
  Fit begin, chunk, once;
};
constexpr ChunkFit kChunks = {{33.0, 19.2, 13.8}, {0.0447, 0.0225, 0.0176}, {0.99, 1.05, 1.10}};
constexpr double kFewRows = 20, kFewRowsCost = 4;  // rows times heads

// One behind the other.
struct BothFit {
  Fit begin, tile, once;
};
constexpr BothFit kBoth = {{54.2, 38.3, 25.2}, {0.0162, 0.0131, 0.0111}, {1.16, 1.05, 1.73}};
constexpr BothFit kByteBoth = {{37.6, 34.2, 22.1}, {0.0353, 0.0305, 0.0184}, {1.71, 1.40, 3.58}};
constexpr BothFit kWidenedBoth = {{58.3, 46.5, 31.4}, {0.0216, 0.0223, 0.0105}, {1.53, 1.35, 4.04}};

struct Work {
  double heavy, light;  // items: tiles of prompts, rows of few queries
  double key_tile;

  Work(const ExpectedMixture& m, bool in_loader)
      : heavy(m.heads * (m.tokens - m.rows) * m.group / (m.dim == 256 ? 128 : 192)),
        light(m.heads * m.rows),
        key_tile(in_loader     ? 64
                 : m.dim == 64 ? 128
                               : 80) {}

  bool cut(const ExpectedMixture& m, double items) const {
    return m.whole && 2 * items <= m.processors && m.keys >= 2 * kLeastPieceTiles * key_tile;
  }
  double piece(double tile) const { return kLeastPieceTiles * key_tile * tile; }
};

double by_tiles_of(const ExpectedMixture& m, const TileFit& fit, bool in_loader) {
  const int i = place(m.dim);
  const Work work(m, in_loader);
  const double items = work.heavy + work.light;
  const double all = m.keys * (work.heavy * fit.tile[i] + work.light * fit.light[i]);
  if (work.cut(m, std::max(work.heavy, work.light))) {
    return fit.cut[i] + std::max(work.piece(fit.tile[i]), all / m.processors) + fit.row[i] * m.rows;
  }
  const double waves = std::ceil(items / m.processors);
  return fit.whole[i] + std::max(m.keys * fit.tile[i], all / items * waves) + fit.row[i] * m.rows;
}

double by_both_of(const ExpectedMixture& m, const BothFit& fit, bool in_loader) {
  const int i = place(m.dim);
  const Work work(m, in_loader);
  const double bytes = (m.bytes ? 2.0 : 4.0) * m.dim;  // of a key and its value
  const double once = m.rows * m.heads * m.keys * bytes / 4.2e6;
  const double longest = m.keys * fit.tile[i], waves = work.heavy / m.processors;
  const double prompts = work.cut(m, work.heavy)
                             ? std::max(work.piece(fit.tile[i]), longest * waves)
                             : longest * std::max(1.0, std::ceil(waves));
  return fit.begin[i] + prompts + fit.once[i] * once;
}

}  // namespace

ExpectedMixture expected_mixture(const RunProblem& problem, const Context& context) {
  const Queries& q = problem.queries;
  std::int64_t keys = most_keys(problem.cache);
  if (q.mask.window > 0) keys = std::min(keys, q.mask.window);
  if (q.mask.chunk > 0) keys = std::min(keys, q.mask.chunk);
  ExpectedMixture m;
  m.keys = static_cast<double>(keys);
  m.rows = static_cast<double>(std::max<std::int64_t>(std::min(q.rows, q.q.shape[0]), 1));
  m.tokens = std::max(static_cast<double>(q.q.shape[0]), m.rows);
  m.heads = static_cast<double>(q.kv_heads);
  m.group = static_cast<double>(q.query_heads / q.kv_heads);
  m.dim = padded_dim(std::max(q.head_dim, q.value_dim));
  m.bytes = size_of(problem.cache.k.dtype) == 1;
  m.whole = q.mask.window == 0 && q.mask.chunk == 0;
  m.processors = device::multiprocessors(context);
  return m;
}

double ExpectedMixture::by_tiles() const {
  return by_tiles_of(*this, bytes ? kByteTiles : kTiles, bytes);
}

double ExpectedMixture::by_widened() const {
  const int i = place(dim);
  if (tokens * group >= kWidenedQueries * rows) {  // all of them
    ExpectedMixture prompts = *this;
    prompts.rows = 0;
    return by_tiles_of(prompts, kWidened, false) + kWidened.row[i] * rows;
  }
  const Work work(*this, false);
  const double all = work.heavy * kWidened.tile[i] + work.light * kWidened.light[i];
  return kWidened.whole[i] + kSecondLaunch[i] + kWidened.row[i] * rows +
         keys * std::max(kWidened.tile[i], all / processors);
}

double ExpectedMixture::by_chunks() const {
  const int i = place(dim);
  const double once = rows * heads * keys * 4 * dim / 4.2e6;  // to read keys and values
  const double chunks = heads * (tokens * group / 64 + rows);
  return kChunks.begin[i] + (rows * heads < kFewRows ? kFewRowsCost : 0) +
         std::max(kChunks.chunk[i] * chunks * keys / (2 * processors), kChunks.once[i] * once);
}

bool ExpectedMixture::both_widen() const {
  return bytes && tokens * group >= kWidenedQueries &&
         by_both_of(*this, kWidenedBoth, false) < by_both_of(*this, kByteBoth, true);
}

double ExpectedMixture::by_both() const {
  if (!bytes) return by_both_of(*this, kBoth, false);
  return both_widen() ? by_both_of(*this, kWidenedBoth, false) : by_both_of(*this, kByteBoth, true);
}

}  // namespace hyla::attention

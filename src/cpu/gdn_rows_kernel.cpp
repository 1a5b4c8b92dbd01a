#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/gdn_rows.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/gdn_rows_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/gdn_epilogue.h"
#include "cpu/gdn_gates.h"
#include "cpu/gdn_pool.h"
#include "cpu/gdn_rows_of_k.h"
#include "cpu/gdn_rows_of_v.h"
#include "cpu/gdn_together_by_tiles.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Groups of value rows that are fetched ahead: by one token, whose work is short, and by tokens that
// go together.
constexpr std::int64_t kAheadOfOne = 4, kAheadOfFew = 5;

// Tokens of a row as the last head saw them: the next head often has the same q and k.
struct RowTokens {
  alignas(64) float q[kTokenBlock][kMaxDim], k[kTokenBlock][kMaxDim];
  Token tokens[kTokenBlock];
  TokenProducts products;
  KeyTiles tiles;
  std::int64_t row = -1, first = 0, q_head = 0, k_head = 0;
  bool multiplied = false;

  void load(const gdn::Problem& p, std::int64_t for_row, std::int64_t token, std::int64_t count,
            std::int64_t head) {
    const std::int64_t for_q = head / (p.heads / p.q_heads), for_k = head / (p.heads / p.k_heads);
    const bool here = row == for_row && first == token;
    const bool known = here && q_head == for_q && k_head == for_k;
    row = for_row, first = token, q_head = for_q, k_head = for_k;
    if (!here || head < gates_from_ || head >= gates_from_ + kLanes) load_gates(p, count, head);
    if (!known) multiplied = false;
    for (std::int64_t i = 0; i < count; ++i) {
      if (!known) tokens[i] = load_token(p, row, token + i, q_head, k_head, q[i], k[i]);
      tokens[i].alpha = alpha_[i][head - gates_from_];
      tokens[i].beta = beta_[i][head - gates_from_];
    }
  }

  // Their products with each other. From here on keys are as Way wants them for states of S.
  template <class Way, class S>
  const TokenProducts& multiply(std::int64_t count, std::int64_t K) {
    if (multiplied) return products;
    const std::int64_t width = padded(K);
    for (std::int64_t t = count; t < (count + 3) / 4 * 4; ++t) {
      std::fill_n(q[t], width, 0.0f);
      std::fill_n(k[t], width, 0.0f);
    }
    products.make(q, k, count, width);
    if (Way::template arranges_keys<S>(K)) {
      arrange_floats<S>(q, count, K);
      arrange_floats<S>(k, count, K);
    }
    if constexpr (Way::kTiles) Way::make_tiles(tokens, count, tiles);
    if (LineOf<S>::kArranged) clean_floats<S>(k, count, width);
    multiplied = true;
    return products;
  }

 private:
  void load_gates(const gdn::Problem& p, std::int64_t count, std::int64_t head) {
    gates_from_ = head;
    const int heads = static_cast<int>(std::min<std::int64_t>(kLanes, p.heads - head));
    for (std::int64_t i = 0; i < count; ++i) {
      const GateLanes lanes{row, first + i, head, 0, 1, heads};
      store(alphas_of(p.gate, lanes), alpha_[i]);
      store(betas_of(p.beta, lanes), beta_[i]);
    }
  }

  // Gates of kLanes heads.
  std::int64_t gates_from_ = 0;
  alignas(64) float alpha_[kTokenBlock][kLanes], beta_[kTokenBlock][kLanes];
};

// The heads whose turn comes next, as row * heads + head: what they need is asked for ahead of
// time. Functions that do nothing else must be inlined: a compiler drops calls without a result.
template <class S>
struct HeadsAhead {
  const gdn::MtpProblem& p;
  std::int64_t end;  // of this thread's heads
  const RowsPlan& plan;
  std::int64_t known = 0;  // the first one whose pages of memory were not asked for

  bool has(std::int64_t index) const {
    return index < end && p.slots.read_slot(index / p.heads) != core::kNullSlot;
  }
  const S* state(std::int64_t index) const {
    return pool_at<S>(p.initial, p.slots.read_slot(index / p.heads), index % p.heads);
  }

  // Pages of some heads together, see prefetch_pages.
  HYLA_INLINE void ask_pages(std::int64_t index) {
    if (!plan.pages || index < known) return;
    const std::int64_t bytes = p.K * p.V * static_cast<std::int64_t>(sizeof(S));
    known = std::min(end, index + std::max<std::int64_t>(1, kPageBytes / bytes));
    for (; index < known; ++index) {
      if (has(index)) prefetch_pages(state(index), p.K * p.V);
    }
  }

  // q, k and v that the head before does not have, and room for its outputs: stores of states
  // would wait behind those.
  HYLA_INLINE void ask_tokens(std::int64_t index) const {
    if (!plan.far || !has(index)) return;
    const std::int64_t row = index / p.heads, head = index % p.heads;
    const std::int64_t of_q = p.heads / p.q_heads, of_k = p.heads / p.k_heads;
    const std::int64_t begin = p.sequences.begin(row);
    const std::int64_t count = std::min(kTokenBlock, p.sequences.length(row));
    for (std::int64_t t = begin; t < begin + count; ++t) {
      ask(p.v, p.v.offset(row, t, head / (p.heads / p.v_heads)), p.V);
      ask<true>(p.out, p.out.offset(row, t, head), p.V);
      if (head % of_q == 0) ask(p.q, p.q.offset(row, t, head / of_q), p.K);
      if (head % of_k == 0) ask(p.k, p.k.offset(row, t, head / of_k), p.K);
      if (head == 0 && p.gate.value.present()) {
        ask(p.gate.value, p.gate.value.offset(row, t, 0), p.heads);
      }
    }
  }

 private:
  static constexpr std::int64_t kPageBytes = 256 << 10;

  template <bool kWritten = false>
  static HYLA_INLINE void ask(const core::TokenView& view, std::int64_t offset,
                              std::int64_t count) {
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    const char* at = static_cast<const char*>(view.data) + offset * size;
    for (std::int64_t i = 0; i < count * size; i += 64) __builtin_prefetch(at + i, kWritten, 2);
  }
};

// One head of one row, value rows v0 to v1, over a pool of S.
template <class Layout, class S>
struct HeadWalk {
  const gdn::MtpProblem& p;
  std::int64_t row, head, v0, v1;
  float* scratch;
  const RowsPlan& plan;
  HeadsAhead<S>& ahead;

  const S* read() const { return pool_at<S>(p.initial, p.slots.read_slot(row), head); }
  std::int64_t commit() const {
    return p.commit_lengths.present() ? p.commit_lengths.at(row) : p.sequences.length(row);
  }
  std::int64_t final_slot() const {
    return p.update_state ? p.slots.write_slot(row) : core::kNullSlot;
  }

  // Where a group of value rows begins, and how far its lines are apart.
  static std::int64_t line_stride(const gdn::PoolView& pool) {
    return Layout::inner(1, 0) == 1 ? pool.v_stride : pool.k_stride;
  }

  void run(RowTokens& known) const {
    alignas(64) float v[kTokenBlock][kMaxDim], o[kTokenBlock][kMaxDim];
    const Token* tokens = known.tokens;
    const std::int64_t length = p.sequences.length(row), begin = p.sequences.begin(row);
    const std::int64_t v_head = head / (p.heads / p.v_heads);
    if (length == 0) return copy_through();
    const bool faster = !plan.one_way && !p.states_out.present() && !p.step_slots.present();
    ahead.ask_pages(next());
    for (std::int64_t t = 0; t < length; t += kTokenBlock) {
      const std::int64_t count = std::min(kTokenBlock, length - t);
      known.load(p, row, begin + t, count, head);
      for (std::int64_t i = 0; i < count; ++i) {
        load_values(p.v, p.v.offset(row, begin + t + i, v_head, v0), v1 - v0, v[i]);
      }
      if (faster && length == 1 && commit() == 1) {
        in_place(tokens[0], v[0], o[0]);
      } else if (faster && length >= kTogether && length <= kTokenBlock &&
                 Together::takes(known.k, commit(), length, p.K)) {
        few(known, read(), length, commit(), v, o);
      } else if (faster && length > kTokenBlock && final_holds_floats()) {
        const S* from = t == 0 ? read() : pool_at<S>(p.final, final_slot(), head);
        few(known, from, count, count, v, o);
      } else {
        block(tokens, t, count, length, v, o);
      }
      for (std::int64_t i = 0; i < count; ++i) {
        if (p.norm.present()) gated_norm(p.norm, row, begin + t + i, head, p.V, o[i]);
        store_values(p.out, p.out.offset(row, begin + t + i, head, v0), v1 - v0, o[i]);
      }
    }
  }

  // Whether the final state's place may hold those between blocks of tokens, which are floats.
  bool final_holds_floats() const {
    return std::is_same_v<S, float> && final_slot() != core::kNullSlot &&
           commit() == p.sequences.length(row);
  }

  std::int64_t next() const { return row * p.heads + head + 1; }

  // The value row to fetch while the one so many before it is worked on; past the last one, those
  // of the next head.
  const S* fetched(std::int64_t j) const {
    if (j < p.V) return read() + j * p.initial.v_stride;
    return (ahead.has(next()) ? ahead.state(next()) : read()) + (j - p.V) * p.initial.v_stride;
  }

  // One token, from the pool to the pool.
  void in_place(const Token& token, const float* v, float* o) const {
    const S* from = read();
    const std::int64_t slot = final_slot(), stride = line_stride(p.initial);
    S* to = slot == core::kNullSlot ? nullptr : pool_at<S>(p.final, slot, head);
    const std::int64_t first = v0 * p.initial.v_stride;
    if (Layout::rows_in_place(token, p.K, v1 - v0, from + first, to == nullptr ? to : to + first,
                              stride, fetched(v1), plan, v, o)) {
      return;
    }
    for (std::int64_t j = v0; j < v1; j += Layout::kGroup) {
      const std::int64_t offset = j * p.initial.v_stride;
      Layout::step(token, p.K, std::min(Layout::kGroup, v1 - j), from + offset, stride,
                   to == nullptr ? to : to + offset, stride,
                   fetched(j + kAheadOfOne * Layout::kGroup), v + j - v0, o + j - v0);
    }
  }

  void few(RowTokens& known, const S* from, std::int64_t count, std::int64_t committed,
           float (*v)[kMaxDim], float (*o)[kMaxDim]) const {
#if HYLA_TARGET_HAS_PAIRS
    if constexpr (std::is_same_v<S, bfloat16> && std::is_same_v<Layout, RowsOfK>) {
      if (plan.tiles) return at_once<TogetherByTiles>(known, from, count, committed, v, o);
    }
#endif
    at_once<typename Layout::Together>(known, from, count, committed, v, o);
  }

  // At most kTokenBlock tokens, from a pool to a pool. A group is updated after the next one's
  // products are made, so that neither these nor the solve are waited for.
  template <class Way>
  void at_once(RowTokens& known, const S* from, std::int64_t tokens, std::int64_t committed,
               float (*v)[kMaxDim], float (*o)[kMaxDim]) const {
    const TokenProducts& products = known.multiply<Way, S>(tokens, p.K);
    const Together t(known.tokens, tokens, committed, products, known.q, known.k);
    const std::int64_t slot = final_slot(), stride = line_stride(p.initial);
    S* to = slot == core::kNullSlot ? nullptr : pool_at<S>(p.final, slot, head);
    TogetherGroup<Way, S> groups[2];
    int now = 0;
    ahead.ask_tokens(next());
    if (Way::template arranges_values<S>()) arrange_floats<S>(v, tokens, v1 - v0);
    if constexpr (Way::kTiles) Way::begin(known.tiles);
    make_products<Way>(t, from, v0, groups[now]);
    for (std::int64_t j = v0; j < v1; j += Way::kGroup, now = 1 - now) {
      TogetherGroup<Way, S>& group = groups[now];
      const std::int64_t offset = j * p.initial.v_stride, count = std::min(Way::kGroup, v1 - j);
      if constexpr (Way::kTiles) Way::finish_products(t, group.kept, group.ks, group.qs);
      t.solve<S>(Way::template arranges_values<S>() ? Way::kGroup : count, Way::kGroup, group.ks,
                 group.qs, v, o, tokens, j - v0);
      if (j + Way::kGroup < v1) {
        make_products<Way>(t, from, j + Way::kGroup, groups[1 - now]);
      } else if constexpr (Way::kTiles) {
        Way::stay_awake();
      }
      if (to != nullptr) {
        Way::update(t, p.K, count, from + offset, group.kept, to + offset, stride, group.ks,
                    {fetched(j + 2 * Way::kGroup), plan.far ? fetched(j + p.V) : nullptr});
      }
    }
    if constexpr (Way::kTiles) Way::stay_awake();
    if (Way::template arranges_values<S>()) restore_floats<S>(o, tokens, v1 - v0);
  }
  template <class Way>
  void make_products(const Together& t, const S* from, std::int64_t j,
                     TogetherGroup<Way, S>& group) const {
    Way::all_products(t, p.K, std::min(Way::kGroup, v1 - j), from + j * p.initial.v_stride,
                      line_stride(p.initial), fetched_by_few<Way>(j), group.kept, group.ks,
                      group.qs);
  }
  // While the group at j is worked on. Where value rows do not lie one behind the other, a part of
  // the next head.
  template <class Way>
  const S* fetched_by_few(std::int64_t j) const {
    if (Layout::inner(1, 0) == 1) return fetched(j + kAheadOfFew * Way::kGroup);
    return fetched(p.V) + (j - v0) * p.K;
  }

  // Tokens t to t + count: a group of value rows goes through all of them as floats.
  void block(const Token* tokens, std::int64_t t, std::int64_t count, std::int64_t length,
             const float (*v)[kMaxDim], float (*o)[kMaxDim]) const {
    alignas(64) float group[Layout::kGroup * kMaxDim];
    const std::int64_t pool_stride = line_stride(p.initial);
    for (std::int64_t j = v0; j < v1; j += Layout::kGroup) {
      const std::int64_t n = std::min(Layout::kGroup, v1 - j);
      const std::int64_t inner = Layout::inner(p.K, n), outer = Layout::outer(p.K, n);
      float* kept = scratch == nullptr ? nullptr : scratch + (j - v0) * p.K;
      if (t == 0) {
        copy_lines(read() + j * p.initial.v_stride, pool_stride, group, inner, inner, outer);
        if (commit() == 0) keep_final(group, inner, outer, j);
      } else {
        std::memcpy(group, kept, static_cast<std::size_t>(inner * outer) * sizeof(float));
      }
      const S* later = fetched(j + Layout::kGroup);
      for (std::int64_t i = 0; i < count; ++i) {
        // The next group comes while this one is worked on, a part with every token.
        for (std::int64_t line = t > 0 ? outer : outer * i / count; line < outer * (i + 1) / count;
             ++line) {
          prefetch_line(later + line * pool_stride, inner);
        }
        Layout::step(tokens[i], p.K, n, group, inner, group, inner, group, v[i] + j - v0,
                     o[i] + j - v0);
        keep(t + i + 1, group, inner, outer, j);
      }
      if (t + count < length) {
        std::memcpy(kept, group, static_cast<std::size_t>(inner * outer) * sizeof(float));
      }
    }
  }

  // The state after `tokens` tokens goes to everyone who asked for it.
  void keep(std::int64_t tokens, const float* group, std::int64_t inner, std::int64_t outer,
            std::int64_t j) const {
    if (p.states_out.present()) {
      gdn::PoolView steps = p.states_out;
      const std::int64_t bytes =
          row * p.states_out_row_stride * static_cast<std::int64_t>(size_of(steps.dtype));
      steps.data = static_cast<char*>(steps.data) + bytes;
      store_lines(group, inner, outer, steps, (tokens - 1) * steps.slot_stride, j, plan.stream);
    }
    if (p.step_slots.present()) {
      const std::int64_t slot = p.slots.checked(p.step_slots.at(row, tokens - 1), p.final.slots);
      if (slot != core::kNullSlot) {
        store_lines(group, inner, outer, p.final, slot * p.final.slot_stride, j, plan.stream);
      }
    }
    if (tokens == commit()) keep_final(group, inner, outer, j);
  }

  void keep_final(const float* group, std::int64_t inner, std::int64_t outer,
                  std::int64_t j) const {
    const std::int64_t slot = final_slot();
    if (slot != core::kNullSlot) {
      store_lines(group, inner, outer, p.final, slot * p.final.slot_stride, j, false);
    }
  }

  void store_lines(const float* group, std::int64_t inner, std::int64_t outer,
                   const gdn::PoolView& pool, std::int64_t slot_offset, std::int64_t j,
                   bool past_caches) const {
    const std::int64_t offset = slot_offset + head * pool.head_stride + j * pool.v_stride;
    switch (pool.dtype) {
      case DType::kBFloat16:
        return store_group(group, inner, outer, static_cast<bfloat16*>(pool.data) + offset,
                           line_stride(pool), past_caches);
      case DType::kFloat16:
        return store_group(group, inner, outer, static_cast<float16*>(pool.data) + offset,
                           line_stride(pool), past_caches);
      default:
        return store_group(group, inner, outer, static_cast<float*>(pool.data) + offset,
                           line_stride(pool), past_caches);
    }
  }
  template <class To>
  static void store_group(const float* group, std::int64_t inner, std::int64_t outer, To* to,
                          std::int64_t stride, bool past_caches) {
    (past_caches ? stream_lines<To> : copy_lines<float, To>)(group, inner, to, stride, inner,
                                                             outer);
  }

  // No tokens: the state passes through to the write slot.
  void copy_through() const {
    const std::int64_t slot = final_slot();
    if (slot == core::kNullSlot || commit() != 0) return;
    alignas(64) float group[Layout::kGroup * kMaxDim];
    for (std::int64_t j = v0; j < v1; j += Layout::kGroup) {
      const std::int64_t n = std::min(Layout::kGroup, v1 - j);
      const std::int64_t inner = Layout::inner(p.K, n), outer = Layout::outer(p.K, n);
      copy_lines(read() + j * p.initial.v_stride, line_stride(p.initial), group, inner, inner,
                 outer);
      keep_final(group, inner, outer, j);
    }
  }
};

template <class Layout, class S>
void run_units(const gdn::MtpProblem& p, const RowsPlan& plan, Range units, float* scratch) {
  const std::int64_t width = p.V / plan.parts;
  RowTokens tokens;
  HeadsAhead<S> ahead{p, (units.end + plan.parts - 1) / plan.parts, plan};
  for (std::int64_t unit = units.begin; unit < units.end;) {
    const std::int64_t index = unit / plan.parts, part = unit % plan.parts;
    const std::int64_t last = std::min(plan.parts, part + units.end - unit);
    const std::int64_t row = index / p.heads;
    if (p.slots.read_slot(row) != core::kNullSlot && plan.takes(row)) {
      const HeadWalk<Layout, S> walk{
          p, row, index % p.heads, part * width, last * width, scratch, plan, ahead};
      walk.run(tokens);
    }
    unit += last - part;
  }
  if (plan.stream) flush_stream();
}

template <class Layout>
void run_dtype(const gdn::MtpProblem& p, const RowsPlan& plan, Range units, float* scratch) {
  switch (p.initial.dtype) {
    case DType::kBFloat16:
      return run_units<Layout, bfloat16>(p, plan, units, scratch);
    case DType::kFloat16:
      return run_units<Layout, float16>(p, plan, units, scratch);
    default:
      return run_units<Layout, float>(p, plan, units, scratch);
  }
}

void run_rows(const gdn::MtpProblem& p, const RowsPlan& plan, Range units, float* scratch) {
#if HYLA_TARGET_HAS_PAIRS
  if (plan.tiles) {
    const amx::Scope tiles;
    return run_units<RowsOfK, bfloat16>(p, plan, units, scratch);
  }
#endif
  if (p.initial.k_stride == 1) return run_dtype<RowsOfK>(p, plan, units, scratch);
  run_dtype<RowsOfV>(p, plan, units, scratch);
}

extern const RowsKernels kRowsKernels;
const RowsKernels kRowsKernels = {run_rows};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const RowsKernels& rows_kernels(Target target) { return HYLA_TARGET_SELECT(kRowsKernels); }
}  // namespace hyla::cpu
#endif

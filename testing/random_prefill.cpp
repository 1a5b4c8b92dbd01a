// Random calls of chunked prefill.
#include <algorithm>

#include "testing/random_gdn.h"

namespace hyla::testing {

using namespace detail;

namespace {

// Up to kListed counts of tokens a row: none, all, whole chunks and anything else.
constexpr std::int64_t kListed = 6;
std::vector<std::int64_t> listed_offsets(const CaseBuilder& builder, const Rows& rows) {
  const Random draw = builder.random("checkpoints");
  std::vector<std::int64_t> offsets;
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const std::int64_t length = rows.lengths[static_cast<std::size_t>(row)];
    std::int64_t count = 0, tokens = draw.below(2 * row, 2);
    for (std::int64_t i = 0; i < kListed; ++i) {
      const std::int64_t at = row * kListed + i;
      if (tokens > length && count > 0 && offsets.back() >= 0 && offsets.back() < length) {
        tokens = length;
      }
      const bool inside = tokens <= length;
      offsets.push_back(inside ? tokens : -1);
      count += inside ? 1 : 0;
      tokens += 1 + draw.below(at + (1 << 21), draw.chance(at + (1 << 22), 0.5) ? 20 : 150);
      if (draw.chance(at + (1 << 20), 0.4)) tokens = (tokens + 63) / 64 * 64;
    }
  }
  return offsets;
}

// Which states of a prefill are wanted, where they come from and where they go.
struct PrefillStates {
  CaseBuilder& builder;
  const Rows& rows;
  std::int64_t heads;
  // Of checkpoints; every row's counts, and room for the longest list.
  bool listed, in_slots;
  std::vector<std::int64_t> offsets, counts;
  std::int64_t columns = 0;
  bool from_zero, elsewhere;  // no pool of initial states; a pool of final ones of its own

  PrefillStates(CaseBuilder& b, const Rows& r, std::int64_t h) : builder(b), rows(r), heads(h) {
    const ProblemSpec& spec = builder.spec();
    elsewhere = builder.has("state_out", 0.25) || !spec.initial;
    from_zero = builder.has("no state", 0.15) || !spec.initial;
    in_slots = builder.has("checkpoint_slots", 0.5) && (elsewhere || !from_zero);
    listed = builder.options().extras;
    if (spec.checkpoint == 0) return;
    if (listed) offsets = listed_offsets(builder, rows);
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      counts.push_back(listed ? listed_count(row)
                              : rows.lengths[static_cast<std::size_t>(row)] / spec.checkpoint);
      columns = std::max(columns, counts.back());
    }
    if (listed) columns = kListed;
  }

  std::int64_t listed_count(std::int64_t row) const {
    const auto* list = offsets.data() + row * kListed;
    return std::find_if(list, list + kListed, [](std::int64_t at) { return at < 0; }) - list;
  }

  void set_pools(gdn::PrefillParams& p) {
    const ProblemSpec& spec = builder.spec();
    const std::int64_t extra = spec.checkpoint != 0 && in_slots ? rows.count() * columns : 0;
    if (!from_zero) p.state = random_pool(builder, rows, heads, elsewhere ? 0 : extra);
    if (elsewhere) {
      p.state_out = builder.output("state_out", builder.any_float("state_out", spec.state),
                                   state_dims(spec, {rows.pool + extra}, heads));
    }
    builder.set_slots(p, rows);
    p.update_state = !builder.has("update_state", 0.15);
    if (!p.update_state || (from_zero && !elsewhere)) p.write_slots = {};
    if (builder.options().fresh_rows && !from_zero) {
      p.has_initial_state = builder.fresh_rows(p.state, rows);
    }
  }

  void set_checkpoints(gdn::PrefillParams& p) {
    const ProblemSpec& spec = builder.spec();
    if (spec.checkpoint == 0) return;
    if (listed) {
      p.checkpoint_offsets =
          builder.indices("checkpoint_offsets", offsets, {rows.count(), kListed});
    } else {
      p.checkpoint_every = spec.checkpoint;
    }
    if (in_slots) {
      const auto count = [&](std::int64_t row) { return counts[static_cast<std::size_t>(row)]; };
      p.checkpoint_slots =
          builder.indices("checkpoint_slots", slots_on_the_way(builder, rows, columns, count),
                          {rows.count(), columns});
      return;
    }
    std::vector<std::int64_t> starts{0};
    for (std::int64_t count : counts) starts.push_back(starts.back() + count);
    p.checkpoint_starts = builder.indices("checkpoint_starts", starts);
    p.checkpoints = builder.output("checkpoints", builder.any_float("checkpoints", spec.state),
                                   state_dims(spec, {starts.back()}, heads));
  }
};

// As they are; with extras too short, right, too long or those of other rows, as no result depends
// on it.
TensorView told_lengths(CaseBuilder& builder, const Rows& rows) {
  std::vector<std::int64_t> lengths = rows.lengths;
  if (builder.options().extras) {
    const Random draw = builder.random("host_lengths");
    const std::int64_t kind = draw.below(0, 4);
    for (std::int64_t& length : lengths) length = kind == 3 ? length : length * (kind + 1) / 2;
    if (kind == 3) std::reverse(lengths.begin(), lengths.end());
  }
  return builder.indices("host_lengths", lengths);
}

}  // namespace

Call random_prefill(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::int64_t heads = std::max(spec.hq, spec.hv);
  gdn::PrefillParams p;
  const Rows rows = builder.rows(row_lengths(spec), true);
  TokenTensors tokens{builder, {rows.total}, heads, {}};
  tokens.set_qkv(p);
  tokens.set_gates(p.gate, p.beta);
  PrefillStates states(builder, rows, heads);
  states.set_pools(p);
  builder.set_sequences(p, rows);
  for (const std::int64_t length : rows.lengths) {
    if (spec.longest) p.max_length = std::max(p.max_length, length);
  }
  if (builder.options().extras) {  // unknown, too short, right or too long: no result depends on it
    p.max_length *= builder.random("max_length").below(0, 4);
    p.max_length /= 2;
  }
  if (spec.told) p.host_lengths = told_lengths(builder, rows);
  states.set_checkpoints(p);
  set_numbers(p, builder);
  // Far below the last bit of anything that is compared.
  if (builder.has("decay_cutoff_log2", 0.3)) p.decay_cutoff_log2 = 64;
  tokens.poison_unread(rows, true);
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing

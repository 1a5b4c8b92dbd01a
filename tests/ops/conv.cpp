// Random calls of both convolutions against a second formulation: the outputs as a product with a
// band matrix, the pool as a rule that says for every column where its value comes from.
#include <hyla/backend.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <type_traits>

#include "ops/support/guarded.h"

namespace hyla::tests {
namespace {

using conv::Activation;

struct Row {
  std::int64_t begin = 0, length = 0;
  bool padding = false;
  std::int64_t read = -1, write = -1;  // pool slots; -1: none
  bool from_pool = true;
  std::int64_t window = 0;  // first column
  std::int64_t commit = 0;
  std::vector<std::array<std::int64_t, 2>> checkpoints;  // token count, slot or -1
};

enum class Form { kSingle, kUniform, kOffsets, kStarts };

template <class Params>
struct Case {
  static constexpr bool kPrefill = std::is_same_v<Params, conv::PrefillParams>;

  Form form = Form::kUniform;
  std::int64_t C = 0, W = 0, L = 0, slots = 0, first_slot = 0;
  bool pool = true, at_offsets = false, in_place = false;
  std::vector<Row> rows;
  std::map<std::string, Tensor> tensors;
  Params params{};

  Tensor& at(const std::string& name) { return tensors.at(name); }
  TensorView add(Draw& draw, const std::string& name, DType dtype, const Sizes& shape) {
    return tensors.emplace(name, Tensor(dtype, shape, draw.strides(shape))).first->second.view();
  }
  // x or out of one token
  std::array<std::int64_t, 3> index(std::size_t row, std::int64_t t, std::int64_t c) const {
    const auto b = static_cast<std::int64_t>(row);
    if (form == Form::kSingle) return {b, c, 0};
    if (form == Form::kUniform) return {b, t, c};
    return {rows[row].begin + t, c, 0};
  }
};

TensorView add_indices(Draw& draw, auto& test, const std::string& name,
                       const std::vector<Sizes>& table, bool matrix) {
  bool negative = false;
  std::int64_t columns = 1;
  for (const Sizes& line : table) {
    columns = static_cast<std::int64_t>(line.size());
    for (std::int64_t value : line) negative = negative || value < 0;
  }
  const DType dtype = negative ? draw.pick({DType::kInt32, DType::kInt64})
                               : draw.pick({DType::kInt32, DType::kInt64, DType::kUInt32});
  const auto rows = static_cast<std::int64_t>(table.size());
  const TensorView view = test.add(draw, name, dtype, matrix ? Sizes{rows, columns} : Sizes{rows});
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (std::size_t j = 0; j < table[i].size(); ++j) {
      test.at(name).set(static_cast<double>(table[i][j]), static_cast<std::int64_t>(i),
                        static_cast<std::int64_t>(j));
    }
  }
  return view;
}

TensorView add_indices(Draw& draw, auto& test, const std::string& name, const Sizes& values) {
  std::vector<Sizes> table;
  for (std::int64_t value : values) table.push_back({value});
  return add_indices(draw, test, name, table, false);
}

template <class Params>
void draw_tokens(Draw& draw, Case<Params>& test) {
  auto& p = test.params;
  test.form = draw.pick({test.kPrefill ? Form::kUniform : Form::kSingle, Form::kUniform,
                         Form::kOffsets, Form::kStarts});
  test.rows.resize(static_cast<std::size_t>(draw.from(0, 5)));
  const auto N = static_cast<std::int64_t>(test.rows.size());
  std::int64_t T = test.form == Form::kSingle ? 1 : draw.chance(0.1) ? 0 : draw.from(1, 10);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < test.rows.size(); ++i) order.push_back(i);
  if (test.form == Form::kStarts) draw.shuffle(order);
  std::int64_t total = 0;
  for (std::size_t i : order) {
    Row& row = test.rows[i];
    const bool ragged = test.form == Form::kOffsets || test.form == Form::kStarts;
    row.length = !ragged ? T : draw.chance(0.25) ? 0 : draw.from(1, 10);
    if (test.form == Form::kStarts) total += draw.from(0, 2);
    if (ragged) row.begin = total;
    total += row.length;
  }
  if (test.form == Form::kOffsets) {
    Sizes ends;
    for (const Row& row : test.rows) ends.push_back(row.begin);
    ends.push_back(total);
    p.cu_seqlens = add_indices(draw, test, "cu_seqlens", ends);
  } else if (test.form == Form::kStarts) {
    Sizes starts, lengths;
    for (const Row& row : test.rows) starts.push_back(row.begin);
    for (const Row& row : test.rows) lengths.push_back(row.length);
    p.starts = add_indices(draw, test, "starts", starts);
    p.lengths = add_indices(draw, test, "lengths", lengths);
  }
  total += draw.from(0, 2);  // tokens of no row
  const Sizes shape = test.form == Form::kSingle    ? Sizes{N, test.C}
                      : test.form == Form::kUniform ? Sizes{N, T, test.C}
                                                    : Sizes{total, test.C};
  const DType dtype = draw.float_type();
  p.x = test.add(draw, "x", dtype, shape);
  test.in_place = draw.chance(0.3);
  p.out = test.in_place ? p.x : test.add(draw, "out", dtype, shape);
}

// Slots that no two rows share, unless all of them only read one. What belongs to a padding row is
// nonsense, because nobody may look at it.
template <class Params>
void draw_slots(Draw& draw, Case<Params>& test) {
  auto& p = test.params;
  const auto N = static_cast<std::int64_t>(test.rows.size());
  test.first_slot = p.first_slot = draw.from(0, 2);
  const bool by_number = draw.chance(0.25), shared = !by_number && draw.chance(0.25);
  const std::int64_t first_free = std::max(test.first_slot, by_number ? N : 0);
  test.slots = first_free + 5 * N + 1;
  Sizes free;
  for (std::int64_t slot = first_free; slot < test.slots; ++slot) free.push_back(slot);
  draw.shuffle(free);
  const auto take = [&] {
    const std::int64_t slot = free.back();
    free.pop_back();
    return slot;
  };
  const auto null_slot = [&] { return draw.from(-1, test.first_slot - 1); };

  const std::int64_t one = take();
  for (std::size_t i = 0; i < test.rows.size(); ++i) {
    Row& row = test.rows[i];
    row.read = by_number ? static_cast<std::int64_t>(i) : shared ? one : take();
    row.padding = by_number ? row.read < test.first_slot : draw.chance(0.2);
    row.write = row.read;
  }
  if (shared || draw.chance(0.5)) {
    Sizes write;
    for (Row& row : test.rows) {
      const int kind = static_cast<int>(draw.from(shared ? 1 : 0, 2));
      if (kind == 1) row.write = take();
      if (kind == 2) row.write = -1;
      write.push_back(row.padding ? 1000000 : row.write < 0 ? null_slot() : row.write);
    }
    p.write_slots = add_indices(draw, test, "write_slots", write);
  }
  if (by_number) return;
  Sizes read;
  for (const Row& row : test.rows) read.push_back(row.padding ? null_slot() : row.read);
  if (draw.chance(0.5)) {
    p.read_slots = add_indices(draw, test, "read_slots", read);
    return;
  }
  const std::int64_t columns = draw.from(1, 3);
  std::vector<Sizes> table;
  Sizes column;
  for (std::int64_t slot : read) {
    column.push_back(draw.from(-1, columns));  // clamped to the table
    const std::int64_t used = std::clamp<std::int64_t>(column.back(), 0, columns - 1);
    table.emplace_back(static_cast<std::size_t>(columns), 1000000);
    table.back()[static_cast<std::size_t>(used)] = slot;
  }
  p.read_slots = add_indices(draw, test, "read_slots", table, true);
  p.read_columns = add_indices(draw, test, "read_columns", column);
}

void draw_checkpoints(Draw& draw, Case<conv::PrefillParams>& test) {
  const std::int64_t M = draw.from(1, 3);
  std::int64_t next = test.slots;  // fresh slots at the end of the pool
  std::vector<Sizes> offsets, slots;
  for (Row& row : test.rows) {
    Sizes counts;
    for (std::int64_t n = 0; n <= row.length; ++n) counts.push_back(n);
    draw.shuffle(counts);
    counts.resize(std::min(counts.size(), static_cast<std::size_t>(draw.from(0, M))));
    std::sort(counts.begin(), counts.end());
    offsets.emplace_back(counts);
    slots.emplace_back();
    for (std::int64_t count : counts) {
      const std::int64_t slot = draw.chance(0.2) ? -1 : next++;
      row.checkpoints.push_back({count, slot});
      slots.back().push_back(slot);
    }
    if (row.padding) offsets.back() = {77};
    if (offsets.back().size() < static_cast<std::size_t>(M)) offsets.back().push_back(-1);
    offsets.back().resize(static_cast<std::size_t>(M), 99);
    slots.back().resize(static_cast<std::size_t>(M), 1000000);
  }
  test.slots = next;
  test.params.checkpoint_offsets = add_indices(draw, test, "checkpoint_offsets", offsets, true);
  test.params.checkpoint_slots = add_indices(draw, test, "checkpoint_slots", slots, true);
}

template <class Params>
void draw_windows(Draw& draw, Case<Params>& test) {
  auto& p = test.params;
  std::int64_t longest = 0;
  for (const Row& row : test.rows) longest = std::max(longest, row.length);
  test.at_offsets = draw.chance(0.5);
  test.L = test.W - 1 + draw.pick<std::int64_t>({0, 0, 1, draw.from(2, 4)});
  if (test.at_offsets && !test.kPrefill) test.L = std::max(test.L, test.W - 2 + longest);
  const std::int64_t last = test.L - (test.W - 1);
  Sizes offsets;
  for (Row& row : test.rows) {
    offsets.push_back(draw.from(-1, last + 1));
    row.window = test.at_offsets ? std::clamp<std::int64_t>(offsets.back(), 0, last) : last;
    row.commit = row.length;
  }
  if (test.at_offsets) p.window_offsets = add_indices(draw, test, "window_offsets", offsets);
  if constexpr (Case<Params>::kPrefill) {
    if (draw.chance(0.5)) draw_checkpoints(draw, test);
    if (draw.chance(0.5)) {
      const auto N = static_cast<std::int64_t>(test.rows.size());
      p.has_initial_state =
          test.add(draw, "has_initial_state", draw.pick({DType::kBool, DType::kUInt8}), {N});
      for (std::size_t i = 0; i < test.rows.size(); ++i) {
        test.rows[i].from_pool = draw.chance(0.5);
        test.at("has_initial_state").set(test.rows[i].from_pool, static_cast<std::int64_t>(i));
      }
    }
  } else if (!test.at_offsets && draw.chance(0.5)) {
    Sizes commit;
    for (Row& row : test.rows) {
      row.commit = draw.from(0, row.length);
      commit.push_back(row.padding ? 99 : row.commit);
    }
    p.commit_lengths = add_indices(draw, test, "commit_lengths", commit);
  }
}

template <class Params>
Case<Params> draw_case(std::uint64_t seed) {
  Draw draw(seed);
  Case<Params> test;
  test.C = draw.from(1, 5);
  test.W = draw.from(2, 4);
  draw_tokens(draw, test);
  test.pool = !test.kPrefill || draw.chance(0.85);
  if (test.pool) {
    draw_slots(draw, test);
    draw_windows(draw, test);
    test.params.state = test.add(draw, "state", draw.float_type(), {test.slots, test.C, test.L});
  }
  const auto fill = [&](Tensor& tensor, auto... index) { tensor.set(draw.number(), index...); };
  test.params.weight = test.add(draw, "weight", draw.float_type(), {test.C, test.W});
  if (draw.chance(0.5)) test.params.bias = test.add(draw, "bias", draw.float_type(), {test.C});
  for (std::int64_t c = 0; c < test.C; ++c) {
    for (std::int64_t j = 0; j < test.W; ++j) fill(test.at("weight"), c, j);
    if (test.params.bias.present()) fill(test.at("bias"), c);
    for (std::size_t i = 0; i < test.rows.size(); ++i) {
      const Row& row = test.rows[i];
      if (row.padding) continue;
      for (std::int64_t t = 0; t < row.length; ++t) {
        const auto [a, b, d] = test.index(i, t, c);
        fill(test.at("x"), a, b, d);
      }
      if (!test.pool || !row.from_pool) continue;
      for (std::int64_t j = 0; j < test.W - 1; ++j) {
        fill(test.at("state"), row.read, c, row.window + j);
      }
    }
  }
  test.params.activation = draw.pick({Activation::kNone, Activation::kSilu});
  test.tensors.emplace("inputs", test.at("x"));  // out may take the place of x
  return test;
}

// The input of token t of a row; the tokens before the call are -1, -2, ...
template <class Params>
double input(Case<Params>& test, const Tensor& state, std::size_t row, std::int64_t t,
             std::int64_t c) {
  if (t >= 0) {
    const auto [a, b, d] = test.index(row, t, c);
    return test.at("inputs").get(a, b, d);
  }
  const Row& r = test.rows[row];
  if (!test.pool || !r.from_pool) return 0;
  return state.get(r.read, c, r.window + (test.W - 1) + t);
}

struct Expected {
  double value, magnitude;  // magnitude: the sum of the absolute values of the terms
};

// One row and channel as a dense product: y = M s + bias, M [T, W-1+T] with the weights on a band.
template <class Params>
std::vector<Expected> expected_outputs(Case<Params>& test, const Tensor& state, std::size_t row,
                                       std::int64_t c) {
  const std::int64_t T = test.rows[row].length, n = test.W - 1 + T;
  std::vector<Expected> result;
  for (std::int64_t t = 0; t < T; ++t) {
    std::vector<long double> M(static_cast<std::size_t>(n), 0.0L);
    for (std::int64_t j = 0; j < test.W; ++j) {
      M[static_cast<std::size_t>(t + j)] = test.at("weight").get(c, j);
    }
    long double y = 0, magnitude = 0;
    for (std::int64_t i = n - 1; i >= 0; --i) {
      const long double term =
          M[static_cast<std::size_t>(i)] *
          static_cast<long double>(input(test, state, row, i - (test.W - 1), c));
      y += term;
      magnitude += std::fabs(term);
    }
    if (test.params.bias.present()) {
      y += test.at("bias").get(c);
      magnitude += std::fabs(test.at("bias").get(c));
    }
    if (test.params.activation == Activation::kSilu) y = y / (1 + std::exp(-y));
    result.push_back({static_cast<double>(y), static_cast<double>(magnitude)});
  }
  return result;
}

// The columns of a window after `tokens` tokens, as a prefill or a rolling update leaves them.
template <class Params>
void expect_window(Case<Params>& test, Tensor& expected, const Tensor& before, std::size_t row,
                   std::int64_t slot, std::int64_t tokens) {
  const Row& r = test.rows[row];
  const std::int64_t columns = test.at_offsets ? test.W - 1 : test.L;
  for (std::int64_t c = 0; c < test.C && slot >= 0; ++c) {
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int64_t t = tokens - columns + i;  // the token whose input stands in column i
      // A rolling row keeps columns older than its window, whatever they hold.
      const bool older = t < -(test.W - 1) && r.from_pool;
      const double value = older ? before.get(r.read, c, test.L + t)
                                 : (t < -(test.W - 1) ? 0.0 : input(test, before, row, t, c));
      expected.set(value, slot, c, i);
    }
  }
}

void expect_state(Case<conv::PrefillParams>& test, Tensor& expected, const Tensor& before,
                  std::size_t row) {
  const Row& r = test.rows[row];
  for (const auto& [tokens, slot] : r.checkpoints) {
    expect_window(test, expected, before, row, slot, tokens);
  }
  expect_window(test, expected, before, row, r.write, r.length);
}

void expect_state(Case<conv::UpdateParams>& test, Tensor& expected, const Tensor& before,
                  std::size_t row) {
  const Row& r = test.rows[row];
  if (!test.at_offsets) return expect_window(test, expected, before, row, r.write, r.commit);
  for (std::int64_t c = 0; c < test.C && r.write >= 0; ++c) {
    if (r.length == 0) {
      for (std::int64_t i = 0; i < test.L; ++i) {
        expected.set(before.get(r.read, c, i), r.write, c, i);
      }
    }
    // Token t in column W-2+t, and the inputs before the call to the left of it.
    for (std::int64_t t = -(test.W - 2); t < r.length && r.length > 0; ++t) {
      expected.set(input(test, before, row, t, c), r.write, c, test.W - 2 + t);
    }
  }
}

void call(const conv::PrefillParams& params) { conv::prefill(params); }
void call(const conv::UpdateParams& params) { conv::update(params); }

template <class Params>
void check(std::uint64_t seed) {
  Case<Params> test = draw_case<Params>(seed);
  const std::map<std::string, Tensor> before = test.tensors;
  const Tensor nothing(DType::kFloat32, {1}, {1});
  const Tensor& state = test.pool ? before.at("state") : nothing;
  Tensor expected = state;
  const std::string result = test.in_place ? "x" : "out";
  for (std::size_t i = 0; i < test.rows.size() && test.pool; ++i) {
    if (!test.rows[i].padding) expect_state(test, expected, state, i);
  }
  for (const Candidate& candidate : explain(test.params)) {
    if (!candidate.supported) continue;
    SCOPED_TRACE(candidate.implementation);
    for (auto& [name, tensor] : test.tensors) tensor.restore(before.at(name));
    test.params.impl = candidate.implementation.c_str();
    call(test.params);
    // At most five rounded additions and a SiLU of slope below 1.1 that costs a few more.
    const double slack = 16 * unit_roundoff(candidate.implementation);
    Tensor out = test.at(result), untouched = before.at(result);
    for (std::size_t i = 0; i < test.rows.size(); ++i) {
      if (test.rows[i].padding) continue;
      for (std::int64_t c = 0; c < test.C; ++c) {
        const std::vector<Expected> want = expected_outputs(test, state, i, c);
        for (std::size_t t = 0; t < want.size(); ++t) {
          const auto [a, b, d] = test.index(i, static_cast<std::int64_t>(t), c);
          const double bound =
              half_ulp(test.params.out.dtype, want[t].value) + slack * want[t].magnitude;
          ASSERT_LE(std::fabs(out.get(a, b, d) - want[t].value), bound)
              << "row " << i << ", token " << t << ", channel " << c << ", expected "
              << want[t].value;
          out.set(0, a, b, d);
          untouched.set(0, a, b, d);
        }
      }
    }
    ASSERT_TRUE(out.same_memory(untouched)) << "written outside of the rows' outputs";
    if (test.pool) {
      ASSERT_TRUE(test.at("state").same_memory(expected)) << "the pool is not as it should be";
    }
    for (auto& [name, tensor] : test.tensors) {
      if (name != result && name != "state") {
        ASSERT_TRUE(tensor.same_memory(before.at(name))) << name << " was written";
      }
    }
  }
}

constexpr std::uint64_t kCases = 1500;

TEST(Conv, PrefillIsABandMatrix) {
  for (std::uint64_t seed = 0; seed < kCases && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check<conv::PrefillParams>(seed);
  }
}

TEST(Conv, UpdateIsABandMatrix) {
  for (std::uint64_t seed = 0; seed < kCases && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check<conv::UpdateParams>(seed);
  }
}

}  // namespace
}  // namespace hyla::tests

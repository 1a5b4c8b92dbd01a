// gdn::recurrence with every stride, dtype and option, and its twin under the document's name.
#include <gtest/gtest.h>
#include <hyla/error.h>
#include <hyla/gdn.h>
#include <hyla/recurrence_kernel.h>

#include "ops/support/gdn_case.h"

namespace hyla::gdn_test {
namespace {

using gdn::RecurrenceParams;
using gdn::StateLayout;

void run(const Case& p, const Packed& packed, const RecurrenceParams& params,
         const std::function<void(Expectation&, const Results&)>& pool) {
  const Results results = p.results(dense);
  Expectation out(packed.out, "out"), state(p.state, "state");
  packed.expect_out(out, p, results);
  pool(state, results);
  gdn::recurrence(params);
  out.check();
  state.check();
}

TEST(GdnRecurrence, StridesAndDtypes) {
  const DType types[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  std::uint64_t seed = 0;
  for (DType io : types) {
    for (DType state : types) {
      for (DType gates : types) {
        for (StateLayout layout : {StateLayout::kKV, StateLayout::kVK}) {
          Spec spec{.lengths = {3, 0, 5, 2}, .padding = {3}};
          spec.io = io;
          spec.state = state;
          spec.gates = gates;
          spec.layout = layout;
          spec.seed = ++seed;
          const Case p(spec);
          const Packed packed(p, 1 + static_cast<std::int64_t>(seed % 3), 7);
          run(p, packed, packed.params(p),
              [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
        }
      }
    }
  }
}

// No stride of the state needs to be 1: here value, then key, head and slot, all with gaps.
TEST(GdnRecurrence, StateWithFourStridesOfItsOwn) {
  Spec spec{.lengths = {3, 4}, .Hq = 1, .Hk = 1, .HV = 2, .K = 8, .V = 16};
  spec.layout = StateLayout::kKV;
  Case p(spec);
  Tensor state =
      Tensor::strided(DType::kFloat32, p.state.shape(), {2 * 8 * 1100, 8 * 1100, 1100, 67});
  for_each_index(p.state.shape(), [&](const Index& i) {
    if (i[0] == 1 || i[0] == 3) state.set(i, p.state.get(i));
  });
  p.state = std::move(state);
  const Packed packed(p, 2, 1);
  run(p, packed, packed.params(p),
      [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
}

TEST(GdnRecurrence, SlotsColumnsAndRows) {
  const Case p({.lengths = {3, 2, 4}, .starts = {6, 1, 10}, .padding = {1}, .slots = 12});
  const Packed packed(p, 1, 0);
  RecurrenceParams params = packed.params(p);
  const Tensor table = Tensor::of_table(
      DType::kInt32, {Index{p.slot(0), 88888}, Index{88888, -3}, Index{88888, p.slot(2)}});
  const Tensor columns = Tensor::of_indices(DType::kInt32, Index{0, 1, 1});
  const Tensor write = Tensor::of_indices(DType::kInt32, Index{9, 88888, -1});
  params.cu_seqlens = {};
  params.starts = p.starts.view();
  params.lengths = p.lengths.view();
  params.read_slots = table.view();
  params.read_columns = columns.view();
  params.write_slots = write.view();
  run(p, packed, params,
      [&](Expectation& pool, const Results& results) { p.expect_state(pool, {9}, results, 0, 3); });
}

TEST(GdnRecurrence, GatesBetasScaleAndNorm) {
  using gdn::Beta;
  using gdn::Gate;
  for (Gate::Kind gate :
       {Gate::Kind::kNone, Gate::Kind::kLinear, Gate::Kind::kLog, Gate::Kind::kRaw}) {
    for (Beta::Kind beta : {Beta::Kind::kNone, Beta::Kind::kProbability, Beta::Kind::kLogit}) {
      Spec spec{.lengths = {3, 4}, .gate = gate, .beta = beta, .layout = StateLayout::kKV};
      spec.l2norm = gate != Gate::Kind::kLog;
      if (beta == Beta::Kind::kLogit) spec.scale = 0.75;
      const Case p(spec);
      const Packed packed(p, 1, 0);
      run(p, packed, packed.params(p),
          [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
    }
  }
}

// The sizes of one call of the document's function; a test bends one of them.
struct Sizes {
  std::int64_t total_threads, batch_size, total_seq_len, num_value_heads, num_key_heads, key_dim,
      value_dim, conv_dim;
};

template <DType work, DType state>
struct Documented {
  explicit Documented(Spec spec)
      : p(completed(std::move(spec))),
        packed(p, 3, 5),
        gates(work, {p.total, p.heads}, 2),
        betas(work, {p.total, p.heads}, 2) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
      for_each_index({p.length(row), p.heads}, [&](Index i) {
        i[0] += p.start(row);
        gates.set(i, p.gate.get(i));
        betas.set(i, p.beta.get(i));
      });
    }
    const std::int64_t VD = p.spec.HV * p.spec.V, KD = p.spec.Hk * p.spec.K;
    sizes = {p.rows * VD, p.rows, p.total, p.spec.HV, p.spec.Hk, KD, VD, 2 * KD + VD};
  }
  static Spec completed(Spec spec) {
    spec.io = spec.gates = work;
    spec.state = state;
    spec.layout = StateLayout::kKV;
    spec.indices = DType::kUInt32;
    spec.gate = gdn::Gate::Kind::kLinear;
    spec.beta = gdn::Beta::Kind::kProbability;
    spec.K = 16;
    spec.V = 24;
    return spec;
  }

  template <DType dtype, int rank>
  static gdn::TileTensor<dtype, rank> tile(const TensorView& view) {
    gdn::TileTensor<dtype, rank> tensor;
    tensor.data = static_cast<typename gdn::TileTensor<dtype, rank>::Element*>(view.data);
    for (int d = 0; d < rank; ++d) tensor.shape[static_cast<std::size_t>(d)] = view.shape[d];
    return tensor;
  }
  static std::uint32_t stride(const TensorView& view, int d) {
    return static_cast<std::uint32_t>(view.strides[d]);
  }

  void operator()(const Context& context = {}) const {
    const TensorView qkv = packed.qkv.view(), out = packed.out.view(), pool = p.state.view();
    const TensorView gate = gates.view(), beta = betas.view();
    gdn::gated_delta_recurrence_fwd_gpu<work, state, 16, 24, 128>(
        sizes.total_threads, sizes.batch_size, sizes.total_seq_len, sizes.num_value_heads,
        sizes.num_key_heads, sizes.key_dim, sizes.value_dim, sizes.conv_dim, tile<work, 2>(out),
        tile<state, 4>(pool), {slots.data(), {static_cast<std::int64_t>(slots.size())}},
        tile<work, 2>(qkv), tile<work, 2>(gate), tile<work, 2>(beta),
        {offsets.data(), {static_cast<std::int64_t>(offsets.size())}}, stride(qkv, 0),
        stride(qkv, 1), stride(gate, 0), stride(gate, 1), stride(pool, 0), stride(pool, 1),
        stride(pool, 2), stride(pool, 3), stride(out, 0), stride(out, 1), context);
  }

  Case p;
  Packed packed;
  Tensor gates, betas;
  Sizes sizes;
  mutable std::vector<std::uint32_t> slots{1, 3, 5}, offsets{0, 3, 3, 7};
};

template <DType work, DType state>
void check_documented() {
  const Documented<work, state> call({.lengths = {3, 0, 4}, .Hq = 2, .Hk = 2, .HV = 4});
  const Results results = call.p.results(dense);
  Expectation out(call.packed.out, "out"), pool(call.p.state, "state");
  call.packed.expect_out(out, call.p, results, kFloat32Sums);
  call.p.expect_final(pool, results, kFloat32Sums);
  call();
  out.check();
  pool.check();
}

TEST(GdnDocumentedRecurrence, IsTheRecurrence) {
  check_documented<DType::kFloat32, DType::kFloat32>();
  check_documented<DType::kBFloat16, DType::kFloat32>();
  check_documented<DType::kFloat16, DType::kBFloat16>();
}

TEST(GdnDocumentedRecurrence, SizesAreCheckedAgainstEachOther) {
  using Call = Documented<DType::kFloat32, DType::kFloat32>;
  const auto refuses = [](const std::string& argument, const std::function<void(Call&)>& bend) {
    Call call({.lengths = {3, 0, 4}, .Hq = 2, .Hk = 2, .HV = 4});
    bend(call);
    Expectation out(call.packed.out, "out"), pool(call.p.state, "state");
    try {
      call();
      ADD_FAILURE() << argument << ": nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), argument) << error.what();
      EXPECT_EQ(std::string(error.what()).find(argument + ": expected "), 0u) << error.what();
    }
    out.check();
    pool.check();
  };
  refuses("total_threads", [](Call& c) { c.sizes.total_threads += 1; });
  refuses("batch_size", [](Call& c) { c.sizes.batch_size = -1; });
  refuses("total_seq_len", [](Call& c) { c.sizes.total_seq_len = -1; });
  refuses("recurrence_output", [](Call& c) { c.sizes.total_seq_len += 1; });
  refuses("num_value_heads", [](Call& c) { c.sizes.num_value_heads = 5; });
  refuses("num_key_heads", [](Call& c) { c.sizes.num_key_heads = 0; });
  refuses("key_dim", [](Call& c) { c.sizes.key_dim = 16; });
  refuses("value_dim", [](Call& c) { c.sizes.value_dim = 24; });
  refuses("conv_dim", [](Call& c) { c.sizes.conv_dim -= 1; });
  refuses("slot_idx", [](Call& c) { c.slots.pop_back(); });
  refuses("slot_idx", [](Call& c) { c.slots[2] = 1000; });
  refuses("slot_idx", [](Call& c) { c.slots[2] = 0xffffffff; });
  refuses("input_row_offsets", [](Call& c) { c.offsets.pop_back(); });
  refuses("input_row_offsets", [](Call& c) { c.offsets[1] = 5; });
  refuses("input_row_offsets", [](Call& c) { c.offsets[3] = 5000; });
  refuses("qkv_conv_output", [](Call& c) { c.packed.qkv = Tensor(DType::kFloat32, {9, 7}); });
  refuses("decay_per_token", [](Call& c) { c.gates = Tensor(DType::kFloat32, {9, 2}); });
  refuses("beta_per_token", [](Call& c) { c.betas = Tensor(DType::kFloat32, {8, 4}); });
  refuses("recurrent_state", [](Call& c) { c.p.state = Tensor(DType::kFloat32, {9, 4, 24, 16}); });
}

TEST(GdnDocumentedRecurrence, RunsWhereTheContextSays) {
  Documented<DType::kFloat32, DType::kFloat32> call({.lengths = {3, 0, 4}});
  Context context;
  context.device = Device::cuda(0);
  try {
    call(context);
    ADD_FAILURE() << "a CUDA device without a stream";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "context.stream");
  }
}

}  // namespace
}  // namespace hyla::gdn_test

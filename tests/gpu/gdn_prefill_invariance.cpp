// Prefill under Context::batch_invariant: the bits of a sequence are its own. Neither what else is
// in the batch, nor how the sequence is given, nor how long it goes on changes them, and a
// checkpoint has the bits of the final state of a call that ends there.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuPrefillInvariance = Gpu;
using Numbers = std::vector<std::int64_t>;

// Dims, groups of heads, norms, input dtypes, states of 16 bits, both layouts.
const std::vector<std::string> kProblems = {
    "hq=2,hv=4",
    "hq=4,hk=1,hv=1,state=bf16",
    "hq=1,hv=2,norm=1,gate=raw,beta=logit",
    "hq=1,hv=2,io=f16,state=f16,norm=1",
    "hq=1,hv=2,io=f32,state=bf16",
    "hq=2,hv=2,k=64,v=64,layout=kv",
    "hq=2,hk=1,hv=1,k=64,v=64,norm=1,gate=raw,beta=logit,io=f16",
    "hq=1,hv=2,k=64,v=64,io=f32",
    "hq=1,hv=2,k=256,v=256",
    "hq=2,hk=1,hv=1,k=256,v=128,norm=1,gate=log,io=f16,state=f16,layout=kv",
    "hq=1,hv=1,k=72,v=40,io=f16",
    "hq=1,hv=2,k=72,v=40,norm=1,state=bf16",
};

gdn::PrefillParams& params(Call& call) { return std::get<gdn::PrefillParams>(call.params); }

TensorView add_indices(Call& call, const char* name, const Numbers& values,
                       std::vector<std::int64_t> shape = {}) {
  if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
  call.buffers.emplace_back(name, DType::kInt32, shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    call.buffers.back().set(static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  }
  return call.buffers.back().view();
}

Numbers read(const TensorView& view) {
  Numbers values;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    values.push_back(static_cast<std::int64_t>(load_element(view, offset)));
  });
  return values;
}

enum class Form { kStarts, kBackToBack };

// The first `length` tokens of a sequence of the call, on the same tensors.
Call alone(const Call& batch, Form form, std::int64_t begin, std::int64_t length,
           std::int64_t slot) {
  Call call = batch;
  gdn::PrefillParams& p = params(call);
  p.cu_seqlens = p.checkpoints = p.checkpoint_starts = p.checkpoint_offsets = {};
  p.checkpoint_every = p.max_length = 0;
  if (form == Form::kStarts) {
    p.starts = add_indices(call, "starts", {begin});
    p.lengths = add_indices(call, "lengths", {length});
  } else {
    p.cu_seqlens = add_indices(call, "cu_seqlens", {begin, begin + length});
  }
  p.read_slots = add_indices(call, "read_slots", {slot});
  return call;
}

void expect_same_bits(const TensorView& a, const TensorView& b, const std::string& what) {
  std::vector<const char*> of_b;
  const auto at = [](const TensorView& view, std::int64_t offset) {
    return static_cast<const char*>(view.data) +
           offset * static_cast<std::int64_t>(size_of(view.dtype));
  };
  for_each_element(b, [&](std::int64_t, std::int64_t offset) { of_b.push_back(at(b, offset)); });
  std::int64_t different = 0;
  for_each_element(a, [&](std::int64_t i, std::int64_t offset) {
    different +=
        std::memcmp(at(a, offset), of_b[static_cast<std::size_t>(i)], size_of(a.dtype)) != 0;
  });
  EXPECT_EQ(different, 0) << what << " of " << a.numel();
}

Call outcome(const Call& call) {
  const DeviceCall gpu(call);
  gpu.launch("");
  return gpu.result();
}

Call batch_of(const std::string& lens, const std::string& options) {
  Call batch = random_call(parse_problem("gdn_prefill:lens=" + lens + ",checkpoint=64," + options));
  batch.context.batch_invariant = true;
  return batch;
}

TEST_F(GpuPrefillInvariance, ASequencesBitsAreItsOwn) {
  for (const std::string& options : kProblems) {
    const Call batch = batch_of("300+70+1+64+200+0+16x9", options);
    Call together = outcome(batch);
    const gdn::PrefillParams& all = params(together);
    const Numbers begin = read(all.cu_seqlens), checkpoint = read(all.checkpoint_starts);
    for (const std::int64_t n : {0, 1, 2, 4, 8}) {
      const auto i = static_cast<std::size_t>(n);
      const std::int64_t length = begin[i + 1] - begin[i];
      for (const Form form : {Form::kStarts, Form::kBackToBack}) {
        const std::string row = options + ", sequence " + std::to_string(n) +
                                (form == Form::kStarts ? " by starts" : " by cu_seqlens");
        Call whole = outcome(alone(batch, form, begin[i], length, n));
        expect_same_bits(params(whole).out.slice(0, begin[i], length),
                         all.out.slice(0, begin[i], length), row + ": outputs");
        expect_same_bits(params(whole).state.select(0, n), all.state.select(0, n),
                         row + ": final state");
        if (length < 64) continue;
        const std::int64_t prefix = length / 64 * 64;
        Call part = outcome(alone(batch, form, begin[i], prefix, n));
        expect_same_bits(params(part).out.slice(0, begin[i], prefix),
                         all.out.slice(0, begin[i], prefix), row + ": outputs of a prefix");
        expect_same_bits(params(part).state.select(0, n),
                         all.checkpoints.select(0, checkpoint[i] + prefix / 64 - 1),
                         row + ": checkpoint");
      }
    }
  }
}

// The same sequences in another order, with gaps between them.
TEST_F(GpuPrefillInvariance, RowsInAnyOrder) {
  for (const std::string& options : kProblems) {
    const Call batch = batch_of("300+70+1+64+200+0+16x9", options);
    Call together = outcome(batch);
    const gdn::PrefillParams& all = params(together);
    const Numbers begin = read(all.cu_seqlens);
    Call mixed = batch;
    gdn::PrefillParams& p = params(mixed);
    Numbers starts, lengths, slots;
    for (const std::int64_t n : {4, 8, 1, 5, 2, 0}) {
      const auto i = static_cast<std::size_t>(n);
      starts.push_back(begin[i]);
      lengths.push_back(begin[i + 1] - begin[i]);
      slots.push_back(n);
    }
    p.cu_seqlens = p.checkpoints = p.checkpoint_starts = {};
    p.checkpoint_every = p.max_length = 0;
    p.starts = add_indices(mixed, "starts", starts);
    p.lengths = add_indices(mixed, "lengths", lengths);
    p.read_slots = add_indices(mixed, "read_slots", slots);
    Call result = outcome(mixed);
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const std::string row = options + ", sequence " + std::to_string(slots[i]);
      if (lengths[i] > 0) {
        expect_same_bits(params(result).out.slice(0, starts[i], lengths[i]),
                         all.out.slice(0, starts[i], lengths[i]), row + ": outputs");
      }
      expect_same_bits(params(result).state.select(0, slots[i]), all.state.select(0, slots[i]),
                       row + ": final state");
    }
  }
}

// Lists of tokens after which states are kept: before the first, inside of chunks, several in one,
// between chunks, after the last. Of a batch of 250, 70, 64, 200 and 0 tokens.
void check_lists(const std::string& options, const Call& batch) {
  const std::vector<Numbers> lists = {
      {0, 1, 17, 64, 100, 127, 128, 250}, {63, 64, 65, 70}, {}, {50}, {0}};
  constexpr std::int64_t kColumns = 9;
  Call plain = batch;
  params(plain).checkpoints = params(plain).checkpoint_starts = {};
  params(plain).checkpoint_every = 0;
  Call listed = plain;
  gdn::PrefillParams& p = params(listed);
  Numbers offsets, starts = {0};
  for (const Numbers& list : lists) {
    for (std::int64_t i = 0; i < kColumns; ++i) {
      offsets.push_back(i < std::ssize(list) ? list[static_cast<std::size_t>(i)] : -1);
    }
    starts.push_back(starts.back() + std::ssize(list));
  }
  const auto rows = static_cast<std::int64_t>(lists.size());
  p.checkpoint_offsets = add_indices(listed, "checkpoint_offsets", offsets, {rows, kColumns});
  p.checkpoint_starts = add_indices(listed, "checkpoint_starts", starts);
  const TensorView& state = p.state;
  listed.buffers.emplace_back(
      "checkpoints", state.dtype,
      std::vector<std::int64_t>{starts.back(), state.shape[1], state.shape[2], state.shape[3]});
  p.checkpoints = listed.buffers.back().view();
  Call with = outcome(listed), without = outcome(plain);
  expect_same_bits(params(with).out, params(without).out, options + ": outputs beside a list");
  expect_same_bits(params(with).state, params(without).state, options + ": states beside a list");
  const Numbers begin = read(params(with).cu_seqlens);
  for (std::int64_t n = 0; n < rows; ++n) {
    const auto row = static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < lists[row].size(); ++i) {
      const std::int64_t tokens = lists[row][i];
      Call prefix = outcome(alone(batch, Form::kBackToBack, begin[row], tokens, n));
      expect_same_bits(
          params(with).checkpoints.select(0, starts[row] + static_cast<std::int64_t>(i)),
          params(prefix).state.select(0, n),
          options + ", sequence " + std::to_string(n) + " after " + std::to_string(tokens));
    }
  }
}

TEST_F(GpuPrefillInvariance, AListedCheckpointIsTheFinalStateOfAPrefix) {
  for (const std::string& options : kProblems) {
    check_lists(options, batch_of("250+70+64+200+0", options));
  }
}

// The same where some value rows outgrow fp16 on the way: the others keep the bits of chunks.
TEST_F(GpuPrefillInvariance, StatesThatOutgrowTheirOperands) {
  for (const std::string options : {"hq=1,hv=2", "hq=1,hv=1,k=64,v=64", "hq=1,hv=1,k=256,v=64"}) {
    Call batch = batch_of("250+70+64+200+0", options + ",io=f16,gate=linear");
    gdn::PrefillParams& p = params(batch);
    const std::int64_t heads = p.v.shape[1], dim = p.v.shape[2];
    // 60000 and -60000 in turns for one key: the difference is beyond fp16 from token 90 on.
    for_each_element(p.v, [&](std::int64_t i, std::int64_t offset) {
      const std::int64_t token = i / (heads * dim), column = i % dim;
      if (column % 16 != 3 || token < 90) return;
      store_element(p.v, offset, token % 2 == 0 ? 60000 : -60000);
    });
    for_each_element(p.k, [&](std::int64_t i, std::int64_t offset) {
      if (i / (p.k.shape[1] * p.k.shape[2]) < 90) return;
      store_element(p.k, offset, i % p.k.shape[2] == 5 ? 1.0 : 0.0);
    });
    for (const TensorView& view : {p.gate.value, p.beta.value}) {
      for_each_element(
          view, [&](std::int64_t, std::int64_t offset) { store_element(view, offset, 1.0); });
    }
    check_lists(options, batch);
  }
}

}  // namespace
}  // namespace hyla::testing

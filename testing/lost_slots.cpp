#include "testing/lost_slots.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "testing/far_pool.h"
#include "testing/random.h"

namespace hyla::testing {
namespace {

// Beyond every pool; in turns just so and by far.
double nowhere(DType dtype, std::int64_t pool, std::int64_t turn) {
  if (turn % 2 == 0) return static_cast<double>(pool + turn % 3);
  switch (dtype) {
    case DType::kInt32:
      return std::numeric_limits<std::int32_t>::max();
    case DType::kUInt32:
      return std::numeric_limits<std::uint32_t>::max();
    default:
      return 0x1p40;
  }
}

// In no pool, also below the first page.
double no_page(DType dtype, std::int64_t pool, std::int64_t turn) {
  return turn % 3 == 2 && dtype != DType::kUInt32 ? static_cast<double>(-1 - turn)
                                                  : nowhere(dtype, pool, turn);
}

bool all_zero(const TensorView& view) {
  bool zero = true;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    zero = zero && load_element(view, offset) == 0;
  });
  return zero;
}

// Pages whose keys and values are zeros.
std::set<double> zero_pages(const Call& call) {
  std::set<double> pages;
  const auto* p = std::get_if<attention::RunParams>(&call.params);
  if (p == nullptr || !p->cache.page_table.present()) return pages;
  for (std::int64_t page = 0; page < p->cache.k.shape[0]; ++page) {
    if (all_zero(p->cache.k.slice(0, page, 1)) && all_zero(p->cache.v.slice(0, page, 1))) {
      pages.insert(static_cast<double>(page));
    }
  }
  return pages;
}

bool all_poison(const TensorView& view) {
  bool poison = true;
  for_each_element(
      view, [&](std::int64_t, std::int64_t offset) { poison = poison && is_poison(view, offset); });
  return poison;
}

// Halves of a cache that are there.
std::vector<TensorView> halves(const Call& call) {
  const attention::KvCache& cache = std::get<attention::AppendParams>(call.params).cache;
  std::vector<TensorView> views;
  for (const TensorView& view : {cache.k, cache.v, cache.k_scales, cache.v_scales}) {
    if (view.present()) views.push_back(view);
  }
  return views;
}

void write_lost_pages(const Call& result, const Call& lost, const Call& call) {
  const auto* p = std::get_if<attention::AppendParams>(&call.params);
  if (p == nullptr || !p->cache.page_table.present()) return;
  const TensorView &table = p->cache.page_table,
                   &sent = std::get<attention::AppendParams>(lost.params).cache.page_table;
  const Call expected = call;
  run(expected, "reference");
  const std::vector<TensorView> from = halves(expected), to = halves(result);
  for_each_element(table, [&](std::int64_t, std::int64_t offset) {
    const double page = load_element(table, offset);
    if (page == load_element(sent, offset)) return;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const TensorView source = from[i].slice(0, static_cast<std::int64_t>(page), 1);
      const TensorView target = to[i].slice(0, static_cast<std::int64_t>(page), 1);
      if (!all_poison(target)) continue;
      for_each_element(source, [&](std::int64_t, std::int64_t at) {
        if (!is_poison(source, at)) store_element(target, at, load_element(source, at));
      });
    }
  });
}

}  // namespace

Call lose_slots(const Call& call) {
  Call lost = call;
  const std::set<double> zeros = zero_pages(call);
  const auto first = static_cast<double>(first_slot(call));
  const bool appends = std::holds_alternative<attention::AppendParams>(call.params);
  constexpr double kLostPages = 0.3;
  const Random draw(1, "lost pages");
  std::int64_t pool = 0, turn = 0;
  bool states = false;  // without any, no slot that is read is too large
  for (const NamedTensor& tensor : tensors(call)) {
    if (!is_pool(tensor.name) && tensor.name != "state_out") continue;
    pool = std::max(pool, tensor.view.shape[0]);
    states = states || tensor.name == "state";
  }
  for (const NamedTensor& tensor : tensors(lost)) {
    if (!holds_slots(tensor.name) || (tensor.name == "read_slots" && !states)) continue;
    const bool pages = tensor.name == "cache.page_table";
    for_each_element(tensor.view, [&](std::int64_t i, std::int64_t offset) {
      const double slot = load_element(tensor.view, offset);
      const bool page = slot >= 0 && slot < static_cast<double>(pool);
      const bool loses = !pages    ? slot < first
                         : appends ? page && draw.chance(i, kLostPages)
                                   : zeros.contains(slot);
      if (!loses) return;
      const DType dtype = tensor.view.dtype;
      const std::int64_t end = pool * numbers_of_entry(call, tensor.name);
      store_element(tensor.view, offset,
                    pages ? no_page(dtype, end, turn) : nowhere(dtype, end, turn));
      ++turn;
    });
  }
  return lost;
}

void find_slots(Call& result, const Call& lost, const Call& call) {
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    const Buffer &sent = lost.buffers[i], &before = call.buffers[i];
    Buffer& got = result.buffers[i];
    const std::size_t bytes = before.data_bytes();
    if (std::memcmp(sent.data(), before.data(), bytes) == 0) continue;
    if (std::memcmp(got.data(), sent.data(), bytes) != 0) continue;
    std::memcpy(got.data(), before.data(), bytes);
  }
  write_lost_pages(result, lost, call);
}

}  // namespace hyla::testing

#include "testing/far_pool.h"

#include <algorithm>

namespace hyla::testing {

bool holds_slots(std::string_view name) {
  return name == "read_slots" || name == "write_slots" || name == "step_slots" ||
         name == "checkpoint_slots" || name == "cache.page_table" || name == "slots";
}

std::int64_t numbers_of_entry(const Call& call, std::string_view name) {
  const auto* p = std::get_if<attention::AppendParams>(&call.params);
  if (p == nullptr || name != "slots" || p->cache.k.rank == 3) return 1;
  return p->cache.k.shape[p->cache.layout == attention::KvLayout::kHND ? 2 : 1];
}

bool is_pool(std::string_view name) {
  return name == "state" || name == "cache.k" || name == "cache.v" || name == "cache.k_scales" ||
         name == "cache.v_scales";
}

std::int64_t far_shift(const Call& call) {
  constexpr std::int64_t kBeyond = (std::int64_t{1} << 31) + (1 << 20);
  std::int64_t shift = 0;
  bool by_number = false;
  for (const NamedTensor& tensor : tensors(call)) {
    by_number = by_number || holds_slots(tensor.name);
    // Scales are few: keys and values decide.
    if (!is_pool(tensor.name) || tensor.name.ends_with("_scales")) continue;
    shift = std::max(shift, kBeyond / tensor.view.strides[0] + 1);
  }
  return by_number ? shift : 0;
}

void shift_slots(Call& call, std::int64_t shift) {
  const std::int64_t first = first_slot(call);
  for (const NamedTensor& tensor : tensors(call)) {
    if (!holds_slots(tensor.name)) continue;
    for_each_element(tensor.view, [&](std::int64_t, std::int64_t offset) {
      const double slot = load_element(tensor.view, offset);
      if (slot >= static_cast<double>(first)) {
        const std::int64_t numbers = shift * numbers_of_entry(call, tensor.name);
        store_element(tensor.view, offset, slot + static_cast<double>(numbers));
      }
    });
  }
}

}  // namespace hyla::testing

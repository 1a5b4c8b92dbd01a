#include "testing/case_builder.h"

#include <algorithm>
#include <numeric>

#include "testing/threads_of.h"

namespace hyla::testing {
namespace {

// Shares of the rows that get each treatment.
constexpr double kPaddedShare = 0.2, kElsewhereShare = 0.4, kUnwrittenShare = 0.15;
constexpr std::int64_t kSpareSlots = 3;
constexpr std::int64_t kTableColumns = 3;
constexpr std::int64_t kMaxShift = 8, kMaxGap = 24;

template <class T>
void shuffle(std::vector<T>& values, const Random& random) {
  for (std::size_t i = values.size(); i > 1; --i) {
    const auto j = random.below(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i));
    std::swap(values[i - 1], values[static_cast<std::size_t>(j)]);
  }
}

}  // namespace

CaseBuilder::CaseBuilder(const ProblemSpec& spec, const CaseOptions& options)
    : spec_(spec), options_(options) {
  call_.context = on_threads_of(spec);
  call_.context.programmatic_launch = spec.pdl;
  call_.context.batch_invariant = spec.invariant;
}

bool CaseBuilder::has(const char* what, double probability) const {
  return options_.variety != 0 && Random(options_.variety, what).chance(0, probability);
}

std::int64_t CaseBuilder::kind(const char* what, std::int64_t count) const {
  return options_.variety == 0 ? 0 : Random(options_.variety, what).below(1, count);
}

DType CaseBuilder::any_float(const char* what, DType usual) const {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  return options_.variety == 0 ? usual : kTypes[kind(what, 3)];
}

namespace {

// How a tensor with gaps lies in memory.
struct Layout {
  std::int64_t shift = 0;             // of the first element
  std::vector<std::int64_t> strides;  // in elements
};

// Unused elements after each index of the first dimension, and for pools between heads too.
Layout usual_gaps(const Random& draw, const std::vector<std::int64_t>& shape) {
  Layout layout{draw.below(0, kMaxShift), dense_strides(shape)};
  const std::int64_t gap = 1 + draw.below(1, kMaxGap);
  for (std::size_t d = shape.size() - 1; d-- > 0;) {
    layout.strides[d] =
        layout.strides[d + 1] * shape[d + 1] + (d == 0 || d + 3 == shape.size() ? gap : 0);
  }
  return layout;
}

// Gaps in any dimension; half of the tensors keep their rows where fast kernels want them, at
// multiples of 16 elements. `loose`: the innermost dimension may have gaps too, or be another one.
Layout any_gaps(const Random& draw, const std::vector<std::int64_t>& shape, bool loose) {
  const std::int64_t unit = draw.chance(0, 0.5) ? 16 : 1, rank = std::ssize(shape);
  Layout layout{unit * draw.below(1, kMaxShift), dense_strides(shape)};
  std::vector<std::size_t> order;  // from the innermost dimension on
  for (std::size_t d = shape.size(); d-- > 0;) order.push_back(d);
  if (loose && rank >= 2 && draw.chance(2, 0.3)) std::swap(order[0], order[1]);
  std::int64_t stride = loose && draw.chance(3, 0.3) ? 1 + draw.below(4, 3) : 1;
  for (const std::size_t d : order) {
    layout.strides[d] = stride;
    const auto index = static_cast<std::int64_t>(8 + 2 * d);
    const std::int64_t gap = draw.chance(index, 0.4) ? unit * (1 + draw.below(index + 1, 3)) : 0;
    stride = stride * std::max<std::int64_t>(shape[d], 1) + gap;
  }
  return layout;
}

}  // namespace

Buffer& CaseBuilder::add(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
  return add_strided(name, dtype, std::move(shape), false);
}

Buffer& CaseBuilder::add_loose(const std::string& name, DType dtype,
                               std::vector<std::int64_t> shape) {
  return add_strided(name, dtype, std::move(shape), true);
}

Buffer& CaseBuilder::add_strided(const std::string& name, DType dtype,
                                 std::vector<std::int64_t> shape, bool loose) {
  Layout layout{0, dense_strides(shape)};
  if (options_.gaps && options_.variety != 0 && (shape.size() >= 2 || (loose && !shape.empty()))) {
    layout = any_gaps(Random(options_.variety, "layout of " + name), shape, loose);
  } else if (options_.gaps && shape.size() >= 2) {
    layout = usual_gaps(random("layout of " + name), shape);
  }
  call_.buffers.emplace_back(name, dtype, std::move(shape), std::move(layout.strides),
                             layout.shift);
  return call_.buffers.back();
}

TensorView CaseBuilder::normal(const std::string& name, DType dtype,
                               std::vector<std::int64_t> shape, double mean, double deviation) {
  Buffer& buffer = add(name, dtype, std::move(shape));
  buffer.fill_normal(seed(), mean, deviation);
  return buffer.view();
}

TensorView CaseBuilder::loose_normal(const std::string& name, DType dtype,
                                     std::vector<std::int64_t> shape, double mean,
                                     double deviation) {
  Buffer& buffer = add_loose(name, dtype, std::move(shape));
  buffer.fill_normal(seed(), mean, deviation);
  return buffer.view();
}

TensorView CaseBuilder::output(const std::string& name, DType dtype,
                               std::vector<std::int64_t> shape) {
  return add(name, dtype, std::move(shape)).view();
}

TensorView CaseBuilder::indices(const std::string& name, const std::vector<std::int64_t>& values,
                                std::vector<std::int64_t> shape) {
  if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
  DType dtype = options_.wide_indices ? DType::kInt64 : DType::kInt32;
  if (!may_be_negative(name) && has(("uint32 " + name).c_str(), 0.3)) dtype = DType::kUInt32;
  Buffer& buffer = add_loose(name, dtype, std::move(shape));
  buffer.fill_by(
      [&](std::int64_t i) { return static_cast<double>(values[static_cast<std::size_t>(i)]); });
  return buffer.view();
}

Rows CaseBuilder::rows(const std::vector<std::int64_t>& lengths, bool ragged) const {
  Rows rows;
  rows.lengths = lengths;
  const Random draw = random("rows");
  const std::int64_t count = rows.count();
  for (std::int64_t row = 0; row < count; ++row) {
    if (ragged && options_.starts) rows.total += draw.below(row, 4);
    rows.begins.push_back(ragged ? rows.total : 0);
    rows.total += lengths[static_cast<std::size_t>(row)];
  }
  if (ragged && options_.starts) rows.total += 2;

  const bool roomy = options_.shuffled || options_.elsewhere;
  rows.pool = spec_.slots != 0 ? spec_.slots : roomy ? 2 * count + kSpareSlots : count;
  if (options_.padding && rows.pool > count) rows.first_slot = draw.below(-1, 2);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(rows.pool - rows.first_slot));
  std::iota(slots.begin(), slots.end(), rows.first_slot);
  if (options_.shuffled) shuffle(slots, random("slots"));

  auto spare = static_cast<std::size_t>(count);
  for (std::int64_t row = 0; row < count; ++row) {
    const bool padded = options_.padding && draw.chance(row + (1 << 21), kPaddedShare);
    const std::int64_t slot = slots[static_cast<std::size_t>(row)];
    std::int64_t write = slot;
    if (options_.elsewhere && draw.chance(row + (1 << 22), kUnwrittenShare)) {
      write = rows.first_slot - 1;
    } else if (options_.elsewhere && spare < slots.size() &&
               draw.chance(row + (1 << 23), kElsewhereShare)) {
      write = slots[spare++];
    }
    rows.padded.push_back(padded);
    rows.read.push_back(padded ? rows.first_slot - 1 : slot);
    rows.write.push_back(padded ? kNobody : write);
  }
  return rows;
}

// By its name, so that the dtype does not depend on what a tensor happens to hold.
bool CaseBuilder::may_be_negative(const std::string& name) const {
  if (name == "read_slots") return options_.padding;
  if (name == "cache.page_table") return has("negative pages", 0.5);
  return name == "write_slots" || name == "step_slots" || name == "slots" ||
         name == "checkpoint_slots" || name == "checkpoint_offsets";
}

// The true slot in one column, poisonous ones in the others; a column past the end is clamped.
void CaseBuilder::set_read_table(TensorView& slots, TensorView& columns, const Rows& rows) {
  const Random draw = random("read_columns");
  std::vector<std::int64_t> table, column;
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const std::int64_t c = draw.below(row, kTableColumns + 1);
    for (std::int64_t i = 0; i < kTableColumns; ++i) {
      const bool used = i == std::min(c, kTableColumns - 1);
      table.push_back(used ? rows.read[static_cast<std::size_t>(row)] : kNobody);
    }
    column.push_back(c);
  }
  slots = indices("read_slots", table, {rows.count(), kTableColumns});
  columns = indices("read_columns", column);
}

TensorView CaseBuilder::fresh_rows(const TensorView& pool, const Rows& rows) {
  const Random draw = random("has_initial_state");
  const DType dtype = has("bool mask", 0.5) ? DType::kBool : DType::kUInt8;
  Buffer& mask = add_loose("has_initial_state", dtype, {rows.count()});
  mask.fill_by([&](std::int64_t row) { return draw.chance(row, 0.5) ? 1 : 0; });
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const std::int64_t slot = rows.read[static_cast<std::size_t>(row)];
    if (mask.get(row) == 0 && slot >= rows.first_slot) poison(pool.slice(0, slot, 1));
  }
  return mask.view();
}

void CaseBuilder::poison_tokens(const TensorView& view, const Rows& rows, bool ragged) const {
  if (!options_.padding && !(ragged && options_.starts)) return;
  if (!ragged) {
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      if (rows.padded[static_cast<std::size_t>(row)]) poison(view.slice(0, row, 1));
    }
    return;
  }
  std::int64_t end = 0;  // of the last row that is read
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    if (rows.padded[static_cast<std::size_t>(row)]) continue;
    const std::int64_t begin = rows.begins[static_cast<std::size_t>(row)];
    poison(view.slice(0, end, begin - end));
    end = begin + rows.lengths[static_cast<std::size_t>(row)];
  }
  poison(view.slice(0, end, rows.total - end));
}

void CaseBuilder::poison_slots(const TensorView& pool, const Rows& rows) const {
  std::vector<bool> read(static_cast<std::size_t>(rows.pool), false);
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const std::int64_t slot = rows.read[static_cast<std::size_t>(row)];
    if (slot >= rows.first_slot) read[static_cast<std::size_t>(slot)] = true;
  }
  for (std::int64_t slot = 0; slot < rows.pool; ++slot) {
    if (!read[static_cast<std::size_t>(slot)]) poison(pool.slice(0, slot, 1));
  }
}

Call CaseBuilder::finish(Params params) && {
  call_.params = std::move(params);
  return std::move(call_);
}

}  // namespace hyla::testing

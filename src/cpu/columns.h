// Columns of small matrices, rows of a few numbers of any dtype, as lines of floats: taps of a
// convolution's weights, windows of its pool. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_COLUMNS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_COLUMNS_H_
#undef HYLA_CPU_COLUMNS_H_
#else
#define HYLA_CPU_COLUMNS_H_
#endif

#include "cpu/lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Columns of a matrix whose rows are contiguous and follow each other, in registers: value
// kColumns * i + j of kColumns vectors becomes lane i of vector j, one shuffle of two vectors after
// another.
template <int kColumns, int kColumn, int kVector, int... kLane>
HYLA_INLINE auto column_shuffle(F so_far, F next, std::integer_sequence<int, kLane...>) {
  constexpr int kBegin = kVector * kLanes;
  return __builtin_shufflevector(
      raw(so_far), raw(next),
      (kColumns * kLane + kColumn < kBegin ? (kVector == 1 ? kColumns * kLane + kColumn : kLane)
       : kColumns * kLane + kColumn < kBegin + kLanes ? kColumns * kLane + kColumn - kBegin + kLanes
                                                      : 0)...);
}
template <int kColumns, int kColumn, int kVector = 1>
HYLA_INLINE F column_of(const F* rows, F so_far) {
  if constexpr (kVector == kColumns) {
    return so_far;
  } else {
    constexpr std::make_integer_sequence<int, kLanes> lanes{};
    return column_of<kColumns, kColumn, kVector + 1>(
        rows, from_raw(column_shuffle<kColumns, kColumn, kVector>(so_far, rows[kVector], lanes)));
  }
}
// The way back: vector kVector of the rows.
template <int kColumns, int kVector, int kColumn, int... kLane>
HYLA_INLINE auto row_shuffle(F so_far, F next, std::integer_sequence<int, kLane...>) {
  constexpr int kBegin = kVector * kLanes;
  return __builtin_shufflevector(
      raw(so_far), raw(next),
      ((kBegin + kLane) % kColumns == kColumn ? (kBegin + kLane) / kColumns + kLanes
       : kColumn > 1                          ? kLane
       : (kBegin + kLane) % kColumns == 0     ? (kBegin + kLane) / kColumns
                                              : 0)...);
}
template <int kColumns, int kVector, int kColumn = 1>
HYLA_INLINE F row_of(const F* columns, F so_far) {
  if constexpr (kColumn == kColumns) {
    return so_far;
  } else {
    constexpr std::make_integer_sequence<int, kLanes> lanes{};
    return row_of<kColumns, kVector, kColumn + 1>(
        columns,
        from_raw(row_shuffle<kColumns, kVector, kColumn>(so_far, columns[kColumn], lanes)));
  }
}

template <class T, int... kColumn>
void load_columns(const T* from, std::int64_t count, float* to, std::int64_t to_stride,
                  std::integer_sequence<int, kColumn...>) {
  constexpr int kColumns = sizeof...(kColumn);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F rows[] = {load(from + i * kColumns + kColumn * kLanes)...};
    (store(column_of<kColumns, kColumn>(rows, rows[0]), to + kColumn * to_stride + i), ...);
  }
  for (; i < count; ++i) {
    ((to[kColumn * to_stride + i] = static_cast<float>(from[i * kColumns + kColumn])), ...);
  }
}
template <class T, int... kColumn>
void store_columns(const float* const* from, std::int64_t count, T* to,
                   std::integer_sequence<int, kColumn...>) {
  constexpr int kColumns = sizeof...(kColumn);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F columns[] = {load(from[kColumn] + i)...};
    (store(row_of<kColumns, kColumn>(columns, columns[0]), to + i * kColumns + kColumn * kLanes),
     ...);
  }
  for (; i < count; ++i) ((to[i * kColumns + kColumn] = T(from[kColumn][i])), ...);
}

// What load_columns and store_columns are made for: [count, columns] without gaps.
constexpr std::int64_t kMostColumns = 4;
inline bool columns_are_dense(std::int64_t columns, std::int64_t row_stride,
                              std::int64_t column_stride) {
  return columns >= 2 && columns <= kMostColumns && column_stride == 1 && row_stride == columns;
}
template <class T>
void load_columns(const T* from, std::int64_t columns, std::int64_t count, float* to,
                  std::int64_t to_stride) {
  if (columns == 2) {
    load_columns(from, count, to, to_stride, std::make_integer_sequence<int, 2>{});
  } else if (columns == 3) {
    load_columns(from, count, to, to_stride, std::make_integer_sequence<int, 3>{});
  } else {
    load_columns(from, count, to, to_stride, std::make_integer_sequence<int, 4>{});
  }
}
template <class T>
void store_columns(const float* const* from, std::int64_t columns, std::int64_t count, T* to) {
  if (columns == 2) {
    store_columns(from, count, to, std::make_integer_sequence<int, 2>{});
  } else if (columns == 3) {
    store_columns(from, count, to, std::make_integer_sequence<int, 3>{});
  } else {
    store_columns(from, count, to, std::make_integer_sequence<int, 4>{});
  }
}

// Column j of `count` rows goes to to[j * to_stride + ...].
inline void load_columns(const void* data, DType dtype, std::int64_t offset,
                         std::int64_t row_stride, std::int64_t column_stride, std::int64_t columns,
                         std::int64_t count, float* to, std::int64_t to_stride) {
  if (!columns_are_dense(columns, row_stride, column_stride)) {
    for (std::int64_t j = 0; j < columns; ++j) {
      load_line(data, dtype, offset + j * column_stride, row_stride, count, to + j * to_stride);
    }
    return;
  }
  switch (dtype) {
    case DType::kBFloat16:
      return load_columns(static_cast<const bfloat16*>(data) + offset, columns, count, to,
                          to_stride);
    case DType::kFloat16:
      return load_columns(static_cast<const float16*>(data) + offset, columns, count, to,
                          to_stride);
    default:
      return load_columns(static_cast<const float*>(data) + offset, columns, count, to, to_stride);
  }
}
// Column j comes from from[j]; the columns are dense.
inline void store_columns(const float* const* from, std::int64_t columns, std::int64_t count,
                          void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::kBFloat16:
      return store_columns(from, columns, count, static_cast<bfloat16*>(data) + offset);
    case DType::kFloat16:
      return store_columns(from, columns, count, static_cast<float16*>(data) + offset);
    default:
      return store_columns(from, columns, count, static_cast<float*>(data) + offset);
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_COLUMNS_H_

// Lines of numbers of any dtype and stride, as floats. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_LINES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_LINES_H_
#undef HYLA_CPU_LINES_H_
#else
#define HYLA_CPU_LINES_H_
#endif

#include "cpu/simd.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

template <class T>
void load_line(const T* from, std::int64_t stride, std::int64_t count, float* to) {
  if (stride == 1) return load_all(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i * stride]);
}
template <class T>
void store_line(const float* from, std::int64_t count, T* to, std::int64_t stride) {
  if (stride == 1) return store_all(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i * stride] = T(from[i]);
}

inline void load_line(const void* data, DType dtype, std::int64_t offset, std::int64_t stride,
                      std::int64_t count, float* to) {
  switch (dtype) {
    case DType::kBFloat16:
      return load_line(static_cast<const bfloat16*>(data) + offset, stride, count, to);
    case DType::kFloat16:
      return load_line(static_cast<const float16*>(data) + offset, stride, count, to);
    default:
      return load_line(static_cast<const float*>(data) + offset, stride, count, to);
  }
}
inline void store_line(const float* from, std::int64_t count, void* data, DType dtype,
                       std::int64_t offset, std::int64_t stride) {
  switch (dtype) {
    case DType::kBFloat16:
      return store_line(from, count, static_cast<bfloat16*>(data) + offset, stride);
    case DType::kFloat16:
      return store_line(from, count, static_cast<float16*>(data) + offset, stride);
    default:
      return store_line(from, count, static_cast<float*>(data) + offset, stride);
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_LINES_H_

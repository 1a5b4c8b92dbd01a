// Denormal numbers become zero while this lives: a state that decays towards zero would otherwise
// cost a microcode trap at every step. The caller's mode comes back with the destructor.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace hyla::cpu {

class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushResults | kZeroOperands); }
  ~FlushDenormals() { _mm_setcsr(before_); }
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ | kFlush));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }
#else
  FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kFlushResults = 0x8000, kZeroOperands = 0x0040;
  unsigned before_;
#elif defined(__aarch64__)
  static constexpr unsigned long kFlush = 1ul << 24;
  unsigned long before_ = 0;
#endif
};

}  // namespace hyla::cpu

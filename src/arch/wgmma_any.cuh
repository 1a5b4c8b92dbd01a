// wgmma of any width: 64 x N (+)= 64 x 16 by 16 x N in float32; operands as wgmma.cuh has them.
// Thread t of the warpgroup holds, in d[4 j ... 4 j + 3], columns 8 j + 2 (t % 4) + {0, 1} of row
// 16 (t / 32) + t % 32 / 4, then the same columns of the row 8 below. Sixteen columns of that,
// rounded and packed in pairs, are a fragment of A in registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "arch/wgmma.cuh"

namespace hyla::arch {

// Tiles whose groups of eight 128-byte rows (1024 bytes) do not follow one another: `groups` bytes
// from one to the next. K-major: along the rows, the next 16 of k are 32 bytes on. MN-major: along
// k, the next 64 of m or n are `leading` bytes on.
__device__ __forceinline__ WgmmaDescriptor strided_descriptor(std::uint32_t address,
                                                              std::uint32_t groups,
                                                              std::uint32_t leading = 0) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62;
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(groups >> 4) << 32 | kSwizzle128;
}

// ss: both operands from shared memory; rs: A from registers. accumulate: false sets D.
template <class Element, int N>
struct Wgmma;

// An asm statement takes literal operand numbers, so there is one specialisation a width, made by
// a macro: no other construct of the language can.
#define HYLA_REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define HYLA_REGISTERS_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define HYLA_REGISTERS_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define HYLA_REGISTERS_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define HYLA_REGISTERS_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define HYLA_REGISTERS_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define HYLA_REGISTERS_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define HYLA_REGISTERS_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define HYLA_REGISTERS_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define HYLA_REGISTERS_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define HYLA_REGISTERS_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define HYLA_REGISTERS_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define HYLA_REGISTERS_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define HYLA_REGISTERS_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define HYLA_REGISTERS_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define HYLA_REGISTERS_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define HYLA_OPERANDS(i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define HYLA_REGISTERS_UP_TO_8 HYLA_REGISTERS_0
#define HYLA_OPERANDS_UP_TO_8 HYLA_OPERANDS(0)
#define HYLA_REGISTERS_UP_TO_16 HYLA_REGISTERS_UP_TO_8 ", " HYLA_REGISTERS_1
#define HYLA_OPERANDS_UP_TO_16 HYLA_OPERANDS_UP_TO_8, HYLA_OPERANDS(8)
#define HYLA_REGISTERS_UP_TO_24 HYLA_REGISTERS_UP_TO_16 ", " HYLA_REGISTERS_2
#define HYLA_OPERANDS_UP_TO_24 HYLA_OPERANDS_UP_TO_16, HYLA_OPERANDS(16)
#define HYLA_REGISTERS_UP_TO_32 HYLA_REGISTERS_UP_TO_24 ", " HYLA_REGISTERS_3
#define HYLA_OPERANDS_UP_TO_32 HYLA_OPERANDS_UP_TO_24, HYLA_OPERANDS(24)
#define HYLA_REGISTERS_UP_TO_40 HYLA_REGISTERS_UP_TO_32 ", " HYLA_REGISTERS_4
#define HYLA_OPERANDS_UP_TO_40 HYLA_OPERANDS_UP_TO_32, HYLA_OPERANDS(32)
#define HYLA_REGISTERS_UP_TO_48 HYLA_REGISTERS_UP_TO_40 ", " HYLA_REGISTERS_5
#define HYLA_OPERANDS_UP_TO_48 HYLA_OPERANDS_UP_TO_40, HYLA_OPERANDS(40)
#define HYLA_REGISTERS_UP_TO_56 HYLA_REGISTERS_UP_TO_48 ", " HYLA_REGISTERS_6
#define HYLA_OPERANDS_UP_TO_56 HYLA_OPERANDS_UP_TO_48, HYLA_OPERANDS(48)
#define HYLA_REGISTERS_UP_TO_64 HYLA_REGISTERS_UP_TO_56 ", " HYLA_REGISTERS_7
#define HYLA_OPERANDS_UP_TO_64 HYLA_OPERANDS_UP_TO_56, HYLA_OPERANDS(56)
#define HYLA_REGISTERS_UP_TO_72 HYLA_REGISTERS_UP_TO_64 ", " HYLA_REGISTERS_8
#define HYLA_OPERANDS_UP_TO_72 HYLA_OPERANDS_UP_TO_64, HYLA_OPERANDS(64)
#define HYLA_REGISTERS_UP_TO_80 HYLA_REGISTERS_UP_TO_72 ", " HYLA_REGISTERS_9
#define HYLA_OPERANDS_UP_TO_80 HYLA_OPERANDS_UP_TO_72, HYLA_OPERANDS(72)
#define HYLA_REGISTERS_UP_TO_88 HYLA_REGISTERS_UP_TO_80 ", " HYLA_REGISTERS_10
#define HYLA_OPERANDS_UP_TO_88 HYLA_OPERANDS_UP_TO_80, HYLA_OPERANDS(80)
#define HYLA_REGISTERS_UP_TO_96 HYLA_REGISTERS_UP_TO_88 ", " HYLA_REGISTERS_11
#define HYLA_OPERANDS_UP_TO_96 HYLA_OPERANDS_UP_TO_88, HYLA_OPERANDS(88)
#define HYLA_REGISTERS_UP_TO_104 HYLA_REGISTERS_UP_TO_96 ", " HYLA_REGISTERS_12
#define HYLA_OPERANDS_UP_TO_104 HYLA_OPERANDS_UP_TO_96, HYLA_OPERANDS(96)
#define HYLA_REGISTERS_UP_TO_112 HYLA_REGISTERS_UP_TO_104 ", " HYLA_REGISTERS_13
#define HYLA_OPERANDS_UP_TO_112 HYLA_OPERANDS_UP_TO_104, HYLA_OPERANDS(104)
#define HYLA_REGISTERS_UP_TO_120 HYLA_REGISTERS_UP_TO_112 ", " HYLA_REGISTERS_14
#define HYLA_OPERANDS_UP_TO_120 HYLA_OPERANDS_UP_TO_112, HYLA_OPERANDS(112)
#define HYLA_REGISTERS_UP_TO_128 HYLA_REGISTERS_UP_TO_120 ", " HYLA_REGISTERS_15
#define HYLA_OPERANDS_UP_TO_128 HYLA_OPERANDS_UP_TO_120, HYLA_OPERANDS(120)
// P0 to P6: the numbers of the operands behind the COUNT accumulators.
#define HYLA_WGMMA(ELEMENT, PTX, N, COUNT, P0, P1, P2, P3, P4, P5, P6)                             \
  template <>                                                                                      \
  struct Wgmma<ELEMENT, N> {                                                                       \
    using Accumulators = float[COUNT];                                                             \
    template <bool TransposeA = false, bool TransposeB = false>                                    \
    static __device__ __forceinline__ void ss(Accumulators& d, std::uint64_t a, std::uint64_t b,   \
                                              bool accumulate) {                                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P2                                         \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." PTX "." PTX                   \
                   " {" HYLA_REGISTERS_UP_TO_##COUNT "}, %" P0 ", %" P1 ", p, 1, 1, %" P3 ", %" P4 \
                                                     ";\n}"                                        \
                   : HYLA_OPERANDS_UP_TO_##COUNT                                                   \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(int{TransposeA}),      \
                     "n"(int{TransposeB}));                                                        \
    }                                                                                              \
    template <bool TransposeB = false>                                                             \
    static __device__ __forceinline__ void rs(Accumulators& d, std::uint32_t a0, std::uint32_t a1, \
                                              std::uint32_t a2, std::uint32_t a3, std::uint64_t b, \
                                              bool accumulate) {                                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P5                                         \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." PTX "." PTX                   \
                   " {" HYLA_REGISTERS_UP_TO_##COUNT "}, {%" P0 ", %" P1 ", %" P2 ", %" P3         \
                                                     "}, %" P4 ", p, 1, 1, %" P6 ";\n}"            \
                   : HYLA_OPERANDS_UP_TO_##COUNT                                                   \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b),                                   \
                     "r"(static_cast<int>(accumulate)), "n"(int{TransposeB}));                     \
    }                                                                                              \
  };

HYLA_WGMMA(__nv_bfloat16, "bf16", 32, 16, "16", "17", "18", "19", "20", "21", "22")
HYLA_WGMMA(__half, "f16", 32, 16, "16", "17", "18", "19", "20", "21", "22")
HYLA_WGMMA(__nv_bfloat16, "bf16", 64, 32, "32", "33", "34", "35", "36", "37", "38")
HYLA_WGMMA(__half, "f16", 64, 32, "32", "33", "34", "35", "36", "37", "38")
HYLA_WGMMA(__nv_bfloat16, "bf16", 80, 40, "40", "41", "42", "43", "44", "45", "46")
HYLA_WGMMA(__half, "f16", 80, 40, "40", "41", "42", "43", "44", "45", "46")
HYLA_WGMMA(__nv_bfloat16, "bf16", 128, 64, "64", "65", "66", "67", "68", "69", "70")
HYLA_WGMMA(__half, "f16", 128, 64, "64", "65", "66", "67", "68", "69", "70")
HYLA_WGMMA(__nv_bfloat16, "bf16", 256, 128, "128", "129", "130", "131", "132", "133", "134")
HYLA_WGMMA(__half, "f16", 256, 128, "128", "129", "130", "131", "132", "133", "134")
#undef HYLA_WGMMA
#undef HYLA_OPERANDS

// The same with the four registers of A in an array: 16 columns of it are 8 accumulators, packed in
// pairs, in order. B is K-major, or MN-major with TransposeB.
template <class Element, int N, bool TransposeB = false>
__device__ __forceinline__ void wgmma_rs(float (&d)[N / 2], const std::uint32_t* a,
                                         WgmmaDescriptor b, bool accumulate) {
  Wgmma<Element, N>::template rs<TransposeB>(d, a[0], a[1], a[2], a[3], b, accumulate);
}

}  // namespace hyla::arch

// The way of keys and values into shared memory: 16-byte asynchronous copies, row by row, into a
// ring that one warp (or a few that look at the same keys) has for itself. Pages are looked up one
// unit ahead.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/cp_async_once.cuh"
#include "arch/shared_address.cuh"
#include "device/reduce.cuh"
#include "ops/attention_decode/work.cuh"

namespace hyla::attention::decode {

__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// Where a lane's token lies: steps of the values, elements of the scales.
struct LanePlace {
  std::uint32_t row = kNowhere, scale = 0;
};

// The same while its page may still be on its way: what lies before the token is known.
struct AskedPlace {
  std::uint32_t outer = kNowhere, high = 0;  // page, and the upper half of a wide entry
  std::uint32_t row = 0, scale = 0;
};

// Of an operand: null where there is none.
struct LaneAddresses {
  const char *k = nullptr, *v = nullptr;
  const float *k_scale = nullptr, *v_scale = nullptr;
};

// A warp's place among those of its CTA: which keys, which head, and which rows of a ring that it
// shares.
struct Seat {
  int part, head, member;
};

template <class Shape>
class Ring {
 public:
  __device__ __forceinline__ Ring(const Arguments& a, const Segment* segments, std::uint32_t tiles,
                                  std::uint32_t scales, const Seat& seat)
      : given_(given<Shape>(a)),
        a_(a.cache),
        segments_(segments),
        tiles_(tiles),
        scales_(scales),
        part_(seat.part),
        head_(seat.head),
        member_(seat.member),
        lane_(static_cast<int>(threadIdx.x) & 31) {}

  // So many segments are listed now.
  __device__ __forceinline__ void open(int count) {
    count_ = count;
    if (!exhausted()) return;
    enter(at_);
    next_ = look_up();
  }
  // There is nothing to fill a slot with.
  __device__ __forceinline__ bool exhausted() const { return next_head_ < 0; }

  // Until the oldest tile is there.
  __device__ __forceinline__ void wait() const {
    arch::wait_copies<Shape::kSlots - 1>();
    meet();
  }
  __device__ __forceinline__ std::uint32_t tile(int slot) const {
    return tiles_ + slot * Shape::kTileBytes;
  }
  __device__ __forceinline__ std::uint32_t scales(int slot) const {
    return scales_ + slot * (Shape::kTileKeys * 4);
  }

  // The tile of the slot has been read; the next keys or values take its place.
  template <bool kValues>
  __device__ __forceinline__ void refill(int slot) {
    meet();
    if constexpr (kValues) {
      issue_values(slot);
    } else {
      issue_keys(slot);
    }
  }
  // The next unit's keys, then its values.
  __device__ __forceinline__ void issue_keys(int slot) {
    current_ = found(next_);
    current_head_ = next_head_;
    if (current_head_ >= 0) {
      advance();
      next_ = look_up();
      if constexpr (!kOperands) {
        complete_ = __all_sync(device::kFullWarp, current_.row != kNowhere);
      }
    }
    if constexpr (kOperands) {
      issue_found(slot, current_.k, a_.k_chunks, current_.k_scale);
    } else {
      issue(slot, a_.k + current_head_ * a_.k_head_bytes, a_.k_step, a_.k_chunks, a_.k_scales);
    }
  }
  __device__ __forceinline__ void issue_values(int slot) {
    if constexpr (kOperands) {
      issue_found(slot, current_.v, a_.v_chunks, current_.v_scale);
    } else {
      issue(slot, a_.v + current_head_ * a_.v_head_bytes, a_.v_step, a_.v_chunks, a_.v_scales);
    }
  }

 private:
  static constexpr bool kOperands = over_operands<Shape>;
  using Place = std::conditional_t<kOperands, LaneAddresses, LanePlace>;
  using Asked = std::conditional_t<kOperands, LaneAddresses, AskedPlace>;
  static constexpr int kLanesPerRow = Shape::kRowBytes / 16, kRowsAtOnce = 32 / kLanesPerRow;
  static constexpr int kOwnRows = Shape::kTileKeys / Shape::kSharing;  // that this warp copies
  static constexpr int kSteps = kOwnRows / kRowsAtOnce > 0 ? kOwnRows / kRowsAtOnce : 1;

  __device__ __forceinline__ void meet() const {
    if constexpr (Shape::kSharing == 1) {
      __syncwarp();
    } else {
      const int ring = static_cast<int>(threadIdx.x) / (32 * Shape::kSharing);
      asm volatile("bar.sync %0, %1;" ::"r"(ring + 1), "n"(32 * Shape::kSharing) : "memory");
    }
  }

  __device__ __forceinline__ void enter(int index) {
    at_ = index;
    while (at_ < count_) {
      const Segment& segment = segments_[at_];
      key_ = segment.begin + part_ * Shape::kTileKeys;
      end_ = segment.end;
      if (key_ < end_) return;
      ++at_;
    }
  }

  // Nothing here waits for the page table.
  __device__ __forceinline__ Asked look_up() {
    Asked place;
    next_head_ = -1;
    if (at_ >= count_) return place;
    const Segment& segment = segments_[at_];
    const RingSegment row = segment;
    next_head_ = row.first_head + head_;
    const int token = key_ + member_ * kOwnRows + (lane_ & (kOwnRows - 1));
    const bool there = token >= row.first_seen && token < end_;
    if constexpr (kOperands) {
      if (!there) return place;
      const auto key = static_cast<std::uint32_t>(token);
      const auto head = static_cast<std::uint32_t>(next_head_);
      place.k = address(given_.k.template block_paged_ptr<1>(segment.origin, key, head));
      place.v = address(given_.v.template block_paged_ptr<1>(segment.origin, key, head));
      if constexpr (Shape::kQuantised) {
        place.k_scale = given_.key_scale(segment.origin, token, next_head_);
        place.v_scale = given_.value_scale(segment.origin, token, next_head_);
      }
    } else {
      ask(segment, row.table, token, there, place);
    }
    return place;
  }

  static __device__ __forceinline__ const char* address(const void* row) {
    return static_cast<const char*>(row);
  }

  // In the cache.
  __device__ __forceinline__ void ask(const Segment& segment, const char* table, int token,
                                      bool there, AskedPlace& place) const {
    auto rest = static_cast<std::uint32_t>(token);
    if (a_.kind == Kind::kPaged) {
      const int column = a_.page_of(token);
      const char* entry = table + static_cast<std::uint64_t>(static_cast<std::uint32_t>(column)) *
                                      static_cast<std::uint32_t>(a_.table_bytes);
      place.outer = load_entry(entry, there, kNowhere);
      if (a_.wide_table) place.high = load_entry(entry + 4, there, 0);
      rest -= static_cast<std::uint32_t>(column * a_.tokens);
      place.row = rest * a_.token_steps;
      if constexpr (Shape::kQuantised) place.scale = rest * a_.scale_token;
    } else {
      place.outer = there ? 0 : kNowhere;
      place.row = segment.origin + rest * a_.token_steps;
      if constexpr (Shape::kQuantised) place.scale = segment.scale_origin + rest * a_.scale_token;
    }
  }
  // The compiler would move a plain load to where it is used.
  static __device__ __forceinline__ std::uint32_t load_entry(const char* from, bool there,
                                                             std::uint32_t otherwise) {
    std::uint32_t x = otherwise;
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.s32 there, %2, 0;\n"
        "@there ld.global.nc.u32 %0, [%1];\n"
        "}"
        : "+r"(x)
        : "l"(from), "r"(static_cast<int>(there)));
    return x;
  }

  __device__ __forceinline__ LanePlace found(const AskedPlace& asked) const {
    LanePlace place;
    if (asked.high != 0 || asked.outer >= static_cast<std::uint32_t>(a_.outers)) return place;
    place.row = asked.outer * a_.outer_steps + asked.row;
    if constexpr (Shape::kQuantised) place.scale = asked.outer * a_.scale_outer + asked.scale;
    return place;
  }
  static const __device__ __forceinline__ LaneAddresses& found(const LaneAddresses& addresses) {
    return addresses;
  }

  __device__ __forceinline__ void advance() {
    if (at_ >= count_) return;
    key_ += Shape::kParts * Shape::kTileKeys;
    if (key_ >= end_) enter(at_ + 1);
  }

  __device__ __forceinline__ void issue(int slot, const char* base, std::uint32_t step, int chunks,
                                        const float* scales) {
    if (current_head_ >= 0) {
      if (complete_ && chunks == kLanesPerRow && a_.units_in_line) {
        copy_unit(slot, base, step);
      } else if (complete_ && chunks == kLanesPerRow) {
        copy_rows<true>(slot, base, step, chunks);
      } else {
        copy_rows<false>(slot, base, step, chunks);
      }
      if constexpr (Shape::kQuantised) {
        if (scales != nullptr && lane_ < kOwnRows) {
          const bool there = current_.row != kNowhere;
          copy_4(this->scales(slot) + (member_ * kOwnRows + lane_) * 4,
                 scales + current_head_ * a_.scale_head + (there ? current_.scale : 0),
                 there ? 4 : 0);
        }
      }
    }
    arch::commit_copies();
  }

  // Where a lane's first row goes; those further on differ in their swizzle by constants.
  __device__ __forceinline__ std::uint32_t first_target(int slot, int first, int chunk) const {
    return tile(slot) + (first >> 3) * Shape::kGroupBytes + (chunk >> 3) * 1024 +
           (first & 7) * 128 + (((chunk ^ first) & 7) << 4);
  }
  static __device__ __forceinline__ std::uint32_t target(std::uint32_t first, int row) {
    return (first ^ ((row & 7) << 4)) + (row >> 3) * Shape::kGroupBytes + (row & 7) * 128;
  }

  // Rows of an operand, each wherever it is.
  __device__ __forceinline__ void issue_found(int slot, const char* found, int chunks,
                                              const float* scale) const {
    if (current_head_ >= 0) {
      const int chunk = lane_ % kLanesPerRow, own = lane_ / kLanesPerRow;
      const std::uint32_t to = first_target(slot, own + member_ * kOwnRows, chunk);
      const bool mine = kOwnRows >= kRowsAtOnce || own < kOwnRows;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int row = i * kRowsAtOnce;
        const auto from = static_cast<std::uint64_t>(
            __shfl_sync(device::kFullWarp, reinterpret_cast<unsigned long long>(found),
                        (own + row) & (kOwnRows - 1)));
        if (!mine) continue;
        const bool there = from != 0 && chunk < chunks;
        // Of no bytes, too, the address has to be one.
        const char* source =
            there ? reinterpret_cast<const char*>(from) + chunk * 16 : given_.q.data;
        arch::copy_16(target(to, row), source, there ? 16 : 0);
      }
      if constexpr (Shape::kQuantised) {
        if (lane_ < kOwnRows) {
          const bool there = scale != nullptr;
          copy_4(scales(slot) + (member_ * kOwnRows + lane_) * 4,
                 there ? static_cast<const void*>(scale) : given_.q.data, there ? 4 : 0);
        }
      }
    }
    arch::commit_copies();
  }

  // Rows at equal distances, all there: no lane asks another where they are.
  __device__ __forceinline__ void copy_unit(int slot, const char* base, std::uint32_t step) const {
    const int chunk = lane_ % kLanesPerRow, own = lane_ / kLanesPerRow;
    base += chunk * 16;
    asm volatile("" : "+l"(base));  // one multiply-add gives an address, if this is one register
    std::uint32_t to = first_target(slot, own + member_ * kOwnRows, chunk);
    // Half of it in a uniform register, beside a policy in others, is an illegal instruction
    // (13.0).
    asm volatile("" : "+r"(to));
    if (kOwnRows < kRowsAtOnce && own >= kOwnRows) return;
    const std::uint32_t steps =
        current_.row + static_cast<std::uint32_t>(own - (lane_ & (kOwnRows - 1))) * a_.token_steps;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int row = i * kRowsAtOnce;
      const char* from = base + static_cast<std::uint64_t>(steps + static_cast<std::uint32_t>(row) *
                                                                       a_.token_steps) *
                                    step;
      if constexpr (Shape::kReadOnce) {
        arch::copy_16_once(target(to, row), from, policy_);
      } else {
        arch::copy_16(target(to, row), from);
      }
    }
  }

  template <bool kComplete>
  __device__ __forceinline__ void copy_rows(int slot, const char* base, std::uint32_t step,
                                            int chunks) const {
    const int chunk = lane_ % kLanesPerRow, own = lane_ / kLanesPerRow;
    base += chunk * 16;
    asm volatile("" : "+l"(base));  // one multiply-add gives an address, if this is one register
    std::uint32_t to = first_target(slot, own + member_ * kOwnRows, chunk);
    // Half of it in a uniform register, beside a policy in others, is an illegal instruction
    // (13.0).
    asm volatile("" : "+r"(to));
    const bool mine = kOwnRows >= kRowsAtOnce || own < kOwnRows;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int row = i * kRowsAtOnce;
      const std::uint32_t steps =
          __shfl_sync(device::kFullWarp, current_.row, (own + row) & (kOwnRows - 1));
      const std::uint32_t at = target(to, row);
      if (!mine) continue;
      if constexpr (kComplete) {
        const char* from = base + static_cast<std::uint64_t>(steps) * step;
        if constexpr (Shape::kReadOnce) {
          arch::copy_16_once(at, from, policy_);
        } else {
          arch::copy_16(at, from);
        }
      } else {
        const bool there = steps != kNowhere && chunk < chunks;
        arch::copy_16(at, base + static_cast<std::uint64_t>(there ? steps : 0) * step,
                      there ? 16 : 0);
      }
    }
  }

  const typename Shape::Given& given_;
  const Cache& a_;
  const std::uint64_t policy_ = arch::evict_first();
  const Segment* segments_;
  const std::uint32_t tiles_, scales_;
  const int part_, head_, member_, lane_;
  int count_ = 0, at_ = 0, key_ = 0, end_ = 0;  // of the unit that is looked up next
  Place current_;
  Asked next_;
  int current_head_ = -1, next_head_ = -1;
  bool complete_ = false;
};

}  // namespace hyla::attention::decode

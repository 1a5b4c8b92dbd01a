// Which keys a query sees. Every mask is an interval of key positions.
#ifndef HYLA_ATTENTION_MASK_H_
#define HYLA_ATTENTION_MASK_H_

#include <hyla/host_device.h>

#include <cstdint>

namespace hyla::attention {

struct KeyRange {
  std::int64_t begin = 0, end = 0;  // empty when begin >= end
};

struct Mask {
  bool causal = true;       // key <= query
  std::int64_t window = 0;  // > 0: query - key < window; without causal also key - query < window
  std::int64_t chunk = 0;   // > 0: floor(query / chunk) == floor(key / chunk)

  // Keys 0 <= key < length that the query at `position` sees. The position may be negative (more
  // queries than keys). Sizes up to 2^62 cannot overflow.
  HYLA_HOST_DEVICE constexpr KeyRange visible(std::int64_t position, std::int64_t length) const {
    KeyRange keys{0, length};
    if (causal) keys.end = min(keys.end, position + 1);
    if (window > 0) {
      keys.begin = max(keys.begin, position - window + 1);
      keys.end = min(keys.end, position + window);
    }
    if (chunk > 0) {
      const std::int64_t index = position >= 0 ? position / chunk : -1;
      keys.begin = max(keys.begin, index * chunk);
      keys.end = position >= 0 ? min(keys.end, index * chunk + chunk) : 0;
    }
    if (keys.end < keys.begin) keys.end = keys.begin;
    return keys;
  }

 private:
  static constexpr HYLA_HOST_DEVICE std::int64_t min(std::int64_t a, std::int64_t b) {
    return a < b ? a : b;
  }
  static constexpr HYLA_HOST_DEVICE std::int64_t max(std::int64_t a, std::int64_t b) {
    return a > b ? a : b;
  }
};

}  // namespace hyla::attention

#endif  // HYLA_ATTENTION_MASK_H_

// The instances of the prefill kernel over built-in caches of one byte a value, one a file.
#pragma once

#include "ops/attention_prefill/byte_rows.h"
#include "ops/attention_prefill/launch_bytes.cuh"

namespace hyla::attention {

using BytesLaunch = void(const Queries&, const ByteRows&, const ByteRows&, const TileLaunch&,
                         const Context&);

extern template BytesLaunch launch_bytes<__nv_bfloat16, 64, ByteRows, ByteRows>;
extern template BytesLaunch launch_bytes<__nv_bfloat16, 128, ByteRows, ByteRows>;
extern template BytesLaunch launch_bytes<__nv_bfloat16, 256, ByteRows, ByteRows>;
extern template BytesLaunch launch_bytes<__half, 64, ByteRows, ByteRows>;
extern template BytesLaunch launch_bytes<__half, 128, ByteRows, ByteRows>;
extern template BytesLaunch launch_bytes<__half, 256, ByteRows, ByteRows>;

}  // namespace hyla::attention

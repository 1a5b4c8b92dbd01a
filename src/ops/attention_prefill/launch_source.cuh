// Launching the rows kernel over a source of the user's (hyla/attention_cuda.h).
#pragma once

#include <hyla/attention_rows_kernel.h>

#include "device/launch.h"

namespace hyla::attention::rows {

template <class Source>
void launch(const Queries& queries, const Source& source, const Context& context) {
  const std::int64_t tiles = tile_bound(queries, Source::kPerToken);
  if (tiles == 0) return;
  if (tiles > INT32_MAX || queries.kv_heads > 65535) {
    throw Unsupported("attention.cuda.run",
                      {{"cuda_rows", false, "more than 2^31 tiles or 65535 KV heads"}});
  }
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(queries.kv_heads));
  shape.block = dim3(kThreads);
  shape.shared_bytes = static_cast<unsigned>(shared_bytes(queries.head_dim, queries.value_dim));
  void* arguments[] = {const_cast<Queries*>(&queries), const_cast<Source*>(&source)};
  device::launch(reinterpret_cast<const void*>(attention_rows<Source>), shape, arguments, context);
}

}  // namespace hyla::attention::rows

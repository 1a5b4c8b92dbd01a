// Groups of arguments that several operations read, for their overlap checks.
#pragma once

#include "core/check.h"

namespace hyla {

template <class Params>
void read_gates(core::Overlaps& overlaps, const Params& params) {
  overlaps.reads("gate", params.gate.value);
  overlaps.reads("A_log", params.gate.A_log);
  overlaps.reads("dt_bias", params.gate.dt_bias);
  overlaps.reads("beta", params.beta.value);
}

template <class Params>
void read_slot_tensors(core::Overlaps& overlaps, const Params& params) {
  overlaps.reads("read_slots", params.read_slots);
  overlaps.reads("read_columns", params.read_columns);
  overlaps.reads("write_slots", params.write_slots);
}

template <class Params>
void read_sequence_tensors(core::Overlaps& overlaps, const Params& params) {
  overlaps.reads("cu_seqlens", params.cu_seqlens);
  overlaps.reads("starts", params.starts);
  overlaps.reads("lengths", params.lengths);
}

}  // namespace hyla

// Programmatic dependent launch (PTX ISA 8.0, griddepcontrol). Without the launch attribute both
// are no-ops.
#pragma once

namespace hyla::arch {

// Waits until the memory of the grid before this one on the stream is visible.
__device__ __forceinline__ void wait_for_previous_grid() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next grid start its prologue once every CTA has said so.
__device__ __forceinline__ void let_next_grid_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace hyla::arch

"""Causal depthwise conv1d over a pool of input windows, the step in front of a GDN recurrence:

    y[t, c] = bias[c] + sum over j < W of weight[c, j] * x[t - (W-1) + j, c],   out = silu(y) or y

Inputs before the call come from the row's window in the pool `state` [slots, C, L], L >= W-1; the
call leaves the next window there. Slots, `first_slot`, `out`, `stream` and `impl` are as in hyla.gdn;
`slots` is `read_slots` by a shorter name. `out` may be `x` itself: the projection is written over.
docs/conv.md draws both arrangements of a window.
"""

from __future__ import annotations

from . import _core
from ._dispatch import compiling, traced
from ._typing import T, Tensor

__all__ = ["prefill", "update"]


def prefill(
    x: T,
    weight: Tensor,
    state: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    slots: Tensor | None = None,
    read_slots: Tensor | None = None,
    read_columns: Tensor | None = None,
    write_slots: Tensor | None = None,
    first_slot: int = 0,
    window_offsets: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    checkpoint_offsets: Tensor | None = None,
    checkpoint_slots: Tensor | None = None,
    activation: str | None = "silu",
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """Whole sequences.

    x, out [total, C] with cu_seqlens [N + 1] or starts and lengths [N]; or [B, T, C]; any strides
    weight [C, W], W = 2, 3, 4;  bias [C]
    state  [slots, C, L], updated in place; None: windows start at zero and are dropped
    window_offsets [N]
           where a pool has room for drafts: the column at which a row's window begins; the new one
           begins at column 0. None: a window is its slot's last columns. A pool is used in one of
           the two ways by all its calls
    has_initial_state [N] bool
           False: everything before the sequence is zero, whatever the pool holds
    checkpoint_offsets, checkpoint_slots [N, M]
           the window after that many tokens goes to that slot too
    activation
           "silu", or None
    """
    call = traced("conv_prefill") if compiling() else _core.conv_prefill
    return call(
        x, weight, state, bias, cu_seqlens, starts, lengths,
        slots, read_slots, read_columns, write_slots, first_slot, window_offsets,
        has_initial_state, checkpoint_offsets, checkpoint_slots, activation, out, stream, impl,
    )  # fmt: skip


def update(
    x: T,
    weight: Tensor,
    state: Tensor,
    *,
    bias: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    slots: Tensor | None = None,
    read_slots: Tensor | None = None,
    read_columns: Tensor | None = None,
    write_slots: Tensor | None = None,
    first_slot: int = 0,
    window_offsets: Tensor | None = None,
    commit_lengths: Tensor | None = None,
    activation: str | None = "silu",
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """The next token of every row, or a few drafts.

    x, out [B, C], [B, T, C], or [total, C] with cu_seqlens [B + 1] or starts and lengths [B]
    weight [C, W], W = 2, 3, 4;  bias [C]
    state  [slots, C, L], updated in place
    window_offsets [B]
           the column at which a row's window begins, in a pool with at least W-2+T columns: one less
           than the tokens accepted of the row's last update, 0 after a prefill. None: a window is
           its slot's last columns, and rolls
    commit_lengths [B]
           the window kept is the one after that many tokens; 0: as it was
    activation
           "silu", or None
    """
    call = traced("conv_update") if compiling() else _core.conv_update
    return call(
        x, weight, state, bias, cu_seqlens, starts, lengths,
        slots, read_slots, read_columns, write_slots, first_slot, window_offsets,
        commit_lengths, activation, out, stream, impl,
    )  # fmt: skip


for _function in (prefill, update):
    _core.shorten(_function, f"conv_{_function.__name__}", ())

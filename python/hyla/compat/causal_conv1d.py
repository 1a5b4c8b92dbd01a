"""causal_conv1d_fn and causal_conv1d_update with the signatures of causal-conv1d 1.7: forward only.

Letters: B rows, D channels, T tokens, W the width of the filter (2, 3 or 4), L columns of a window.
`activation` is None, "silu" or "swish". Strides are free everywhere: channels first and channels
last are both read and written in place, and an output has the strides of its input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import conv
from ..errors import InvalidArgument
from ._shared import refuse, refuse_gradients, renamed, shape_of, unsupported

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]


def _activation(activation: str | None) -> str | None:
    if activation not in (None, "silu", "swish"):
        raise unsupported(f"activation: expected None, 'silu' or 'swish', got {activation!r}")
    return None if activation is None else "silu"


def _packed(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor, act: str | None
) -> Tensor:
    """Rows that hold several sequences: the filter does not look from one into another."""
    B, D, T = x.shape
    if tuple(seq_idx.shape) != (B, T):
        raise InvalidArgument("seq_idx", f"shape {[B, T]}", shape_of(seq_idx))
    begins = torch.ones((B, T), dtype=torch.bool, device=x.device)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    starts = begins.flatten().nonzero().flatten()
    offsets = torch.cat([starts, starts.new_tensor([B * T])])
    tokens = x.transpose(1, 2).reshape(B * T, D)
    out = conv.prefill(tokens, weight, bias=bias, cu_seqlens=offsets, activation=act)
    out = out.masked_fill_((seq_idx < 0).reshape(B * T, 1), 0)
    return torch.empty_like(x).copy_(out.view(B, T, D).transpose(1, 2))


@renamed(state="initial_states")
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Whole sequences; returns out [B, D, T], or (out, final states) with return_final_states.

    x [B, D, T];  weight [D, W];  bias [D]
    seq_idx [B, T]: which sequence a token belongs to, where a row holds several; negative: padding,
        whose output is zero. Without initial and final states
    initial_states [B, D, W-1]: the inputs before x, never written; None: zeros
    final_states_out [B, D, W-1]: written and returned instead of a new tensor
    """
    act = _activation(activation)
    refuse_gradients("hyla.compat.causal_conv1d", x=x, weight=weight, bias=bias,
                     initial_states=initial_states)  # fmt: skip
    if x.dim() != 3:
        raise InvalidArgument("x", "shape [B, D, T]", shape_of(x))
    B, D, T = x.shape
    columns = weight.shape[-1] - 1
    if seq_idx is not None:
        if initial_states is not None:
            refuse("initial_states", "none beside seq_idx", "a tensor")
        if return_final_states:
            refuse("return_final_states", "False beside seq_idx", True)
        return _packed(x, weight, bias, seq_idx, act)
    state: Tensor | None = None
    if return_final_states:
        state = final_states_out
        if state is None:
            state = torch.empty((B, columns, D), dtype=x.dtype, device=x.device).transpose(1, 2)
        elif tuple(state.shape) != (B, D, columns):
            raise InvalidArgument("final_states_out", f"shape {[B, D, columns]}", shape_of(state))
        if initial_states is None:
            state.zero_()
        elif state is not initial_states:
            state.copy_(initial_states)
    elif initial_states is not None:
        state = initial_states.clone()
    if initial_states is not None and tuple(initial_states.shape) != (B, D, columns):
        raise InvalidArgument(
            "initial_states", f"shape {[B, D, columns]}", shape_of(initial_states)
        )
    out = torch.empty_like(x)
    conv.prefill(
        x.transpose(1, 2), weight, state, bias=bias, activation=act, out=out.transpose(1, 2)
    )
    if not return_final_states:
        return out
    assert state is not None
    return out, state


def _circular(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: str | None,
    cache_seqlens: Tensor,
    rows: Tensor,
) -> Tensor:
    """conv_state as a ring: token t of row b stands in column (cache_seqlens[b] + t) % L."""
    T, L, before = x.shape[2], conv_state.shape[2], weight.shape[-1] - 1
    if L < before:
        raise InvalidArgument("conv_state", f"at least {before} columns", str(L))
    if not x.is_cuda and bool((rows >= conv_state.shape[0]).any()):
        raise InvalidArgument(
            "conv_state_indices", f"slots below {conv_state.shape[0]}", str(int(rows.max()))
        )
    live = (rows >= 0) & (rows < conv_state.shape[0])
    begin = cache_seqlens.to(torch.int64)[:, None, None]
    slots = torch.where(live, rows, 0).to(torch.int64)[:, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None]
    behind = torch.arange(-before, 0, device=x.device)
    window = conv_state[slots, channels, torch.remainder(begin + behind, L)]
    out = torch.empty_like(x)
    conv.update(
        x.transpose(1, 2), weight, window, bias=bias, activation=act, out=out.transpose(1, 2)
    )
    if x.shape[0] == 0:
        return out
    # Of more than L tokens the last L stay. A row of padding repeats the write of a live row, and
    # where there is none it writes back what is there: nothing waits for the GPU.
    first = max(T - L, 0)
    columns = torch.remainder(begin + torch.arange(first, T, device=x.device), L)
    source = torch.where(live, torch.arange(x.shape[0], device=x.device), live.int().argmax())
    where = slots[source], channels, columns[source]
    kept = x[source, :, first:].to(conv_state.dtype)
    conv_state[where] = torch.where(live.any(), kept, conv_state[where])
    return out.masked_fill_(~live[:, None, None], 0)


@renamed(state="conv_state", slots="conv_state_indices")
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """The next tokens of every row; returns out with the shape of x.

    x [B, D] or [B, D, T];  weight [D, W];  bias [D]
    conv_state [B, D, L], L >= W-1, updated in place: the last L inputs, newest last
    cache_seqlens [B]: the columns are a ring instead, and the first new input goes to column
        cache_seqlens % L
    conv_state_indices [B]: conv_state is a pool, and this is the slot of every row; negative:
        padding, whose output is zero
    """
    act = _activation(activation)
    refuse_gradients("hyla.compat.causal_conv1d", x=x, weight=weight, bias=bias,
                     conv_state=conv_state)  # fmt: skip
    if x.dim() not in (2, 3):
        raise InvalidArgument("x", "shape [B, D] or [B, D, T]", shape_of(x))
    if conv_state.dim() != 3:
        raise InvalidArgument("conv_state", "shape [B, D, L]", shape_of(conv_state))
    if conv_state_indices is None and conv_state.shape[0] != x.shape[0]:
        raise InvalidArgument("conv_state", f"{x.shape[0]} rows", shape_of(conv_state))
    if cache_seqlens is not None:
        rows = conv_state_indices
        if rows is None:
            rows = torch.arange(x.shape[0], device=x.device)
        tokens = x.unsqueeze(-1) if x.dim() == 2 else x
        return _circular(tokens, conv_state, weight, bias, act, cache_seqlens, rows).view(x.shape)
    out = torch.zeros_like(x) if conv_state_indices is not None else torch.empty_like(x)
    one = x.dim() == 2
    conv.update(
        x if one else x.transpose(1, 2), weight, conv_state, bias=bias, slots=conv_state_indices,
        activation=act, out=out if one else out.transpose(1, 2),
    )  # fmt: skip
    return out

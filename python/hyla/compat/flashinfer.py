"""FlashInfer's Gated DeltaNet functions, with the signatures of FlashInfer 0.7.2.

Letters: B rows, T tokens a row, H query and key heads, HV value heads, K and V head dims, N
sequences, Hs = max(query heads, value heads). Everything that FlashInfer takes works here, on the
CPU too, and more does: head dims that are multiples of 8 up to 256, float32 inputs, 16-bit states,
strided inputs. `backend` and `use_cp` choose between FlashInfer's kernels; they are checked and
change nothing, and `_cp_chunk_len` is ignored. Errors that FlashInfer asserts are InvalidArgument
and AssertionError at once.
"""

from __future__ import annotations

import warnings
from typing import Callable, Literal

import torch
from torch import Tensor

from .. import gdn
from .._dispatch import compiling
from ..errors import InvalidArgument
from ._shared import (
    inner_contiguous,
    offsets_and_lengths,
    operand,
    refuse,
    renamed,
    shape_of,
    unsupported,
)

__all__ = [
    "chunk_gated_delta_rule",
    "gated_delta_rule_decode",
    "gated_delta_rule_decode_pretranspose",
    "gated_delta_rule_mtp",
]

_INDEX_DTYPES = (torch.int32, torch.int64)


def _check_choice(argument: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise InvalidArgument(argument, "one of " + ", ".join(map(repr, choices)), repr(value))


def _check_indices(argument: str, indices: Tensor, shape: tuple[int, ...]) -> None:
    if indices.dtype not in _INDEX_DTYPES:
        refuse(argument, "dtype int32 or int64", indices.dtype)
    if indices.shape != shape:
        refuse(argument, f"shape {list(shape)}", shape_of(indices))


def _check_rank(q: Tensor, v: Tensor) -> None:
    if q.ndim != 4:
        refuse("q", "four dimensions", shape_of(q))
    if v.ndim != 4:
        refuse("v", "four dimensions", shape_of(v))


def _into(
    output: Tensor | None,
    dtype: torch.dtype,
    slots: Tensor | None,
    call: Callable[[Tensor | None], Tensor],
) -> Tensor:
    """Runs a call whose output may have a dtype of its own. Padding rows keep what they held."""
    if output is None or output.dtype == dtype:
        return call(output)
    staged = call(torch.zeros_like(output, dtype=dtype))
    if slots is not None:
        live = (slots >= 0).view(-1, *[1] * (output.dim() - 1))
        staged = torch.where(live, staged.to(output.dtype), output)
    return output.copy_(staged)


def _zero_padding(output: Tensor | None, slots: Tensor | None) -> None:
    """FlashInfer writes zeros where hyla leaves rows of padding as they are."""
    if output is not None and slots is not None:
        output.masked_fill_((slots < 0).view(-1, 1, 1, 1), 0)


def _decode_as_given(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    output: Tensor | None,
    l2norm: bool,
    layout: str,
    slots: tuple[Tensor | None, Tensor | None] | None,
) -> Tensor | None:
    """One token a row without a look at the tensors: hyla refuses what it does not take before it
    writes anything. None: the caller finds out why, or makes copies. `slots` None: a row each."""
    rows = v.shape
    if compiling() or len(rows) != 4 or rows[1] != 1 or q.ndim != 4:
        return None
    if slots is None and pool.shape[0] != rows[0]:
        return None
    read, write = slots or (None, None)
    try:
        return gdn.decode(
            q, k, v, pool, a=a, A_log=A_log, dt_bias=dt_bias, b=b, read_slots=read,
            write_slots=write, layout=layout, scale=scale, l2norm=l2norm, out=output,
        )  # fmt: skip
    except InvalidArgument:
        return None


@renamed(out="output")
def gated_delta_rule_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    backend: Literal["auto", "flashinfer", "cake_gdn"] = "auto",
) -> tuple[Tensor, Tensor]:
    """One token a row over states with V innermost; returns (output, state).

    q, k [B, 1, H, K];  v, output [B, 1, HV, V];  a, b [B, 1, HV];  A_log, dt_bias [HV]
    state [B, HV, K, V], updated in place
    """
    _check_choice("backend", backend, ("auto", "flashinfer", "cake_gdn"))
    done = _decode_as_given(
        q, k, v, state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, "kv", None
    )
    if done is not None:
        return done, state
    _check_rank(q, v)
    B, _, HV, V = v.shape
    if state.shape != (B, HV, q.shape[3], V):
        refuse("state", f"shape {[B, HV, q.shape[3], V]}", shape_of(state))
    pool = inner_contiguous(state)
    result = _into(
        output,
        q.dtype,
        None,
        lambda out: gdn.decode(
            inner_contiguous(q), operand(k, q.dtype), operand(v, q.dtype), pool,
            a=a, A_log=A_log, dt_bias=dt_bias, b=b,
            layout="kv", scale=scale, l2norm=use_qk_l2norm, out=out,
        ),
    )  # fmt: skip
    if pool is not state:
        state.copy_(pool)
    return result, state


@renamed(out="output", read_slots="initial_state_indices", write_slots="output_state_indices",
         states_out="intermediate_states_buffer")  # fmt: skip
def gated_delta_rule_decode_pretranspose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    disable_state_update: bool = False,
    backend: Literal["auto", "flashinfer", "cake_gdn", "rubin"] = "auto",
) -> tuple[Tensor, Tensor]:
    """One or more tokens a row over states with K innermost; returns (output, state or pool).

    q, k [B, T, H, K];  v, output [B, T, HV, V];  a, b [B, T, HV];  A_log, dt_bias [HV]
    state [B, HV, V, K], updated in place; or None and a pool:
    initial_state [slots, HV, V, K] with initial_state_indices [B] and, where the new states go
        elsewhere, output_state_indices [B]. A negative initial index: the row is padding, and its
        output is zero for T = 1, as it was for T > 1 (zero where `output` is None). A negative
        output index: the state is not written.
    intermediate_states_buffer [B, >=T, HV, V, K] gets the state after every token, and
    disable_state_update leaves the pool as it is; both for T > 1 only
    """
    _check_choice("backend", backend, ("auto", "flashinfer", "cake_gdn", "rubin"))
    own = initial_state is None and initial_state_indices is None and output_state_indices is None
    pooled = initial_state is not None and initial_state_indices is not None
    if (own or pooled) and not disable_state_update and intermediate_states_buffer is None:
        given = state if own else initial_state
        slots = None if own else (initial_state_indices, output_state_indices)
        if given is not None:
            done = _decode_as_given(
                q, k, v, given, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, "vk", slots
            )
            if done is not None:
                _zero_padding(output, initial_state_indices)
                return done, given
    _check_rank(q, v)
    B, T, HV, V = v.shape
    K = q.shape[3]
    if T == 1 and intermediate_states_buffer is not None:
        raise InvalidArgument("intermediate_states_buffer", "none for one token a row", "a tensor")
    if T == 1 and disable_state_update:
        raise InvalidArgument("disable_state_update", "False for one token a row", "True")
    if initial_state is None:
        if state is None:
            refuse("state", "a tensor where there is no initial_state", None)
        for name, given in (
            ("initial_state_indices", initial_state_indices),
            ("output_state_indices", output_state_indices),
        ):
            if given is not None:
                refuse(name, "none without initial_state", "a tensor")
        if state.shape != (B, HV, V, K):
            refuse("state", f"shape {[B, HV, V, K]}", shape_of(state))
        kept, pool = state, inner_contiguous(state)
    else:
        if initial_state_indices is None:
            refuse("initial_state_indices", "a tensor beside initial_state", None)
        _check_indices("initial_state_indices", initial_state_indices, (B,))
        if output_state_indices is not None:
            _check_indices("output_state_indices", output_state_indices, (B,))
        if initial_state.ndim != 4 or initial_state.shape[1:] != (HV, V, K):
            refuse("initial_state", f"shape [slots, {HV}, {V}, {K}]", shape_of(initial_state))
        if initial_state.stride(-1) != 1 and K > 1:
            refuse("initial_state", "a contiguous last dimension", initial_state.stride())
        kept = pool = initial_state

    def call(out: Tensor | None) -> Tensor:
        tokens = inner_contiguous(q), operand(k, q.dtype), operand(v, q.dtype), pool
        if T == 1:
            return gdn.decode(
                *tokens,
                a=a, A_log=A_log, dt_bias=dt_bias, b=b,
                read_slots=initial_state_indices, write_slots=output_state_indices,
                scale=scale, l2norm=use_qk_l2norm, out=out,
            )  # fmt: skip
        return gdn.mtp(
            *tokens,
            a=a, A_log=A_log, dt_bias=dt_bias, b=b,
            read_slots=initial_state_indices,
            write_slots=None if disable_state_update else output_state_indices,
            states_out=intermediate_states_buffer, update_state=not disable_state_update,
            scale=scale, l2norm=use_qk_l2norm, out=out,
        )  # fmt: skip

    result = _into(output, q.dtype, initial_state_indices, call)
    if T == 1:
        _zero_padding(output, initial_state_indices)
    if pool is not kept:
        kept.copy_(pool)
    return result, kept


@renamed(out="output", state="initial_state", read_slots="initial_state_indices",
         write_slots="output_state_indices", states_out="intermediate_states_buffer",
         step_slots="ssm_state_indices")  # fmt: skip
def gated_delta_rule_mtp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    disable_state_update: bool | None = None,
    use_qk_l2norm: bool = True,
    output_state_indices: Tensor | None = None,
    cache_replayssm: bool = False,
    replayssm_rawv: Tensor | None = None,
    replayssm_rawk: Tensor | None = None,
    replayssm_g: Tensor | None = None,
    replayssm_beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Several tokens a row in order, for drafts; returns (output, initial_state).

    q, k [B, T, H, K];  v, output [B, T, HV, V];  a, b [B, T, HV];  A_log, dt_bias [HV]
    initial_state [slots, HV, V, K] with initial_state_indices [B]; a negative index: the row is
        padding, its output stays as it was (zero where `output` is None)
    disable_state_update None: True with a DeprecationWarning, as in FlashInfer
    output_state_indices [B]: where final states go; a negative one is not written
    intermediate_states_buffer [>=B, >=T, HV, V, K] gets the state after every token; or
    ssm_state_indices [B, T] int32 names the slots that get it (T >= 2, with disable_state_update
        False); the final state is then written separately only with output_state_indices
    cache_replayssm and its buffers are not supported
    """
    if disable_state_update is None:
        warnings.warn(
            "gated_delta_rule_mtp: disable_state_update is taken as True when it is not given; "
            "FlashInfer has announced False. Say which.",
            DeprecationWarning,
            stacklevel=3,
        )
        disable_state_update = True
    if cache_replayssm:
        raise unsupported("cache_replayssm: hyla keeps states, not windows of raw inputs")
    for name, buffer in (
        ("replayssm_rawv", replayssm_rawv),
        ("replayssm_rawk", replayssm_rawk),
        ("replayssm_g", replayssm_g),
        ("replayssm_beta", replayssm_beta),
    ):
        if buffer is not None:
            refuse(name, "none without cache_replayssm", "a tensor")
    _check_rank(q, v)
    B, T, HV, V = v.shape
    if initial_state.ndim != 4 or initial_state.shape[1:] != (HV, V, q.shape[3]):
        refuse("initial_state", f"shape [slots, {HV}, {V}, {q.shape[3]}]", shape_of(initial_state))
    _check_indices("initial_state_indices", initial_state_indices, (B,))
    if output_state_indices is not None:
        _check_indices("output_state_indices", output_state_indices, (B,))
    if ssm_state_indices is not None:
        if intermediate_states_buffer is not None:
            refuse("ssm_state_indices", "none beside intermediate_states_buffer", "a tensor")
        if disable_state_update:
            refuse("disable_state_update", "False beside ssm_state_indices", True)
        if T < 2:
            refuse("ssm_state_indices", "at least two tokens a row", T)
        if ssm_state_indices.dtype != torch.int32:
            refuse("ssm_state_indices", "dtype int32", ssm_state_indices.dtype)
        _check_indices("ssm_state_indices", ssm_state_indices, (B, T))
    result = _into(
        output,
        q.dtype,
        initial_state_indices,
        lambda out: gdn.mtp(
            inner_contiguous(q), operand(k, q.dtype), operand(v, q.dtype), initial_state,
            a=a, A_log=A_log, dt_bias=dt_bias, b=b,
            read_slots=initial_state_indices,
            write_slots=None if disable_state_update else output_state_indices,
            states_out=intermediate_states_buffer, step_slots=ssm_state_indices,
            update_state=not disable_state_update, scale=scale, l2norm=use_qk_l2norm, out=out,
        ),
    )  # fmt: skip
    return result, initial_state


def _check_max_seqlen(max_seqlen: int | None, total: int, sequences: int) -> None:
    if max_seqlen is None:
        return
    least = -(-total // sequences)
    if type(max_seqlen) is not int or not least <= max_seqlen <= total:
        raise InvalidArgument("max_seqlen", f"an int in {least} .. {total}", repr(max_seqlen))


def _check_checkpoints(every: int, states: Tensor | None, starts: Tensor | None) -> None:
    if every < 0 or every % 64:
        raise InvalidArgument("checkpoint_every_n_tokens", "a multiple of 64, or 0", str(every))
    for name, given in (("state_checkpoints", states), ("checkpoint_cu_starts", starts)):
        if (given is not None) != (every > 0):
            expected = "a tensor" if every else "none without checkpoint_every_n_tokens"
            raise InvalidArgument(name, expected, "none" if given is None else "a tensor")


def _same_memory(a: Tensor, b: Tensor) -> bool:
    if a is b or torch.compiler.is_compiling():
        return a is b
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


@renamed(out="output", alpha="g", state="initial_state", state_out="output_state",
         read_slots="state_indices", write_slots="state_indices", checkpoints="state_checkpoints",
         checkpoint_starts="checkpoint_cu_starts", host_lengths="cu_seqlens",
         checkpoint_every="checkpoint_every_n_tokens")  # fmt: skip
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    output: Tensor | None = None,
    output_state: Tensor | None = None,
    state_checkpoints: Tensor | None = None,
    checkpoint_cu_starts: Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    use_cp: Literal["auto"] | bool = "auto",
    state_indices: Tensor | None = None,
    _cp_chunk_len: int | None = None,
    backend: Literal["auto", "flashinfer", "cake_gdn", "cudnn"] = "auto",
    max_seqlen: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Ragged sequences, chunked; returns output, or (output, final state) with output_final_state.

    q [total, Hq, K];  k [total, Hk, K];  v [total, Hv, V];  output [total, Hs, V]
    g [total, Hs]: the decay itself, not its logarithm;  beta [total, Hs];  None: ones
    scale None and 0: 1/sqrt(K)
    cu_seqlens [N + 1], required
    initial_state, output_state [N, Hs, V, K]; with state_indices [N] they are pools of slots, and
        may be one tensor. A sequence without tokens passes its initial state through; a negative
        state index makes a sequence padding.
    state_checkpoints [total_checkpoints, Hs, V, K], checkpoint_cu_starts [N + 1]: the state after
        every checkpoint_every_n_tokens tokens of a sequence
    """
    _check_choice("backend", backend, ("auto", "flashinfer", "cake_gdn", "cudnn"))
    _check_choice("use_cp", use_cp, ("auto", True, False))
    _check_checkpoints(checkpoint_every_n_tokens, state_checkpoints, checkpoint_cu_starts)
    if cu_seqlens is None:
        refuse("cu_seqlens", "a tensor", None)
    sequences = cu_seqlens.shape[0] - 1
    if sequences < 1:
        raise InvalidArgument("cu_seqlens", "at least two entries", shape_of(cu_seqlens))
    _check_max_seqlen(max_seqlen, q.shape[0], sequences)
    cu_seqlens, lengths = offsets_and_lengths(cu_seqlens, None, q.device)
    if state_indices is not None:
        if state_indices.dtype not in _INDEX_DTYPES:
            raise InvalidArgument("state_indices", "dtype int32 or int64", str(state_indices.dtype))
        if state_indices.shape != (sequences,):
            raise InvalidArgument("state_indices", f"shape [{sequences}]", shape_of(state_indices))
        if output_final_state and output_state is None:
            raise InvalidArgument("output_state", "a pool beside state_indices", "none")
    elif initial_state is not None and initial_state.shape[0] != sequences:
        raise InvalidArgument("initial_state", f"{sequences} states", shape_of(initial_state))
    if output_final_state and output_state is None:
        heads = max(q.shape[1], v.shape[1])
        output_state = torch.empty(
            (sequences, heads, v.shape[2], k.shape[2]), dtype=torch.float32, device=q.device
        )
    in_place = (
        initial_state is not None
        and output_state is not None
        and _same_memory(initial_state, output_state)
    )
    result = gdn.prefill(
        inner_contiguous(q), operand(k, q.dtype), operand(v, q.dtype), cu_seqlens=cu_seqlens,
        state=initial_state, state_out=None if in_place else output_state,
        update_state=output_state is not None, read_slots=state_indices,
        alpha=g, beta=beta, checkpoints=state_checkpoints,
        checkpoint_starts=checkpoint_cu_starts, checkpoint_every=checkpoint_every_n_tokens,
        scale=scale or None, l2norm=use_qk_l2norm_in_kernel, out=output,
        max_length=max_seqlen or 0, host_lengths=lengths,
    )  # fmt: skip
    if not output_final_state:
        return result
    assert output_state is not None
    return result, output_state

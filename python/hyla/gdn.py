"""Gated DeltaNet over state pools: one token of one value head, S the state seen as K x V, is

    S     = alpha * S
    delta = beta * (v - k^T S)
    S     = S + k (outer) delta
    o     = scale * q^T S

Letters: B rows, N sequences, T tokens a row, total = tokens of all sequences, H query and key heads,
HV value heads (a multiple of H), K and V head dims (multiples of 8 up to 256).

Arguments that the functions share:

    alpha | log_alpha | a, A_log, dt_bias
        the gate, at most one kind: alpha itself in [0, 1]; its natural logarithm; or raw, then
        ln(alpha) = -exp(A_log) * softplus(a + dt_bias). None: alpha = 1.
    beta | b
        the update strength: as it is, or a logit that goes through a sigmoid. None: 1.
    read_slots [B], write_slots [B]
        which slot of the pool a row starts from and where its new state goes (absent: the row's own
        number; where it was read). A slot below `first_slot` is null: a null read slot makes the row
        padding, of which nothing is read or written; a null write slot drops the state.
        `read_slots` may be [B, S] with `read_columns` [B]: row b reads read_slots[b, read_columns[b]].
    layout
        "vk": the state is [..., V, K]; "kv": it is [..., K, V].
    scale
        of the output; None: 1/sqrt(K).
    l2norm, l2norm_eps
        q and k times rsqrt(sum of squares + eps) first.
    batch_invariant
        the bits of a row depend on nothing but the row, the heads and the dims.
    out
        written and returned; None: a new array in the framework of the first tensor, zero where
        nothing is computed.
    stream
        a CUDA stream (its address, or an object of torch or cupy); None: the current one.
    impl
        forces an implementation by name; see hyla.explain.
"""

from __future__ import annotations

from . import _core
from ._dispatch import compiling, traced
from ._typing import T, Tensor

__all__ = ["decode", "mtp", "prefill", "recurrence"]


def decode(
    q: T,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    alpha: Tensor | None = None,
    log_alpha: Tensor | None = None,
    a: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta: Tensor | None = None,
    b: Tensor | None = None,
    read_slots: Tensor | None = None,
    read_columns: Tensor | None = None,
    write_slots: Tensor | None = None,
    first_slot: int = 0,
    layout: str = "vk",
    scale: float | None = None,
    l2norm: bool = False,
    l2norm_eps: float = 1e-6,
    z: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    norm_gate: str = "silu",
    batch_invariant: bool = False,
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """One token a row.

    q, k   [B, H, K] or [B, 1, H, K]; float32, bfloat16, float16
    v, out [B, HV, V] or [B, 1, HV, V]
    state  [slots, HV, V, K] (layout "kv": [slots, HV, K, V]); updated in place
    gates  alpha, log_alpha, a, beta, b: [B, HV] or [B, 1, HV]; A_log, dt_bias: [HV]
    z, norm_weight, norm_eps, norm_gate
           a gated RMSNorm of the output: z has the shape of out, norm_weight is [V]; norm_gate is
           "silu" or "sigmoid"
    """
    call = traced("gdn_decode") if compiling() else _core.gdn_decode
    return call(
        q, k, v, state, alpha, log_alpha, a, A_log, dt_bias, beta, b,
        read_slots, read_columns, write_slots, first_slot,
        layout, scale, l2norm, l2norm_eps,
        z, norm_weight, norm_eps, norm_gate, batch_invariant, out, stream, impl,
    )  # fmt: skip


def mtp(
    q: T,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    alpha: Tensor | None = None,
    log_alpha: Tensor | None = None,
    a: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta: Tensor | None = None,
    b: Tensor | None = None,
    read_slots: Tensor | None = None,
    read_columns: Tensor | None = None,
    write_slots: Tensor | None = None,
    first_slot: int = 0,
    states_out: Tensor | None = None,
    step_slots: Tensor | None = None,
    commit_lengths: Tensor | None = None,
    update_state: bool = True,
    cu_seqlens: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    layout: str = "vk",
    scale: float | None = None,
    l2norm: bool = False,
    l2norm_eps: float = 1e-6,
    z: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    norm_gate: str = "silu",
    batch_invariant: bool = False,
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """One to T tokens a row in order, for speculative decoding.

    q, k   [B, T, H, K]; ragged: [total, H, K] with cu_seqlens [B + 1], or starts and lengths [B]
    v, out [B, T, HV, V] or [total, HV, V]
    state  [slots, HV, V, K] (layout "kv": [slots, HV, K, V]); updated in place
    gates  alpha, log_alpha, a, beta, b: [B, T, HV] or [total, HV]; A_log, dt_bias: [HV]
    states_out [>=B, >=T, HV, V, K]
           gets the state after every token
    step_slots [B, >=T]
           pool slots that get it instead; the final state is then written only where write_slots is
           given too
    commit_lengths [B]
           the final state is the one after that many tokens; 0: as it was
    update_state
           False: the pool does not get the final state
    z, norm_weight, norm_eps, norm_gate
           a gated RMSNorm of the output, as in decode
    """
    call = traced("gdn_mtp") if compiling() else _core.gdn_mtp
    return call(
        q, k, v, state, alpha, log_alpha, a, A_log, dt_bias, beta, b,
        read_slots, read_columns, write_slots, first_slot,
        states_out, step_slots, commit_lengths, update_state, cu_seqlens, starts, lengths,
        layout, scale, l2norm, l2norm_eps,
        z, norm_weight, norm_eps, norm_gate, batch_invariant, out, stream, impl,
    )  # fmt: skip


def prefill(
    q: T,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    state: Tensor | None = None,
    state_out: Tensor | None = None,
    update_state: bool = True,
    alpha: Tensor | None = None,
    log_alpha: Tensor | None = None,
    a: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta: Tensor | None = None,
    b: Tensor | None = None,
    read_slots: Tensor | None = None,
    read_columns: Tensor | None = None,
    write_slots: Tensor | None = None,
    first_slot: int = 0,
    has_initial_state: Tensor | None = None,
    checkpoints: Tensor | None = None,
    checkpoint_starts: Tensor | None = None,
    checkpoint_slots: Tensor | None = None,
    checkpoint_every: int = 0,
    checkpoint_offsets: Tensor | None = None,
    layout: str = "vk",
    scale: float | None = None,
    l2norm: bool = False,
    l2norm_eps: float = 1e-6,
    decay_cutoff_log2: float | None = None,
    max_length: int = 0,
    host_lengths: Tensor | None = None,
    batch_invariant: bool = False,
    workspace: Tensor | None = None,
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """Ragged sequences of any length, chunked.

    q      [total, Hq, K];  k [total, Hk, K];  v [total, HV, V];  out [total, Hs, V]
           GVA: HV a multiple of Hq = Hk; GQA: Hq a multiple of Hk = HV; Hs = max(Hq, HV)
    cu_seqlens [N + 1], or starts and lengths [N]
    state  [slots, Hs, V, K] (layout "kv": [slots, Hs, K, V]): initial states, and the final ones in
           place; None: every sequence starts from zero
    state_out
           a pool that gets the final states instead; `state` is then only read
    update_state
           False: no final states are written
    gates  alpha, log_alpha, a, beta, b: [total, Hs]; A_log, dt_bias: [Hs]
    has_initial_state [N] bool
           False: start from zero whatever the pool holds
    checkpoint_every (a multiple of 64) or checkpoint_offsets [N, C]
           after which tokens a state is kept; it goes to checkpoints [total_checkpoints, Hs, V, K]
           at row checkpoint_starts[n] + i, or to pool slots checkpoint_slots [N, C]
    decay_cutoff_log2
           a kernel may drop terms that decayed below 2 to the minus this
    max_length
           tokens of the longest sequence, where known: on a GPU long sequences among short ones are
           then faster; 0: the sequences are taken to be alike. It changes no result
    host_lengths [N], int32 or int64, on the CPU wherever the others are
           the lengths of all sequences, where known: more than max_length tells, and wrong ones
           change no result either
    workspace
           hyla.workspace_bytes("gdn.prefill", ...) bytes; None: allocated by the call
    """
    call = traced("gdn_prefill") if compiling() else _core.gdn_prefill
    return call(
        q, k, v, cu_seqlens, starts, lengths, state, state_out, update_state,
        alpha, log_alpha, a, A_log, dt_bias, beta, b,
        read_slots, read_columns, write_slots, first_slot, has_initial_state,
        checkpoints, checkpoint_starts, checkpoint_slots, checkpoint_every, checkpoint_offsets,
        layout, scale, l2norm, l2norm_eps,
        decay_cutoff_log2, max_length, host_lengths, batch_invariant, workspace, out, stream, impl,
    )  # fmt: skip


def recurrence(
    qkv: T,
    *,
    state: Tensor,
    heads: tuple[int, int],
    dims: tuple[int, int],
    cu_seqlens: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    alpha: Tensor | None = None,
    log_alpha: Tensor | None = None,
    a: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta: Tensor | None = None,
    b: Tensor | None = None,
    read_slots: Tensor | None = None,
    read_columns: Tensor | None = None,
    write_slots: Tensor | None = None,
    first_slot: int = 0,
    layout: str = "kv",
    scale: float | None = None,
    l2norm: bool = True,
    l2norm_eps: float = 1e-6,
    batch_invariant: bool = False,
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """Ragged sequences out of packed rows, token by token. Every stride is free.

    qkv    [total, 2*H*K + HV*V]: q heads, k heads, v heads
    heads  (H, HV);  dims (K, V)
    state  [slots, HV, K, V] (layout "vk": [slots, HV, V, K]); updated in place
    cu_seqlens [N + 1], or starts and lengths [N]
    gates  alpha, log_alpha, a, beta, b: [total, HV]; A_log, dt_bias: [HV]
    out    [total, HV*V]
    """
    key_heads, value_heads = _pair("heads", heads)
    key_dim, value_dim = _pair("dims", dims)
    call = traced("gdn_recurrence") if compiling() else _core.gdn_recurrence
    return call(
        qkv, cu_seqlens, starts, lengths, state, key_heads, value_heads, key_dim, value_dim,
        alpha, log_alpha, a, A_log, dt_bias, beta, b,
        read_slots, read_columns, write_slots, first_slot,
        layout, scale, l2norm, l2norm_eps, batch_invariant, out, stream, impl,
    )  # fmt: skip


def _pair(name: str, given: tuple[int, int]) -> tuple[int, int]:
    usual = isinstance(given, (tuple, list)) and len(given) == 2
    if not usual or not all(hasattr(size, "__index__") for size in given):
        raise TypeError(f"{name}: expected two ints, got {given!r}")
    return given[0], given[1]


for _function in (decode, mtp, prefill):
    _core.shorten(_function, f"gdn_{_function.__name__}", ())

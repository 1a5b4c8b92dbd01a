"""FLA's gated delta rule with the signatures of FLA 0.6: forward only.

Letters: B rows, T tokens a row, H query and key heads, HV value heads (a multiple of H), K and V
head dims (multiples of 8 up to 256), N sequences. Both functions return (o, final_state):
o [B, T, HV, V] in the dtype of q, and final_state in float32, or None where output_final_state is
False.

    g             [B, T, HV]: the natural logarithm of the decay; with use_gate_in_kernel it is raw,
                  and A_log [HV] and dt_bias [HV] (None: zero) go with it
    beta          [B, T, HV]; with use_beta_sigmoid_in_kernel a logit, and with allow_neg_eigval the
                  sigmoid is doubled
    scale         None: 1/sqrt(K)
    initial_state [N, HV, K, V], or [N, HV, V, K] with state_v_first; never written
    cu_seqlens    [N + 1]: B = 1 and the sequences lie back to back

Keywords that FLA itself ignores are ignored.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .. import gdn
from ..errors import InvalidArgument
from ._shared import (
    inner_contiguous,
    offsets_and_lengths,
    operand,
    refuse,
    refuse_gradients,
    renamed,
    shape_of,
    uniform_offsets,
    unsupported,
)

__all__ = [
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
]

_NAMES = {
    "log_alpha": "g",
    "a": "g",
    "b": "beta",
    "state": "initial_state",
    "host_lengths": "cu_seqlens_cpu",
}


class RemovedArgument(InvalidArgument, DeprecationWarning):
    """FLA raises a DeprecationWarning for it; this is one, and an InvalidArgument."""


def _state_v_first(given: bool, kwargs: dict[str, Any]) -> bool:
    if "transpose_state_layout" not in kwargs:
        return given
    if given:
        raise InvalidArgument("transpose_state_layout", "none beside state_v_first", "both")
    warnings.warn(
        "transpose_state_layout is the old name of state_v_first", DeprecationWarning, stacklevel=4
    )
    return bool(kwargs["transpose_state_layout"])


def _check(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, cu_seqlens: Tensor | None
) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InvalidArgument(name, "shape [B, T, heads, dim]", shape_of(tensor))
        if tensor.shape[:2] != q.shape[:2]:
            raise InvalidArgument(name, f"{list(q.shape[:2])} rows and tokens", shape_of(tensor))
    if q.shape[2] != k.shape[2]:
        raise InvalidArgument("k", f"the {q.shape[2]} heads of q", str(k.shape[2]))
    if q.shape[2] == 0 or v.shape[2] % q.shape[2]:
        raise InvalidArgument("v", f"a multiple of the {q.shape[2]} heads of q", str(v.shape[2]))
    sequences = q.shape[0]
    if cu_seqlens is not None:
        if q.shape[0] != 1:
            raise InvalidArgument("q", "one row beside cu_seqlens", str(q.shape[0]))
        sequences = cu_seqlens.shape[0] - 1
    if state is not None and state.shape[0] != sequences:
        raise InvalidArgument("initial_state", f"{sequences} states", str(state.shape[0]))


def _gates(
    g: Tensor | None,
    beta: Tensor | None,
    raw: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    logit: bool,
    doubled: bool,
) -> dict[str, Any]:
    """The gates as keywords of hyla, still [B, T, HV]."""
    if doubled and not logit:
        raise InvalidArgument("allow_neg_eigval", "use_beta_sigmoid_in_kernel beside it", "without")
    gates: dict[str, Any] = {}
    if raw:
        if A_log is None:
            refuse("A_log", "a tensor beside use_gate_in_kernel", None)
        if g is None:
            raise InvalidArgument("g", "a tensor beside use_gate_in_kernel", "None")
        bias = torch.zeros_like(A_log, dtype=torch.float32) if dt_bias is None else dt_bias
        gates = {"a": g, "A_log": A_log, "dt_bias": bias}
    else:
        gates["log_alpha"] = g
    if doubled and beta is not None:
        gates["beta"] = 2 * torch.sigmoid(beta.float())
    else:
        gates["b" if logit else "beta"] = beta
    return gates


def _flat(gates: dict[str, Any]) -> dict[str, Any]:
    """[B, T, HV] to [B * T, HV]."""
    return {
        name: x if x is None or name in ("A_log", "dt_bias") else x.flatten(0, 1)
        for name, x in gates.items()
    }


def _final_like(v: Tensor, k: Tensor, sequences: int, layout: str) -> Tensor:
    dims = (k.shape[3], v.shape[3]) if layout == "kv" else (v.shape[3], k.shape[3])
    return torch.empty((sequences, v.shape[2], *dims), dtype=torch.float32, device=v.device)


@renamed(**_NAMES)
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Sequences of any length, chunked: q, k [B, T, H, K], v [B, T, HV, V] -> (o, final_state).

    Of the keywords, use_gate_in_kernel, A_log, dt_bias and the old transpose_state_layout are used;
    chunk_size is checked. cp_context is not supported. On a GPU, cu_seqlens_cpu, or cu_seqlens on the
    CPU, tells how long the sequences are, which helps to choose a kernel.
    """
    layout = "vk" if _state_v_first(state_v_first, kwargs) else "kv"
    if "head_first" in kwargs:
        raise RemovedArgument("head_first", "none: inputs are [B, T, H, ...]", "one")
    if kwargs.get("chunk_size", 64) not in (16, 32, 64):
        raise InvalidArgument("chunk_size", "16, 32 or 64", str(kwargs["chunk_size"]))
    if cp_context is not None:
        raise unsupported("cp_context: a sequence is not spread over several GPUs here")
    raw, A_log, dt_bias = (kwargs.get(x) for x in ("use_gate_in_kernel", "A_log", "dt_bias"))
    refuse_gradients("hyla.compat.fla", q=q, k=k, v=v, g=g, beta=beta, A_log=A_log,
                     dt_bias=dt_bias, initial_state=initial_state)  # fmt: skip
    _check(q, k, v, initial_state, cu_seqlens)
    gates = _gates(
        g, beta, bool(raw), A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval
    )
    B, T = q.shape[:2]
    lengths = None
    if cu_seqlens is None:
        offsets = uniform_offsets(B, T, q.device)
    else:
        offsets, lengths = offsets_and_lengths(cu_seqlens, cu_seqlens_cpu, q.device)
    final = _final_like(v, k, offsets.shape[0] - 1, layout) if output_final_state else None
    o = gdn.prefill(
        inner_contiguous(q.flatten(0, 1)), operand(k.flatten(0, 1), q.dtype),
        operand(v.flatten(0, 1), q.dtype), cu_seqlens=offsets,
        state=None if initial_state is None else inner_contiguous(initial_state),
        state_out=final, update_state=output_final_state, **_flat(gates),
        layout=layout, scale=scale, l2norm=use_qk_l2norm_in_kernel, host_lengths=lengths,
    )  # fmt: skip
    return o.view(v.shape), final


@renamed(**_NAMES)
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """A few tokens, one after another: q, k [B, T, H, K], v [B, T, HV, V] -> (o, final_state).

    g None: no decay; beta None: ones. gk and gv, decays of single channels, are not supported.
    """
    layout = "vk" if _state_v_first(state_v_first, kwargs) else "kv"
    for name, vector in (("gk", gk), ("gv", gv)):
        if vector is not None:
            raise unsupported(f"{name}: a decay of every channel is not part of the operation here")
    refuse_gradients("hyla.compat.fla", q=q, k=k, v=v, g=g, beta=beta, A_log=A_log,
                     dt_bias=dt_bias, initial_state=initial_state)  # fmt: skip
    _check(q, k, v, initial_state, cu_seqlens)
    gates = _gates(
        g, beta, use_gate_in_kernel, A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval
    )
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if initial_state is None:
        state = _final_like(v, k, sequences, layout).zero_()
    elif output_final_state:
        state = initial_state.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    else:
        state = inner_contiguous(initial_state)
    tokens = inner_contiguous(q), operand(k, q.dtype), operand(v, q.dtype)
    if cu_seqlens is not None:
        tokens = tokens[0].flatten(0, 1), tokens[1].flatten(0, 1), tokens[2].flatten(0, 1)
        gates = _flat(gates)
    o = gdn.mtp(
        *tokens, state, cu_seqlens=cu_seqlens, update_state=output_final_state, **gates,
        layout=layout, scale=scale, l2norm=use_qk_l2norm_in_kernel,
    )  # fmt: skip
    return o.view(v.shape), state if output_final_state else None


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule

"""Attention over KV caches: softmax(scale q k^T + mask) v, appending to a cache, merging two results.

A cache is described by one of the classes here, which only point at the caller's memory. Letters: N
sequences, Hq query heads, Hk KV heads (Hq a multiple), D head dim of queries and keys, DV of values,
P pages of S tokens. `kv_lengths` [N] counts the tokens in the cache, those of the call included:
query i of row n stands at position kv_lengths[n] - q_len[n] + i.
"""

from __future__ import annotations

from typing import Any, Union

from . import _core
from ._dispatch import compiling, traced
from ._typing import T, Tensor

__all__ = ["DenseCache", "RaggedCache", "PagedCache", "Cache", "run", "append", "merge"]


class DenseCache:
    """k [N, S, Hk, D] and v [N, S, Hk, DV]; layout "hnd": [N, Hk, S, D]."""

    __slots__ = ("k", "v", "layout", "k_scales", "v_scales")
    kind = "dense"
    cu_kv = None
    k: Tensor
    v: Tensor | None
    layout: str
    k_scales: Tensor | None
    v_scales: Tensor | None

    def __init__(
        self,
        k: Tensor,
        v: Tensor | None,
        layout: str = "nhd",
        k_scales: Tensor | None = None,
        v_scales: Tensor | None = None,
    ) -> None:
        self.k, self.v, self.layout = k, v, layout
        self.k_scales, self.v_scales = k_scales, v_scales


class RaggedCache:
    """k [total_kv, Hk, D], v [total_kv, Hk, DV], and cu_kv [N + 1]: where each row begins.

    A pool of tokens that are appended by slots has no rows: cu_kv None.
    """

    __slots__ = ("k", "v", "cu_kv", "k_scales", "v_scales")
    kind = "ragged"
    layout = "nhd"
    k: Tensor
    v: Tensor | None
    cu_kv: Tensor | None
    k_scales: Tensor | None
    v_scales: Tensor | None

    def __init__(
        self,
        k: Tensor,
        v: Tensor | None,
        cu_kv: Tensor | None = None,
        k_scales: Tensor | None = None,
        v_scales: Tensor | None = None,
    ) -> None:
        self.k, self.v, self.cu_kv = k, v, cu_kv
        self.k_scales, self.v_scales = k_scales, v_scales


class PagedCache:
    """k_pages [P, S, Hk, D] and v_pages [P, S, Hk, DV]; layout "hnd": [P, Hk, S, D].

    float8_e4m3 and int8 pages may carry float32 scales, one for each run of
    D / k_scales.shape[-1] values. The page table is an argument of the calls.
    """

    __slots__ = ("k", "v", "layout", "k_scales", "v_scales")
    kind = "paged"
    cu_kv = None
    k: Tensor
    v: Tensor | None
    layout: str
    k_scales: Tensor | None
    v_scales: Tensor | None

    def __init__(
        self,
        k_pages: Tensor,
        v_pages: Tensor | None,
        layout: str = "nhd",
        k_scales: Tensor | None = None,
        v_scales: Tensor | None = None,
    ) -> None:
        self.k, self.v, self.layout = k_pages, v_pages, layout
        self.k_scales, self.v_scales = k_scales, v_scales

    @classmethod
    def fused(cls, pages: Any, layout: str = "nhd") -> PagedCache:
        """pages [P, 2, S, Hk, D] (layout "hnd": [P, 2, Hk, S, D]): index 0 keys, 1 values."""
        _check_pair("pages", pages, 5)
        return cls(pages[:, 0], pages[:, 1], layout)

    @classmethod
    def blocks(cls, blocks: Any, layer: int) -> PagedCache:
        """blocks [P, 2, layers, S, Hk, D]: one layer's view."""
        _check_pair("blocks", blocks, 6)
        return cls(blocks[:, 0, layer], blocks[:, 1, layer])


Cache = Union[DenseCache, RaggedCache, PagedCache]


def _check_pair(name: str, pages: Any, rank: int) -> None:
    shape = getattr(pages, "shape", None)
    if shape is None:
        raise TypeError(f"{name}: expected a tensor, got {type(pages).__name__}")
    if len(shape) != rank or shape[1] != 2:
        from .errors import InvalidArgument

        raise InvalidArgument(name, f"{rank} dimensions, the second of size 2", str(tuple(shape)))


def run(
    q: T,
    cache: Cache,
    *,
    cu_seqlens: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    page_table: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    lse: Tensor | None = None,
    batch_invariant: bool = False,
    workspace: Tensor | None = None,
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """Prefill and decode rows in one call.

    q      [total, Hq, D];  out [total, Hq, DV]
    cu_seqlens [N + 1] of the queries, or starts and lengths [N]
    kv_lengths [N]; None for dense and ragged caches: the whole row
    page_table [N, max_pages]; entries that no key needs may be anything
    causal key position <= query position
    window query - key < window (without causal: in both directions)
    chunk  both in the same run of `chunk` positions
    sinks  [Hq], a logit that joins the denominator once
    softcap logits become softcap * tanh(logit / softcap)
    scale  None: 1/sqrt(D)
    lse    [total, Hq] float32, written: ln of the denominator
    workspace
           hyla.workspace_bytes("attention.run", ...) bytes; None: allocated by the call
    """
    kind, layout = _kind(cache)
    call = traced("attention_run") if compiling() else _core.attention_run
    return call(
        q, kind, layout, cache.k, cache.v, cache.k_scales, cache.v_scales, cache.cu_kv, page_table,
        cu_seqlens, starts, lengths, kv_lengths, causal, window, chunk, sinks, softcap, scale,
        lse, batch_invariant, workspace, out, stream, impl,
    )  # fmt: skip


def append(
    cache: Cache,
    k: Tensor,
    v: Tensor | None,
    *,
    cu_seqlens: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    page_table: Tensor | None = None,
    slots: Tensor | None = None,
    positions: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    interleaved: bool = False,
    given_scales: bool = False,
    stream: object = None,
    impl: str | None = None,
) -> None:
    """Writes the keys and values of this call's tokens into the cache, before `run`.

    k      [total, Hk, D];  v [total, Hk, DV], or None beside a cache without values (MLA)
    cu_seqlens [N + 1], or starts and lengths [N]
    kv_lengths [N], after the append; token i of row n goes to kv_lengths[n] - len[n] + i
    page_table [N, max_pages]
    slots  [total], instead of all these: where each token goes, page * S + place in the page (dense:
           row * S + position; ragged: the place itself), an engine's slot_mapping. Negative: not
           written; beyond the cache: an error on the CPU, not written on a GPU. Which of two tokens
           with one slot is written is not defined
    positions [total], beside slots and cos: the rows of cos and sin, which slots do not tell
    cos, sin [positions, R/2] float32
           rotary embedding of the first R values of each key; pairs (i, i + R/2), or (2i, 2i + 1)
           with `interleaved`
    given_scales
           quantised caches: divide by the scales that the cache holds, one for all perhaps
           (scale.expand(P, S, Hk, 1)), and do not write them; what is too large is clamped
    """
    kind, layout = _kind(cache)
    call = traced("attention_append") if compiling() else _core.attention_append
    return call(
        kind, layout, cache.k, cache.v, cache.k_scales, cache.v_scales, cache.cu_kv, page_table,
        k, v, cu_seqlens, starts, lengths, kv_lengths, slots, positions, cos, sin, interleaved,
        given_scales, stream, impl,
    )  # fmt: skip


def merge(
    a: T,
    a_lse: Tensor,
    b: Tensor,
    b_lse: Tensor,
    *,
    lse: Tensor | None = None,
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """Two attentions of the same queries over different keys become the one over all of them.

    a, b   [total, Hq, DV];  out the same, its dtype may differ, and it may be a or b
    a_lse, b_lse [total, Hq] float32, as `run` writes them; infinite where no key was seen: the other
           side is the result, and without keys on both sides zeros
    lse    [total, Hq] float32, written: that of all keys; may be a_lse or b_lse
    """
    call = traced("attention_merge") if compiling() else _core.attention_merge
    return call(a, a_lse, b, b_lse, lse, out, stream, impl)


def _kind(cache: Cache) -> tuple[str, str]:
    if not isinstance(cache, (DenseCache, RaggedCache, PagedCache)):
        raise TypeError(
            f"cache: expected a DenseCache, RaggedCache or PagedCache, got {type(cache).__name__}"
        )
    return cache.kind, cache.layout


for _function in (run, append):
    _core.shorten(
        _function, f"attention_{_function.__name__}", (DenseCache, RaggedCache, PagedCache)
    )
_core.shorten(merge, "attention_merge", ())

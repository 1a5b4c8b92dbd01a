"""hyla.attention against numpy: caches of every kind, masks, quantised pages, appending."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyla
import oracle
from arrays import (
    FRAMEWORKS,
    Strided,
    as_torch,
    assert_rounded,
    float_dtypes,
    frameworks,
    implementations,
    index_dtypes,
    seeds,
    values,
)


class Cached:
    """Keys and values of several rows, and the same memory as one of hyla's caches."""

    def __init__(self, draw, kinds=("dense", "ragged", "paged", "fused")):
        self.rng = np.random.default_rng(draw(seeds))
        self.to = FRAMEWORKS[draw(frameworks)]
        self.hyla = draw(implementations)
        self.exact = self.hyla is hyla.reference
        self.index = draw(index_dtypes)
        self.kind = draw(st.sampled_from(kinds))
        self.N = draw(st.integers(0, 3))
        self.Hk = draw(st.integers(1, 2))
        self.Hq = self.Hk * draw(st.integers(1, 3))
        self.D = draw(st.sampled_from([8, 16]))
        self.DV = self.D if self.kind == "fused" else draw(st.sampled_from([8, 24]))
        self.io = draw(float_dtypes)
        self.kv = draw(float_dtypes)
        self.layout = "nhd" if self.kind == "ragged" else draw(st.sampled_from(["nhd", "hnd"]))
        self.kv_lengths = self.rng.integers(0, 12, self.N)
        self.queries = np.array([self.rng.integers(0, n + 1) for n in self.kv_lengths], int)
        self.rows = [
            tuple(self.normal(n, self.Hk, d).astype(self.kv) for d in (self.D, self.DV))
            for n in self.kv_lengths
        ]
        self.build()

    def normal(self, *shape):
        return self.rng.standard_normal(shape)

    def indices(self, x):
        return self.to(np.asarray(x, self.index))

    def build(self):
        S, N = 4, self.N
        self.keywords = {"kv_lengths": self.indices(self.kv_lengths)}
        if self.kind == "ragged":
            cu = np.concatenate([[0], np.cumsum(self.kv_lengths)])
            k = np.zeros((cu[-1] + 1, self.Hk, self.D), self.kv)
            v = np.zeros((cu[-1] + 1, self.Hk, self.DV), self.kv)
            for n, (rk, rv) in enumerate(self.rows):
                k[cu[n] : cu[n + 1]], v[cu[n] : cu[n + 1]] = rk, rv
            self.cache = hyla.attention.RaggedCache(self.to(k), self.to(v), self.indices(cu))
            return
        pages = S if self.kind != "dense" else 12
        per_row = -(-12 // pages)
        P = N * per_row + 1
        order = self.rng.permutation(np.arange(P))
        shape = (P, pages, self.Hk)
        if self.kind == "fused":
            both = np.full((P, 2, pages, self.Hk, self.D), np.nan, self.kv)
            k, v = both[:, 0], both[:, 1]
        else:
            k = np.full((*shape, self.D), np.nan, self.kv)
            v = np.full((*shape, self.DV), np.nan, self.kv)
        table = np.full((N, per_row + 1), -1)
        for n, (rk, rv) in enumerate(self.rows):
            for t in range(self.kv_lengths[n]):
                page = n if self.kind == "dense" else order[n * per_row + t // pages]
                table[n, t // pages] = page
                k[page, t % pages], v[page, t % pages] = rk[t], rv[t]
        if self.layout == "hnd":
            if self.kind == "fused":
                both = np.ascontiguousarray(both.swapaxes(2, 3))
            k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k, v))
        self.memory = [both] if self.kind == "fused" else [k, v]
        if self.kind == "dense":
            self.cache = hyla.attention.DenseCache(self.to(k[:N]), self.to(v[:N]), self.layout)
            return
        self.keywords["page_table"] = self.indices(table)
        if self.kind == "fused":
            self.cache = hyla.attention.PagedCache.fused(self.to(both), self.layout)
        else:
            self.cache = hyla.attention.PagedCache(self.to(k), self.to(v), self.layout)


@given(st.data())
def test_run(data):
    draw = data.draw
    c = Cached(draw)
    mask = {
        "causal": draw(st.booleans()),
        **draw(st.sampled_from([{}, {"window": 3}, {"chunk": 4}])),
    }
    options = {
        "scale": draw(st.sampled_from([None, 0.3])),
        "softcap": draw(st.sampled_from([None, 2.0])),
    }
    sinks = c.normal(c.Hq).astype(np.float32) if draw(st.booleans()) else None
    cu = np.concatenate([[0], np.cumsum(c.queries)]).astype(int)
    q = Strided(c.normal(cu[-1], c.Hq, c.D).astype(c.io), 1)
    lse = np.zeros((cu[-1], c.Hq), np.float32)
    got = c.hyla.attention.run(
        c.to(q.view), c.cache, cu_seqlens=c.indices(cu), lse=c.to(lse),
        sinks=None if sinks is None else c.to(sinks), **c.keywords, **mask, **options,
    )  # fmt: skip
    for n, (k, v) in enumerate(c.rows):
        span = slice(cu[n], cu[n + 1])
        (want, want_lse), error = oracle.measured(
            oracle.attention_row, q.view[span], k, v, **mask, sinks=sinks, softcap=options["softcap"],
            scale=c.D**-0.5 if options["scale"] is None else options["scale"], operands=c.io,
        )  # fmt: skip
        allowed = {"naive_error": None if c.exact else error, "operands": c.io}
        assert_rounded(got[span], want, c.io, **allowed)
        assert_rounded(lse[span], want_lse, np.float32, **allowed)


@given(st.data())
def test_appending_in_two_parts_fills_the_cache(data):
    draw = data.draw
    c = Cached(draw, kinds=("dense", "paged", "fused"))
    filled = [x.copy() for x in c.memory]
    for x in c.memory:
        x[...] = np.nan
    early = c.kv_lengths - c.queries
    for begin, end in ((np.zeros_like(early), early), (early, c.kv_lengths)):
        cu = np.concatenate([[0], np.cumsum(end - begin)])
        parts = [
            np.concatenate(
                [np.zeros((0, c.Hk, d), c.kv)]
                + [row[i][b:e] for row, b, e in zip(c.rows, begin, end)]
            )
            for i, d in ((0, c.D), (1, c.DV))
        ]
        keywords = {**c.keywords, "kv_lengths": c.indices(end)}
        hyla.attention.append(c.cache, *map(c.to, parts), cu_seqlens=c.indices(cu), **keywords)
    for got, want in zip(c.memory, filled):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", ["int8", "float8"])
@pytest.mark.parametrize("to", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_quantised_pages(kind, to):
    rng = np.random.default_rng(3)
    P, S, Hk, D, runs = 2, 4, 2, 16, 2
    dtype = np.int8 if kind == "int8" else ml_dtypes.float8_e4m3fn
    limit = 127 if kind == "int8" else 448
    k_pages, v_pages = (np.zeros((P, S, Hk, D), dtype) for _ in range(2))
    k_scales, v_scales = (np.zeros((P, S, Hk, runs), np.float32) for _ in range(2))

    def view(x):
        if x.dtype == ml_dtypes.float8_e4m3fn and to is as_torch:
            import torch

            return torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn)
        return to(x)

    cache = hyla.attention.PagedCache(
        view(k_pages), view(v_pages), k_scales=to(k_scales), v_scales=to(v_scales)
    )
    tokens = 6
    k, v = (rng.standard_normal((tokens, Hk, D)).astype(np.float32) for _ in range(2))
    where = {
        "cu_seqlens": to(np.array([0, tokens])), "kv_lengths": to(np.array([tokens])),
        "page_table": to(np.array([[1, 0]])),
    }  # fmt: skip
    hyla.attention.append(cache, to(k), to(v), **where)
    stored_k, stored_v = (
        (pages.astype(np.float64).reshape(P, S, Hk, runs, D // runs) * scales[..., None])
        .reshape(P, S, Hk, D)[[1, 0]]
        .reshape(P * S, Hk, D)[:tokens]
        for pages, scales in ((k_pages, k_scales), (v_pages, v_scales))
    )
    # The largest of a run is stored as the limit; a value is off by half a step of int8, or half an
    # ulp of e4m3 (3 bits of mantissa).
    for stored, x, scales in ((stored_k, k, k_scales), (stored_v, v, v_scales)):
        largest = np.abs(x).reshape(tokens, Hk, runs, D // runs).max(-1)
        got = scales[[1, 0]].reshape(P * S, Hk, runs)[:tokens]
        assert np.allclose(got, largest / limit, rtol=1e-6)
        step = np.repeat(largest, D // runs, axis=-1)
        bound = step / 127 / 2 if kind == "int8" else np.abs(x) * 2**-4 + step / 448 * 2**-10
        assert (np.abs(stored - x) <= bound * 1.001).all()
    q = rng.standard_normal((1, 2 * Hk, D)).astype(np.float32)
    got = hyla.attention.run(
        to(q), cache, cu_seqlens=to(np.array([0, 1])),
        kv_lengths=where["kv_lengths"], page_table=where["page_table"],
    )  # fmt: skip
    (want, _), error = oracle.measured(oracle.attention_row, q, stored_k, stored_v, scale=D**-0.5)
    assert_rounded(got, want, np.float32, naive_error=error)


@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_given_scales_are_divided_by(kind):
    rng = np.random.default_rng(8)
    P, S, Hk, D, tokens = 3, 4, 2, 16, 5
    dtype = np.int8 if kind == "int8" else ml_dtypes.float8_e4m3fn
    limit = 127 if kind == "int8" else 448
    k, v = (rng.standard_normal((tokens, Hk, D)).astype(np.float32) for _ in range(2))
    scales = [np.float32(0.25), np.float32(3 / limit)]  # the second clamps a few
    cache = hyla.attention.PagedCache(
        *(np.zeros((P, S, Hk, D), dtype) for _ in range(2)),
        k_scales=np.broadcast_to(scales[0], (P, S, Hk, 1)),
        v_scales=np.broadcast_to(scales[1], (P, S, Hk, 1)),
    )
    v[0, 0, :2] = 1e6, -1e6
    where = {"kv_lengths": np.array([tokens]), "page_table": np.array([[2, 0]])}
    hyla.attention.append(
        cache, k, v, cu_seqlens=np.array([0, tokens]), given_scales=True, **where
    )
    for pages, x, scale in ((cache.k, k, scales[0]), (cache.v, v, scales[1])):
        got = pages[[2, 0]].reshape(2 * S, Hk, D)[:tokens].astype(np.float64)
        want = np.clip(x.astype(np.float64) / scale, -limit, limit)
        step = 0.5 if kind == "int8" else np.maximum(np.abs(want) * 2**-4, 2**-10)
        assert (np.abs(got - want) <= step * 1.001).all()
    q = rng.standard_normal((1, Hk, D)).astype(np.float32)
    stored = [
        pages[[2, 0]].reshape(2 * S, Hk, D)[:tokens].astype(np.float64) * np.float64(scale)
        for pages, scale in ((cache.k, scales[0]), (cache.v, scales[1]))
    ]
    got = hyla.attention.run(q, cache, cu_seqlens=np.array([0, 1]), **where)
    (want, _), error = oracle.measured(oracle.attention_row, q, *stored, scale=D**-0.5)
    assert_rounded(got, want, np.float32, naive_error=error)


def test_rope_turns_the_keys():
    rng = np.random.default_rng(4)
    Hk, D, S = 1, 8, 4
    k, v = (rng.standard_normal((3, Hk, D)).astype(np.float32) for _ in range(2))
    angles = rng.standard_normal((S, 2)).astype(np.float32)
    pages = np.zeros((1, 2, S, Hk, D), np.float32)
    hyla.attention.append(
        hyla.attention.PagedCache.fused(pages), k, v, cu_seqlens=np.array([0, 3]),
        kv_lengths=np.array([4]), page_table=np.array([[0]]),
        cos=np.cos(angles), sin=np.sin(angles),
    )  # fmt: skip
    for t in range(3):  # positions 1, 2, 3; the pairs are (0, 2) and (1, 3); 4 to 7 stay
        cos, sin = np.cos(angles[t + 1]).astype(float), np.sin(angles[t + 1]).astype(float)
        x, y = k[t, 0, :2].astype(float), k[t, 0, 2:4].astype(float)
        want = np.concatenate([x * cos - y * sin, y * cos + x * sin, k[t, 0, 4:]])
        assert np.allclose(pages[0, 0, t + 1, 0], want, rtol=1e-6, atol=1e-7)
        assert (pages[0, 1, t + 1, 0] == v[t, 0]).all()


def test_one_layer_of_blocks():
    rng = np.random.default_rng(5)
    blocks = rng.standard_normal((2, 2, 3, 4, 1, 8)).astype(np.float32)
    q = rng.standard_normal((1, 1, 8)).astype(np.float32)
    where = {"cu_seqlens": np.array([0, 1]), "kv_lengths": np.array([6])}
    where["page_table"] = np.array([[1, 0]])
    got = hyla.attention.run(q, hyla.attention.PagedCache.blocks(blocks, 2), **where)
    k, v = (blocks[[1, 0], i, 2].reshape(8, 1, 8)[:6] for i in range(2))
    (want, _), error = oracle.measured(oracle.attention_row, q, k, v, scale=8**-0.5)
    assert_rounded(got, want, np.float32, naive_error=error)


@pytest.mark.parametrize("to", FRAMEWORKS.values(), ids=FRAMEWORKS)
@pytest.mark.parametrize("kind", ["paged", "hnd", "dense", "ragged"])
def test_appending_by_slots(kind, to):
    rng = np.random.default_rng(6)
    P, S, Hk, D, tokens = 3, 4, 2, 8, 5
    pages = [np.full((P, S, Hk, D), 7.0, np.float32) for _ in range(2)]
    given = [x.swapaxes(1, 2).copy() if kind == "hnd" else x.copy() for x in pages]
    if kind == "ragged":
        given = [x.reshape(P * S, Hk, D) for x in given]
    views = [to(x) for x in given]
    if kind == "ragged":
        cache = hyla.attention.RaggedCache(*views)
    elif kind == "dense":
        cache = hyla.attention.DenseCache(*views)
    else:
        cache = hyla.attention.PagedCache(*views, layout="hnd" if kind == "hnd" else "nhd")
    k, v = (rng.standard_normal((tokens, Hk, D)).astype(np.float32) for _ in range(2))
    slots, positions = np.array([11, -1, 4, 0, -9]), np.array([2, 100, 0, 1, -1])
    angles = rng.standard_normal((3, D // 2)).astype(np.float32)
    hyla.attention.append(
        cache, to(k), to(v), slots=to(slots), positions=to(positions), cos=to(np.cos(angles)),
        sin=to(np.sin(angles)),
    )  # fmt: skip
    for i in np.flatnonzero(slots >= 0):
        cos, sin = (f(angles[positions[i]].astype(float)) for f in (np.cos, np.sin))
        x, y = k[i, :, : D // 2].astype(float), k[i, :, D // 2 :].astype(float)
        pages[0][slots[i] // S, slots[i] % S] = np.concatenate(
            [x * cos - y * sin, y * cos + x * sin], -1
        )
        pages[1][slots[i] // S, slots[i] % S] = v[i]
    for got, want in zip(given, pages):
        want = want.swapaxes(1, 2) if kind == "hnd" else want.reshape(got.shape)
        assert np.allclose(got, want, rtol=1e-6, atol=1e-6)
    assert (given[1] == pages[1].swapaxes(1, 2 if kind == "hnd" else 1).reshape(given[1].shape)).all()


@given(st.data())
def test_merging_a_prefix_with_the_rest(data):
    draw = data.draw
    rng = np.random.default_rng(draw(seeds))
    to, hyla_ = FRAMEWORKS[draw(frameworks)], draw(implementations)
    io, total, heads, dim = draw(float_dtypes), draw(st.integers(0, 4)), 3, draw(st.sampled_from([8, 24]))
    a, b = (rng.standard_normal((total, heads, dim)).astype(io) for _ in range(2))
    la, lb = (4 * rng.standard_normal((total, heads)).astype(np.float32) for _ in range(2))
    for x, lse in ((a, la), (b, lb)):
        empty = rng.random((total, heads)) < 0.2
        lse[empty] = rng.choice([-np.inf, np.inf], empty.sum())
        x[empty] = np.nan
    lse = np.zeros((total, heads), np.float32)
    got = hyla_.attention.merge(to(a), to(la), to(b), to(lb), lse=to(lse))

    def wide(x, l):
        return np.where(np.isinf(l)[..., None], 0.0, x.astype(np.float64))

    la, lb = (np.where(np.isinf(l), -np.inf, l.astype(np.float64)) for l in (la, lb))
    with np.errstate(invalid="ignore"):
        want_lse = np.logaddexp(la, lb)
        shares = [np.where(np.isinf(l), 0.0, np.exp(l - want_lse)) for l in (la, lb)]
    want = sum(s[..., None] * wide(x, l) for s, x, l in zip(shares, (a, b), (la, lb)))
    both = np.maximum(np.abs(wide(a, la)), np.abs(wide(b, lb))).max(-1, keepdims=True, initial=0)
    bound = 64 * 2.0**-24 * both + {2: 2.0**-8, 4: 0}[np.dtype(io).itemsize] * np.abs(want)
    assert (np.abs(values(got) - want) <= bound).all()
    seen = np.isfinite(want_lse)
    assert (lse[~seen] == -np.inf).all()
    assert np.allclose(lse[seen], want_lse[seen], rtol=1e-6, atol=1e-6)


def test_merging_in_place():
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal((4, 2, 16)).astype(np.float32) for _ in range(2))
    la, lb = (rng.standard_normal((4, 2)).astype(np.float32) for _ in range(2))
    lse = np.zeros_like(la)
    want = hyla.attention.merge(a, la, b, lb, lse=lse)
    got = hyla.attention.merge(a, la, b, lb, lse=lb, out=a)
    assert got is a and (a == want).all() and (lb == lse).all()

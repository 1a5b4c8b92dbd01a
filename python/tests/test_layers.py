"""hyla.conv and hyla.norm against numpy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import hyla
import oracle
from arrays import (
    FRAMEWORKS,
    Strided,
    assert_rounded,
    float_dtypes,
    frameworks,
    implementations,
    index_dtypes,
    seeds,
    values,
)


class Conv:
    def __init__(self, draw, rows, extra_columns=0):
        self.rng = np.random.default_rng(draw(seeds))
        self.to = FRAMEWORKS[draw(frameworks)]
        self.hyla = draw(implementations)
        self.exact = self.hyla is hyla.reference
        self.io, self.pool_dtype = draw(float_dtypes), draw(float_dtypes)
        self.C, self.W = draw(st.integers(1, 6)), draw(st.integers(2, 4))
        self.columns = self.W - 1 + extra_columns
        self.activation = draw(st.sampled_from(["silu", None]))
        self.gap = draw(st.integers(0, 2))
        self.pool = Strided(
            self.normal(rows + 2, self.C, self.columns).astype(self.pool_dtype), self.gap
        )
        self.weight = self.normal(self.C, self.W).astype(draw(float_dtypes))
        self.bias = self.normal(self.C).astype(np.float32) if draw(st.booleans()) else None
        self.reads = self.rng.permutation(np.arange(-1, rows + 2))[:rows]
        self.index = draw(index_dtypes)

    def normal(self, *shape):
        return self.rng.standard_normal(shape)

    def keywords(self):
        result = {"activation": self.activation, "slots": self.to(self.reads.astype(self.index))}
        if self.bias is not None:
            result["bias"] = self.to(self.bias)
        return result

    def tokens(self, draw, x):
        """x as a tensor, and the keywords of a call that may write over it."""
        tokens = self.to(x.copy())
        return tokens, {"out": tokens} if draw(st.booleans()) else {}

    def check_padding(self, got, x, in_place):
        """Rows of padding are zero in a new output, and left alone in a given one."""
        assert (values(got) == (values(self.to(x)) if in_place else 0)).all()

    def row(self, x, slot, fresh=False):
        window = self.pool.before[slot, : self.C, : self.columns].astype(np.float64)
        window = window[:, self.columns - (self.W - 1) :]
        if fresh:
            window = np.zeros_like(window)
        result, error = oracle.measured(
            oracle.conv_row, x, self.weight, self.bias, window, self.activation
        )
        self.error = None if self.exact else error
        return result

    def check_pool(self, wanted):
        """wanted: the inputs [C, any] whose last columns a slot must hold."""
        for slot in range(self.pool.view.shape[0]):
            before = self.pool.before[slot, : self.C, : self.columns]
            if slot in wanted:
                columns = np.concatenate([before.astype(np.float64), wanted[slot]], axis=1)
                want = columns[:, columns.shape[1] - self.columns :].astype(self.pool_dtype)
            else:
                want = before
            assert self.pool.view[slot].tobytes() == want.tobytes()
        assert self.pool.gaps_untouched()


@given(st.data())
def test_conv_prefill(data):
    draw = data.draw
    lengths = draw(st.lists(st.integers(0, 6), max_size=3))
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    c = Conv(draw, len(lengths))
    x = c.normal(cu[-1], c.C).astype(c.io)
    initial = c.rng.random(len(lengths)) < 0.5
    tokens, over = c.tokens(draw, x)
    got = c.hyla.conv.prefill(
        tokens, c.to(c.weight), c.to(c.pool.view), **c.keywords(), **over,
        cu_seqlens=c.to(cu.astype(c.index)), has_initial_state=c.to(initial),
    )  # fmt: skip
    wanted = {}
    for n, slot in enumerate(c.reads):
        tokens = x[cu[n] : cu[n + 1]]
        if slot < 0:
            c.check_padding(got[cu[n] : cu[n + 1]], tokens, over)
            continue
        want, inputs = c.row(tokens, slot, fresh=not initial[n])
        assert_rounded(got[cu[n] : cu[n + 1]], want, c.io, naive_error=c.error)
        wanted[slot] = inputs if not initial[n] else inputs[:, c.W - 1 :]
    c.check_pool(wanted)


@given(st.data())
def test_conv_prefill_without_a_pool(data):
    draw = data.draw
    c = Conv(draw, 2)
    T = draw(st.integers(0, 5))
    x = c.normal(2, T, c.C).astype(c.io)
    keywords = c.keywords()
    del keywords["slots"]
    got = c.hyla.conv.prefill(c.to(x), c.to(c.weight), **keywords)
    for row in range(2):
        want, _ = c.row(x[row], 0, fresh=True)
        assert_rounded(got[row], want, c.io, naive_error=c.error)


@given(st.data())
def test_conv_update(data):
    draw = data.draw
    B, T = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    c = Conv(draw, B, extra_columns=draw(st.integers(0, 2)))
    one_token = T == 1 and draw(st.booleans())
    x = c.normal(*((B, c.C) if one_token else (B, T, c.C))).astype(c.io)
    commit = c.rng.integers(0, T + 1, B)
    keywords = c.keywords()
    if draw(st.booleans()):
        keywords["commit_lengths"] = c.to(commit.astype(c.index))
    else:
        commit = np.full(B, T)
    tokens, over = c.tokens(draw, x)
    got = c.hyla.conv.update(tokens, c.to(c.weight), c.to(c.pool.view), **keywords, **over)
    wanted = {}
    for row, slot in enumerate(c.reads):
        tokens = x[row].reshape(-1, c.C)
        if slot < 0:
            c.check_padding(got[row].reshape(-1, c.C), tokens, over)
            continue
        want, inputs = c.row(tokens, slot)
        assert_rounded(values(got[row]).reshape(want.shape), want, c.io, naive_error=c.error)
        wanted[slot] = inputs[:, c.W - 1 : c.W - 1 + commit[row]]
    c.check_pool(wanted)


@given(st.data())
def test_conv_pool_with_channels_last(data):
    """Engines keep [slots, L, C] too: its transposed view is taken as it is."""
    draw = data.draw
    rng = np.random.default_rng(draw(seeds))
    to = FRAMEWORKS[draw(frameworks)]
    C, W = 5, 4
    x = rng.standard_normal((2, C)).astype(np.float32)
    weight = rng.standard_normal((C, W)).astype(np.float32)
    pool = rng.standard_normal((2, W - 1, C)).astype(np.float32)
    before = pool.copy()
    view = to(pool).transpose(1, 2) if to is FRAMEWORKS["torch"] else pool.transpose(0, 2, 1)
    got = hyla.conv.update(to(x), to(weight), view, activation=None)
    for row in range(2):
        (want, _), error = oracle.measured(
            oracle.conv_row, x[row : row + 1], weight, None, before[row].T, None
        )
        assert_rounded(got[row], want[0], np.float32, naive_error=error)
        assert (pool[row] == np.concatenate([before[row, 1:], x[row : row + 1]])).all()


@given(st.data())
def test_gated_rms(data):
    draw = data.draw
    rng = np.random.default_rng(draw(seeds))
    to = FRAMEWORKS[draw(frameworks)]
    shape = draw(st.sampled_from([(3, 8), (2, 3, 16), (0, 8), (2, 0, 24)]))
    gap = draw(st.integers(0, 2))
    x, z = (Strided(rng.standard_normal(shape).astype(draw(float_dtypes)), gap) for _ in range(2))
    weight = rng.standard_normal(shape[-1]).astype(draw(float_dtypes))
    eps, gate = draw(st.sampled_from([1e-6, 0.5])), draw(st.sampled_from(["silu", "sigmoid"]))
    ops = draw(implementations)
    out = ops.norm.gated_rms(to(x.view), to(z.view), to(weight), eps=eps, gate=gate)
    want, error = oracle.measured(oracle.gated_rms, x.view, z.view, weight, eps, gate)
    exact = ops is hyla.reference
    assert_rounded(out, want, x.view.dtype.type, naive_error=None if exact else error)
    assert x.gaps_untouched() and z.gaps_untouched()


def test_fused_norm_is_the_norm_of_the_output():
    rng = np.random.default_rng(1)
    B, H, HV, K, V = 2, 1, 2, 16, 8
    q, k = (rng.standard_normal((B, H, K)).astype(np.float32) for _ in range(2))
    v, z = (rng.standard_normal((B, HV, V)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(V).astype(np.float32)
    pools = [np.zeros((B, HV, V, K), np.float32) for _ in range(2)]
    plain = hyla.reference.gdn.decode(q, k, v, pools[0], l2norm=True)
    fused = hyla.reference.gdn.decode(
        q, k, v, pools[1], l2norm=True, z=z, norm_weight=weight, norm_eps=1e-5, norm_gate="sigmoid"
    )
    want = oracle.gated_rms(plain, z, weight, 1e-5, "sigmoid")
    # The unfused norm sees the output rounded to float32: a relative error of eps in each x, so of at
    # most 2 eps in a normed value.
    assert (np.abs(fused - want) <= 3 * np.finfo(np.float32).eps * np.abs(want) + 1e-30).all()
    assert (pools[0] == pools[1]).all()

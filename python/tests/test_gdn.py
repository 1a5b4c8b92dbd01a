"""hyla.gdn against numpy, over shapes, dtypes, strides, slots, gates and layouts."""

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
    head_dims,
    implementations,
    index_dtypes,
    seeds,
    values,
)

gates = st.sampled_from(["none", "alpha", "log_alpha", "raw"])
betas = st.sampled_from(["none", "beta", "b"])
layouts = st.sampled_from(["vk", "kv"])


class Problem:
    """Random arguments of one call; every array knows what may not change around it."""

    def __init__(self, draw, tokens_shape):
        self.rng = np.random.default_rng(draw(seeds))
        self.to = FRAMEWORKS[draw(frameworks)]
        self.hyla = draw(implementations)
        self.exact = self.hyla is hyla.reference
        self.io, self.state_dtype = draw(float_dtypes), draw(float_dtypes)
        self.H = draw(st.integers(1, 3))
        self.HV = self.H * draw(st.integers(1, 2))
        self.K, self.V = draw(head_dims), draw(head_dims)
        self.layout = draw(layouts)
        self.gap = draw(st.integers(0, 2))
        self.arrays, self.operands = {}, np.float32
        self.error = 0.0  # of the oracle in float32, over the rows so far
        self.tokens = tokens_shape
        self.keywords = {"layout": self.layout, "l2norm": draw(st.booleans())}
        if draw(st.booleans()):
            self.keywords["scale"] = draw(st.sampled_from([0.0, 0.5, -1.25]))
        self.index_dtype = draw(index_dtypes)
        self.gate, self.beta = draw(gates), draw(betas)

    def add(self, name, array, gap=None):
        self.arrays[name] = Strided(array, self.gap if gap is None else gap)
        return self.to(self.arrays[name].view)

    def random(self, name, shape, dtype):
        return self.add(name, self.normal(name, shape).astype(dtype))

    def normal(self, name, shape):
        """Keys of length about 1: a recurrence over longer ones grows without end."""
        x = self.rng.standard_normal(shape)
        return x / np.sqrt(2 * shape[-1]) if name == "k" else x

    def given(self, name):
        """The values that hyla saw, in float64."""
        held = self.arrays[name]
        view = held.before[tuple(slice(0, s) for s in held.view.shape)]
        return view.astype(np.float64)

    def add_gates(self, heads):
        shape, dtype, out = (*self.tokens, heads), self.io, {}
        uniform = self.rng.random(shape)
        if self.gate == "alpha":
            out["alpha"] = self.add("alpha", uniform.astype(dtype))
        elif self.gate == "log_alpha":
            out["log_alpha"] = self.add("log_alpha", np.log(uniform).astype(dtype))
        elif self.gate == "raw":
            out["a"] = self.random("a", shape, dtype)
            out["A_log"] = self.random("A_log", (heads,), np.float32)
            out["dt_bias"] = self.random("dt_bias", (heads,), np.float32)
        if self.beta == "beta":
            out["beta"] = self.add("beta", (2 * self.rng.random(shape)).astype(dtype))
        elif self.beta == "b":
            out["b"] = self.random("b", shape, dtype)
        names = set(out)
        shape = (-1, heads)
        count = int(np.prod(self.tokens))
        self.alpha = oracle.gate_values(
            (count, heads),
            **{
                n: self.given(n).reshape(shape if n != "A_log" and n != "dt_bias" else (heads,))
                for n in names & {"alpha", "log_alpha", "a", "A_log", "dt_bias"}
            },
        )
        self.beta_values = oracle.beta_values(
            (count, heads), **{n: self.given(n).reshape(shape) for n in names & {"beta", "b"}}
        )
        return out

    def pool(self, slots, heads):
        shape = (self.V, self.K) if self.layout == "vk" else (self.K, self.V)
        return self.random("state", (slots, heads, *shape), self.state_dtype)

    def kv(self, states):
        """States of the pool as [..., K, V]."""
        return np.swapaxes(states, -1, -2) if self.layout == "vk" else states

    def rows(self, begin, end, slot_state):
        """What the oracle says about tokens [begin, end) from a state [heads, K, V]."""
        flat = {n: self.given(n).reshape(-1, *self.given(n).shape[-2:]) for n in ("q", "k", "v")}
        result, error = oracle.measured(
            oracle.gdn_rows,
            *(flat[n][begin:end] for n in ("q", "k", "v")),
            slot_state,
            self.alpha[begin:end],
            self.beta_values[begin:end],
            scale=self.keywords.get("scale"),
            norm=self.keywords["l2norm"],
            operands=self.operands,
        )
        self.error = max(self.error, error)
        return result

    def check(self, name, got, want):
        self.close(got, want, self.arrays[name].view.dtype.type)

    def close(self, got, want, dtype):
        error = None if self.exact else self.error
        assert_rounded(got, want, dtype, naive_error=error, operands=self.operands)

    def check_untouched(self, written=()):
        for name, held in self.arrays.items():
            assert held.gaps_untouched(), name
            if name not in written:
                assert held.base.tobytes() == held.before.tobytes(), name


@given(st.data())
def test_decode(data):
    draw = data.draw
    B = draw(st.integers(0, 3))
    p = Problem(draw, (B, 1) if draw(st.booleans()) else (B,))
    slots = draw(st.integers(max(B, 1), 4))
    first = draw(st.integers(0, 1))
    reads = p.rng.permutation(np.arange(-1, slots))[:B]
    writes = reads.copy() if draw(st.booleans()) else None
    if writes is not None and B and draw(st.booleans()):
        writes[0] = -1
    tensors = [
        p.random("q", (*p.tokens, p.H, p.K), p.io),
        p.random("k", (*p.tokens, p.H, p.K), p.io),
        p.random("v", (*p.tokens, p.HV, p.V), p.io),
        p.pool(slots, p.HV),
    ]
    keywords = {**p.keywords, **p.add_gates(p.HV), "first_slot": first}
    keywords["read_slots"] = p.add("read_slots", reads.astype(p.index_dtype))
    if writes is not None:
        keywords["write_slots"] = p.add("write_slots", writes.astype(p.index_dtype))
    out = p.add("out", np.full((*p.tokens, p.HV, p.V), 7, p.io))
    got = p.hyla.gdn.decode(*tensors, **keywords, out=out)
    assert got is out
    want_pool = p.given("state").copy()
    rows = p.arrays["out"].view.reshape(B, p.HV, p.V)
    for row, slot in enumerate(reads):
        if slot < first:
            assert (rows[row] == 7).all()
            continue
        want, after = p.rows(row, row + 1, p.kv(p.given("state")[slot]))
        p.check("out", rows[row], want[0])
        target = slot if writes is None else writes[row]
        if target >= first:
            want_pool[target] = p.kv(after[0])
    p.check("state", p.arrays["state"].view, want_pool)
    p.check_untouched({"state", "out"})


@given(st.data())
def test_mtp(data):
    draw = data.draw
    B, T = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    p = Problem(draw, (B, T))
    mode = draw(st.sampled_from(["final", "all", "steps", "commit", "keep"]))
    slots = B + B * T + 1
    tensors = [
        p.random("q", (B, T, p.H, p.K), p.io),
        p.random("k", (B, T, p.H, p.K), p.io),
        p.random("v", (B, T, p.HV, p.V), p.io),
        p.pool(slots, p.HV),
    ]
    keywords = {**p.keywords, **p.add_gates(p.HV)}
    reads = p.rng.permutation(np.arange(B))
    keywords["read_slots"] = p.add("read_slots", reads.astype(p.index_dtype))
    commit = p.rng.integers(0, T + 1, B)
    steps = B + p.rng.permutation(np.arange(B * T)).reshape(B, T)
    shape = (p.V, p.K) if p.layout == "vk" else (p.K, p.V)
    if mode == "all":
        states = np.zeros((B + 1, T + 1, p.HV, *shape), p.state_dtype)
        keywords["states_out"] = p.add("states_out", states)
    elif mode == "steps":
        keywords["step_slots"] = p.add("step_slots", steps.astype(p.index_dtype))
    elif mode == "commit":
        keywords["commit_lengths"] = p.add("commit_lengths", commit.astype(p.index_dtype))
    elif mode == "keep":
        keywords["update_state"] = False
    got = p.hyla.gdn.mtp(*tensors, **keywords)
    want_pool = p.given("state").copy()
    for row, slot in enumerate(reads):
        want, after = p.rows(row * T, row * T + T, p.kv(p.given("state")[slot]))
        p.close(got[row], want, p.io)
        if mode == "all":
            states = p.arrays["states_out"].view[row, :T]
            p.check("states_out", states, p.kv(after))
        if mode == "steps":
            want_pool[steps[row]] = p.kv(after)
        elif mode == "commit":
            if commit[row]:
                want_pool[slot] = p.kv(after[commit[row] - 1])
        elif mode != "keep":
            want_pool[slot] = p.kv(after[-1])
    p.check("state", p.arrays["state"].view, want_pool)
    p.check_untouched({"state", "states_out"})


def ragged(draw, most=70):
    lengths = draw(st.lists(st.integers(0, most), min_size=0, max_size=3))
    return np.array(lengths, np.int64), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@given(st.data())
def test_prefill(data):
    draw = data.draw
    lengths, cu = ragged(draw)
    N, total = len(lengths), int(cu[-1])
    p = Problem(draw, (total,))
    p.operands = p.io
    grouped_queries = draw(st.booleans())
    heads = p.HV
    Hq, Hk, HV = (heads, p.H, p.H) if grouped_queries else (p.H, p.H, heads)
    tensors = [
        p.random("q", (total, Hq, p.K), p.io),
        p.random("k", (total, Hk, p.K), p.io),
        p.random("v", (total, HV, p.V), p.io),
    ]
    keywords = {**p.keywords, **p.add_gates(heads)}
    if draw(st.booleans()):
        keywords["cu_seqlens"] = p.add("cu_seqlens", cu.astype(p.index_dtype))
    else:
        keywords["starts"] = p.add("starts", cu[:-1].astype(p.index_dtype))
        keywords["lengths"] = p.add("lengths", lengths.astype(p.index_dtype))
    told = draw(st.sampled_from(["not", "right", "shuffled", "too long"]))
    if told != "not":  # no result depends on it
        said = {"right": lengths, "shuffled": p.rng.permutation(lengths), "too long": lengths * 9}
        keywords["host_lengths"] = p.add("host_lengths", said[told].astype(p.index_dtype))
    reads = p.rng.permutation(np.arange(-1, N + 1))[:N]
    initial = p.rng.random(N) < 0.5
    checkpoints = draw(st.booleans())
    counts = lengths // 64
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if draw(st.booleans()):
        keywords["state"] = p.pool(N + 1, heads)
        keywords["has_initial_state"] = p.add("has_initial_state", initial)
        before = p.given("state")
    else:
        shape = (p.V, p.K) if p.layout == "vk" else (p.K, p.V)
        before = np.zeros((N + 1, heads, *shape))
        initial = np.ones(N, bool)
    keywords["read_slots"] = p.add("read_slots", reads.astype(p.index_dtype))
    if checkpoints:
        shape = (p.V, p.K) if p.layout == "vk" else (p.K, p.V)
        buffer = np.full((int(starts[-1]) + 1, heads, *shape), 5, np.float32)
        keywords["checkpoints"] = p.add("checkpoints", buffer)
        keywords["checkpoint_starts"] = p.add("checkpoint_starts", starts)
        keywords["checkpoint_every"] = 64
    got = p.hyla.gdn.prefill(*tensors, **keywords)
    want_pool = before.copy()
    for n in range(N):
        begin, end = int(cu[n]), int(cu[n + 1])
        if reads[n] < 0:
            assert (values(got[begin:end]) == 0).all()
            continue
        state = p.kv(before[reads[n]]) * initial[n]
        want, after = p.rows(begin, end, state)
        p.close(got[begin:end], want, p.io)
        want_pool[reads[n]] = p.kv(after[-1] if end > begin else state)
        if checkpoints:
            for i in range(counts[n]):
                got_state = p.arrays["checkpoints"].view[starts[n] + i]
                p.check("checkpoints", got_state, p.kv(after[64 * (i + 1) - 1]))
    if "state" in keywords:
        p.check("state", p.arrays["state"].view, want_pool)
    p.check_untouched({"state", "checkpoints"})


@given(st.data())
def test_recurrence(data):
    draw = data.draw
    lengths, cu = ragged(draw, most=5)
    N, total = len(lengths), int(cu[-1])
    p = Problem(draw, (total,))
    shapes = {"q": (total, p.H, p.K), "k": (total, p.H, p.K), "v": (total, p.HV, p.V)}
    q, k, v = (p.normal(name, shape).astype(p.io) for name, shape in shapes.items())
    for name, array in (("q", q), ("k", k), ("v", v)):
        p.arrays[name] = Strided(array, 0)
    packed = np.concatenate([x.reshape(total, x.shape[1] * x.shape[2]) for x in (q, k, v)], axis=1)
    qkv = p.add("qkv", packed)
    keywords = {**p.keywords, **p.add_gates(p.HV)}
    keywords["cu_seqlens"] = p.add("cu_seqlens", cu.astype(p.index_dtype))
    state = p.pool(N + 1, p.HV)
    slots = p.rng.permutation(np.arange(N + 1))[:N]
    keywords["read_slots"] = p.add("read_slots", slots.astype(p.index_dtype))
    got = p.hyla.gdn.recurrence(
        qkv, state=state, heads=(p.H, p.HV), dims=(p.K, p.V), **keywords
    )
    want_pool = p.given("state").copy()
    for n, slot in enumerate(slots):
        begin, end = int(cu[n]), int(cu[n + 1])
        want, after = p.rows(begin, end, p.kv(p.given("state")[slot]))
        p.close(got[begin:end], want.reshape(end - begin, p.HV * p.V), p.io)
        if end > begin:
            want_pool[slot] = p.kv(after[-1])
    p.check("state", p.arrays["state"].view, want_pool)
    p.check_untouched({"state"})


@given(st.data())
def test_a_sequence_gives_the_same_through_every_operation(data):
    """Prefill, MTP and decode continue one another."""
    draw = data.draw
    T = draw(st.integers(3, 8))
    cuts = sorted(draw(st.tuples(st.integers(0, T), st.integers(0, T))))
    rng = np.random.default_rng(draw(seeds))
    H, HV, K, V = 2, 4, 16, 8
    q, k = (rng.standard_normal((T, H, K)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((T, HV, V)).astype(np.float32)
    log_alpha = np.log(rng.random((T, HV))).astype(np.float32)
    whole = np.zeros((1, HV, V, K), np.float32)
    want = hyla.gdn.prefill(
        q, k, v, cu_seqlens=np.array([0, T]), state=whole, log_alpha=log_alpha, l2norm=True
    )
    pool, parts = np.zeros((1, HV, V, K), np.float32), []
    a, b = cuts
    parts.append(
        hyla.gdn.prefill(
            q[:a], k[:a], v[:a], cu_seqlens=np.array([0, a]), state=pool,
            log_alpha=log_alpha[:a], l2norm=True,
        )
    )  # fmt: skip
    parts.append(
        hyla.gdn.mtp(
            q[None, a:b], k[None, a:b], v[None, a:b], pool,
            log_alpha=log_alpha[None, a:b], l2norm=True,
        )[0]
    )  # fmt: skip
    for t in range(b, T):
        parts.append(
            hyla.gdn.decode(
                q[None, t], k[None, t], v[None, t], pool,
                log_alpha=log_alpha[None, t], l2norm=True,
            )
        )  # fmt: skip
    # Each cut rounds the state to float32, an error that a step can at most pass on (|k| = 1).
    bound = T * np.finfo(np.float32).eps * np.abs(v).max() * T
    assert np.abs(np.concatenate(parts) - want).max() <= bound
    assert np.abs(pool - whole).max() <= bound

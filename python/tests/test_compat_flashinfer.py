"""hyla.compat.flashinfer against numpy, under FlashInfer's names, defaults and documented rules."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hyla
from compat_tools import FLOATS, assert_close, gated_delta, raw_gate, sigmoid, signature, to_numpy
from hyla.compat import flashinfer

NONE = None
SIGNATURES = {
    "gated_delta_rule_decode": [
        "q", "k", "v", "state", "A_log", "a", "dt_bias", "b", ("scale", NONE), ("output", NONE),
        ("use_qk_l2norm", True), ("backend", "auto"),
    ],
    "gated_delta_rule_decode_pretranspose": [
        "q", "k", "v", "state", "A_log", "a", "dt_bias", "b", ("scale", NONE), ("output", NONE),
        ("use_qk_l2norm", True), ("initial_state", NONE), ("initial_state_indices", NONE),
        ("output_state_indices", NONE), ("intermediate_states_buffer", NONE),
        ("disable_state_update", False), ("backend", "auto"),
    ],
    "gated_delta_rule_mtp": [
        "q", "k", "v", "initial_state", "initial_state_indices", "A_log", "a", "dt_bias", "b",
        ("scale", NONE), ("output", NONE), ("intermediate_states_buffer", NONE),
        ("ssm_state_indices", NONE), ("disable_state_update", NONE), ("use_qk_l2norm", True),
        ("output_state_indices", NONE), ("cache_replayssm", False), ("replayssm_rawv", NONE),
        ("replayssm_rawk", NONE), ("replayssm_g", NONE), ("replayssm_beta", NONE),
    ],
    "chunk_gated_delta_rule": [
        "q", "k", "v", ("g", NONE), ("beta", NONE), ("scale", NONE), ("initial_state", NONE),
        ("output_final_state", False), ("cu_seqlens", NONE), ("use_qk_l2norm_in_kernel", False),
        ("output", NONE), ("output_state", NONE), ("state_checkpoints", NONE),
        ("checkpoint_cu_starts", NONE), ("checkpoint_every_n_tokens", 0), ("use_cp", "auto"),
        ("state_indices", NONE), ("_cp_chunk_len", NONE), ("backend", "auto"),
        ("max_seqlen", NONE),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_flashinfers(name):
    assert signature(getattr(flashinfer, name)) == SIGNATURES[name]


class Rows:
    """Random inputs of B rows of T tokens over a pool, and what each row must give."""

    def __init__(self, seed, B, T, dtype=torch.bfloat16, state=torch.float32, H=2, HV=4, K=16, V=24,
                 slots=None):
        generator = torch.Generator().manual_seed(seed)
        normal = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
        self.B, self.T, self.dtype = B, T, dtype
        self.q, self.k = normal(B, T, H, K).to(dtype), normal(B, T, H, K).to(dtype)
        self.v = normal(B, T, HV, V).to(dtype)
        self.a, self.b = normal(B, T, HV).to(dtype), normal(B, T, HV).to(dtype)
        self.A_log, self.dt_bias = normal(HV), normal(HV)
        self.pool = normal(B if slots is None else slots, HV, V, K).to(state)
        self.before = self.pool.clone()

    @property
    def gates(self):
        return self.A_log, self.a, self.dt_bias, self.b

    def row(self, b, slot, dtype=np.float64, scale=None, norm=True):
        """Outputs [T, HV, V] and states [T + 1, HV, V, K] of row b from a slot."""
        alpha = raw_gate(self.a[b], self.A_log, self.dt_bias)
        beta = sigmoid(to_numpy(self.b[b]))
        q, k, v = (to_numpy(x[b]) for x in (self.q, self.k, self.v))
        start = to_numpy(self.before[slot]).transpose(0, 2, 1)
        out, states = gated_delta(q, k, v, start, alpha, beta, scale=scale, norm=norm, dtype=dtype)
        return out, states.transpose(0, 1, 3, 2)

    def check_row(self, b, slot, out, *, scale=None, norm=True):
        exact, naive = (self.row(b, slot, d, scale, norm)[0] for d in (np.float64, np.float32))
        assert_close(out, exact, naive)

    def check_state(self, b, slot, got, after, *, norm=True):
        exact, naive = (self.row(b, slot, d, norm=norm)[1][after] for d in (np.float64, np.float32))
        assert_close(got, exact, naive)


def same(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 4), st.sampled_from(FLOATS), st.booleans(),
       st.sampled_from([None, 0.0, 0.3]), st.booleans())  # fmt: skip
def test_decode_over_states_with_v_innermost(seed, B, dtype, norm, scale, given_output):
    rows = Rows(seed, B, 1, dtype)
    state = rows.pool.transpose(2, 3).contiguous()
    output = torch.full_like(rows.v, torch.nan) if given_output else None
    out, returned = flashinfer.gated_delta_rule_decode(
        rows.q, rows.k, rows.v, state, *rows.gates, scale, output, norm
    )
    assert returned is state and (output is None or out is output)
    assert out.dtype == dtype and out.shape == rows.v.shape
    for b in range(B):
        rows.check_row(b, b, out[b], scale=scale, norm=norm)
        rows.check_state(b, b, state[b].transpose(1, 2), 1, norm=norm)


@pytest.mark.parametrize("function", ["decode", "pretranspose"])
def test_a_state_of_any_strides_is_updated_in_place(function):
    rows = Rows(1, 3, 1)
    if function == "decode":
        state = rows.pool.transpose(2, 3)  # K innermost
        flashinfer.gated_delta_rule_decode(rows.q, rows.k, rows.v, state, *rows.gates)
    else:
        rows.pool = rows.before.transpose(2, 3).contiguous().transpose(2, 3)  # V innermost
        flashinfer.gated_delta_rule_decode_pretranspose(
            rows.q, rows.k, rows.v, rows.pool, *rows.gates
        )
    for b in range(3):
        rows.check_state(b, b, rows.pool[b], 1)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 9999), st.integers(1, 4), st.integers(1, 3),
       st.sampled_from(FLOATS), st.sampled_from(FLOATS),
       st.sampled_from([torch.int32, torch.int64]), st.booleans(), st.booleans(),
       st.booleans())  # fmt: skip
def test_pretranspose_over_a_pool(
    data, seed, B, T, dtype, state, index, split, with_output, frozen
):
    slots = 2 * B + 2
    rows = Rows(seed, B, T, dtype, state, slots=slots)
    order = data.draw(st.permutations(range(slots)))
    read = [data.draw(st.sampled_from([order[b], order[b], -1])) for b in range(B)]
    write = [data.draw(st.sampled_from([order[B + b], -1])) for b in range(B)] if split else read
    output = torch.full_like(rows.v, 7) if with_output else None
    buffer = None
    if T > 1:
        buffer = torch.full((B, T + 1, *rows.pool.shape[1:]), torch.nan, dtype=state)
    frozen = frozen and T > 1
    out, returned = flashinfer.gated_delta_rule_decode_pretranspose(
        rows.q, rows.k, rows.v, None, *rows.gates, output=output, initial_state=rows.pool,
        initial_state_indices=torch.tensor(read, dtype=index),
        output_state_indices=torch.tensor(write, dtype=index) if split else None,
        intermediate_states_buffer=buffer, disable_state_update=frozen,
    )  # fmt: skip
    assert returned is rows.pool and (output is None or out is output)
    touched = set()
    for b in range(B):
        if read[b] < 0:
            kept = 7 if with_output and T > 1 else 0
            assert (out[b] == kept).all()
            assert buffer is None or buffer[b].isnan().all()
            continue
        rows.check_row(b, read[b], out[b])
        if write[b] >= 0 and not frozen:
            touched.add(write[b])
            rows.check_state(b, read[b], rows.pool[write[b]], T)
        if buffer is not None:
            for t in range(T):
                rows.check_state(b, read[b], buffer[b, t], t + 1)
            assert buffer[b, T:].isnan().all()
    for slot in set(range(slots)) - touched:
        assert same(rows.pool[slot], rows.before[slot])


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 9999), st.integers(0, 3), st.integers(1, 4),
       st.sampled_from(FLOATS), st.sampled_from(["buffer", "scatter", "plain"]),
       st.booleans())  # fmt: skip
def test_mtp(data, seed, B, T, dtype, mode, update):
    slots = B * (T + 1) + 2
    rows = Rows(seed, B, T, dtype, slots=slots)
    order = data.draw(st.permutations(range(slots)))
    read = [data.draw(st.sampled_from([order[b], order[b], -1])) for b in range(B)]
    scatter = mode == "scatter" and T > 1
    update = update or scatter
    steps = np.array(order[B : B + B * T]).reshape(B, T)
    steps[data.draw(st.integers(0, 3)) % max(B, 1) :, :1] = -3
    buffer = torch.full((B + 1, T + 2, *rows.pool.shape[1:]), torch.nan)
    output = torch.full(rows.v.shape, 7, dtype=torch.float32) if data.draw(st.booleans()) else None
    out, returned = flashinfer.gated_delta_rule_mtp(
        rows.q, rows.k, rows.v, rows.pool, torch.tensor(read, dtype=torch.int64), *rows.gates,
        output=output, intermediate_states_buffer=buffer if mode == "buffer" else None,
        ssm_state_indices=torch.tensor(steps, dtype=torch.int32).view(B, T) if scatter else None,
        disable_state_update=not update,
    )  # fmt: skip
    assert returned is rows.pool
    assert out is output if output is not None else out.dtype == dtype
    touched = set()
    for b in range(B):
        if read[b] < 0:
            assert (out[b] == (0 if output is None else 7)).all()
            continue
        rows.check_row(b, read[b], out[b].to(dtype))
        for t in range(T):
            if mode == "buffer":
                rows.check_state(b, read[b], buffer[b, t], t + 1)
            if scatter and steps[b, t] >= 0:
                touched.add(int(steps[b, t]))
                rows.check_state(b, read[b], rows.pool[steps[b, t]], t + 1)
        if update and not scatter:
            touched.add(read[b])
            rows.check_state(b, read[b], rows.pool[read[b]], T)
    assert buffer[B:].isnan().all() and buffer[:, T:].isnan().all()
    for slot in set(range(slots)) - touched:
        assert same(rows.pool[slot], rows.before[slot])


def test_mtp_writes_where_output_state_indices_say():
    rows = Rows(3, 2, 2, slots=9)
    flashinfer.gated_delta_rule_mtp(
        rows.q, rows.k, rows.v, rows.pool, torch.tensor([0, 1]), *rows.gates,
        ssm_state_indices=torch.tensor([[2, 3], [4, 5]], dtype=torch.int32),
        disable_state_update=False, output_state_indices=torch.tensor([6, -1]),
    )  # fmt: skip
    rows.check_state(0, 0, rows.pool[6], 2)
    assert same(rows.pool[[0, 1, 7, 8]], rows.before[[0, 1, 7, 8]])
    assert same(rows.pool[6], rows.pool[3])


def test_mtp_warns_about_its_default_and_keeps_the_pool():
    rows = Rows(4, 1, 2)
    with pytest.warns(DeprecationWarning, match="disable_state_update") as caught:
        flashinfer.gated_delta_rule_mtp(
            rows.q, rows.k, rows.v, rows.pool, torch.tensor([0]), *rows.gates
        )
    assert caught[0].filename == __file__
    assert same(rows.pool, rows.before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flashinfer.gated_delta_rule_mtp(
            rows.q, rows.k, rows.v, rows.pool, torch.tensor([0]), *rows.gates,
            disable_state_update=False,
        )  # fmt: skip
    assert not same(rows.pool, rows.before)


class Sequences:
    """Random ragged sequences for the chunked function, k normalised as models do it."""

    def __init__(self, seed, lengths, heads=(2, 2, 4), dtype=torch.bfloat16, K=16, V=24):
        generator = torch.Generator().manual_seed(seed)
        normal = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
        total, self.heads = sum(lengths), max(heads[0], heads[2])
        self.lengths = lengths
        self.cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64)
        self.q = normal(total, heads[0], K).to(dtype)
        self.k = torch.nn.functional.normalize(normal(total, heads[1], K), dim=-1).to(dtype)
        self.v = normal(total, heads[2], V).to(dtype)
        self.g = torch.rand(total, self.heads, generator=generator)
        self.beta = torch.rand(total, self.heads, generator=generator)
        self.initial = normal(len(lengths), self.heads, V, K)

    @property
    def tokens(self):
        return self.q, self.k, self.v

    def expect(self, n, dtype, initial=None, **options):
        """Outputs and states [T + 1, Hs, V, K] of sequence n."""
        rows = slice(int(self.cu[n]), int(self.cu[n + 1]))
        K, V = self.q.shape[2], self.v.shape[2]
        S = np.zeros((self.heads, V, K)) if initial is None else to_numpy(initial)
        gates = [
            np.ones((self.lengths[n], self.heads)) if options.pop(name, True) is None
            else to_numpy(x[rows]) for name, x in (("g", self.g), ("beta", self.beta))
        ]  # fmt: skip
        tokens = (to_numpy(x[rows]) for x in self.tokens)
        out, states = gated_delta(*tokens, S.transpose(0, 2, 1), *gates, dtype=dtype, **options)
        return out, states.transpose(0, 1, 3, 2)

    def check(self, n, out, state=None, initial=None, **options):
        exact, naive = (self.expect(n, d, initial, **options) for d in (np.float64, np.float32))
        coarse = self.q.dtype
        rows = slice(int(self.cu[n]), int(self.cu[n + 1]))
        assert_close(out[rows], exact[0], naive[0], coarse)
        if state is not None:
            assert_close(state, exact[1][-1], naive[1][-1], coarse)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(0, 9999), st.lists(st.sampled_from([0, 1, 5, 17, 70]), min_size=1,
                                                  max_size=3),
       st.sampled_from([(1, 1, 1), (2, 2, 4), (4, 2, 2)]), st.sampled_from(FLOATS))  # fmt: skip
def test_chunk(data, seed, lengths, heads, dtype):
    x = Sequences(seed, lengths, heads, dtype)
    names = "initial", "final", "output", "norm"
    flags = {name: data.draw(st.booleans(), name) for name in names}
    g, beta = (data.draw(st.sampled_from([None, y])) for y in (x.g, x.beta))
    scale = data.draw(st.sampled_from([None, 0.0, 1.0]))
    initial = x.initial.clone() if flags["initial"] else None
    output = torch.full((x.q.shape[0], x.heads, 24), torch.nan, dtype=dtype)
    result = flashinfer.chunk_gated_delta_rule(
        *x.tokens, g, beta, scale, initial, flags["final"], x.cu, flags["norm"],
        output if flags["output"] else None,
    )  # fmt: skip
    out, state = result if flags["final"] else (result, None)
    assert not flags["output"] or out is output
    assert state is None or (state.dtype == torch.float32 and state.shape == x.initial.shape)
    assert initial is None or same(initial, x.initial)
    for n in range(len(lengths)):
        x.check(n, out, None if state is None else state[n],
                None if initial is None else initial[n], scale=scale or None,
                norm=flags["norm"], g=g, beta=beta)  # fmt: skip


@pytest.mark.parametrize("in_place", [True, False])
def test_chunk_over_a_pool(in_place):
    x = Sequences(5, [3, 66, 0, 2])
    pool = torch.randn(7, x.heads, 24, 16, generator=torch.Generator().manual_seed(6))
    before, slots = pool.clone(), [4, 0, 6, -1]
    target = pool if in_place else torch.full_like(pool, torch.nan)
    out, returned = flashinfer.chunk_gated_delta_rule(
        *x.tokens, x.g, x.beta, initial_state=pool, output_final_state=True, cu_seqlens=x.cu,
        output_state=target, state_indices=torch.tensor(slots, dtype=torch.int32), max_seqlen=66,
    )  # fmt: skip
    assert returned is target
    for n, slot in enumerate(slots[:3]):
        x.check(n, out, target[slot], before[slot])
    assert same(target[6], before[6])  # no tokens: passed through
    assert (out[-2:] == 0).all()  # a negative slot: padding
    others = [1, 2, 3, 5]
    assert same(pool[others], before[others])
    assert in_place or (target[others].isnan().all() and same(pool, before))


def test_chunk_without_a_final_state_leaves_the_pool_alone():
    x = Sequences(7, [3, 2])
    pool = torch.randn(5, x.heads, 24, 16)
    before = pool.clone()
    out = flashinfer.chunk_gated_delta_rule(
        *x.tokens, x.g, x.beta, initial_state=pool, cu_seqlens=x.cu,
        state_indices=torch.tensor([4, 1]),
    )  # fmt: skip
    x.check(0, out, initial=pool[4])
    x.check(1, out, initial=pool[1])
    assert same(pool, before)


def test_chunk_checkpoints():
    x = Sequences(8, [130, 63, 64], heads=(1, 1, 1), K=8, V=8)
    states = torch.full((4, 1, 8, 8), torch.nan)
    flashinfer.chunk_gated_delta_rule(
        *x.tokens, x.g, x.beta, cu_seqlens=x.cu, state_checkpoints=states,
        checkpoint_cu_starts=torch.tensor([0, 2, 2, 3]), checkpoint_every_n_tokens=64,
    )  # fmt: skip
    for row, (n, tokens) in enumerate([(0, 64), (0, 128), (2, 64)]):
        exact, naive = (x.expect(n, d)[1][tokens] for d in (np.float64, np.float32))
        assert_close(states[row], exact, naive, torch.bfloat16)
    assert states[3].isnan().all()


def decode_call(**changed):
    rows = Rows(0, 2, changed.pop("T", 1), slots=4)
    arguments = {
        "q": rows.q, "k": rows.k, "v": rows.v, "state": None, "A_log": rows.A_log, "a": rows.a,
        "dt_bias": rows.dt_bias, "b": rows.b, "initial_state": rows.pool,
        "initial_state_indices": torch.tensor([0, 1]),
    }  # fmt: skip
    return lambda: flashinfer.gated_delta_rule_decode_pretranspose(**{**arguments, **changed})


def mtp_call(**changed):
    rows = Rows(0, 2, changed.pop("T", 2), slots=6)
    arguments = {
        "q": rows.q, "k": rows.k, "v": rows.v, "A_log": rows.A_log, "a": rows.a,
        "dt_bias": rows.dt_bias, "b": rows.b, "initial_state": rows.pool,
        "initial_state_indices": torch.tensor([0, 1]), "disable_state_update": False,
    }  # fmt: skip
    return lambda: flashinfer.gated_delta_rule_mtp(**{**arguments, **changed})


def chunk_call(**changed):
    x = Sequences(0, [3, 2])
    arguments = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.beta, "cu_seqlens": x.cu}
    return lambda: flashinfer.chunk_gated_delta_rule(**{**arguments, **changed})


SLOTS = torch.tensor([2, 3])
STEPS = torch.tensor([[2, 3], [4, 5]], dtype=torch.int32)
BUFFER = torch.zeros(2, 2, 4, 24, 16)


@pytest.mark.parametrize(
    ("call", "argument", "kind"),
    [
        (decode_call(backend="cuda"), "backend", ValueError),
        (decode_call(q=torch.zeros(2, 2, 16)), "q", AssertionError),
        (decode_call(intermediate_states_buffer=BUFFER), "intermediate_states_buffer", ValueError),
        (decode_call(disable_state_update=True), "disable_state_update", ValueError),
        (decode_call(initial_state=None), "state", AssertionError),
        (decode_call(initial_state_indices=None), "initial_state_indices", AssertionError),
        (decode_call(initial_state_indices=SLOTS[:1]), "initial_state_indices", AssertionError),
        (decode_call(initial_state_indices=SLOTS + 2), "initial_state_indices", ValueError),
        (decode_call(initial_state_indices=SLOTS.float()), "initial_state_indices", AssertionError),
        (decode_call(output_state_indices=SLOTS[:1]), "output_state_indices", AssertionError),
        (decode_call(initial_state=torch.zeros(4, 4, 16, 24)), "initial_state", AssertionError),
        (decode_call(initial_state=torch.zeros(4, 4, 16, 24).transpose(2, 3)), "initial_state",
         AssertionError),
        (decode_call(state=torch.zeros(2, 4, 24, 16), initial_state=None), "initial_state_indices",
         AssertionError),
        (decode_call(output=torch.zeros(2, 1, 4, 16, dtype=torch.bfloat16)), "output", ValueError),
        (mtp_call(initial_state=torch.zeros(6, 4, 16, 24)), "initial_state", AssertionError),
        (mtp_call(ssm_state_indices=STEPS, intermediate_states_buffer=BUFFER), "ssm_state_indices",
         AssertionError),
        (mtp_call(ssm_state_indices=STEPS, disable_state_update=True), "disable_state_update",
         AssertionError),
        (mtp_call(ssm_state_indices=STEPS.long()), "ssm_state_indices", AssertionError),
        (mtp_call(ssm_state_indices=STEPS[:, :1]), "ssm_state_indices", AssertionError),
        (mtp_call(ssm_state_indices=STEPS[:, :1], T=1), "ssm_state_indices", AssertionError),
        (mtp_call(ssm_state_indices=STEPS + 9), "ssm_state_indices", ValueError),
        (mtp_call(intermediate_states_buffer=BUFFER[:, :1]), "intermediate_states_buffer",
         ValueError),
        (mtp_call(intermediate_states_buffer=BUFFER[:1]), "intermediate_states_buffer", ValueError),
        (mtp_call(cache_replayssm=True), "cache_replayssm", NotImplementedError),
        (mtp_call(replayssm_g=BUFFER), "replayssm_g", AssertionError),
        (chunk_call(cu_seqlens=None), "cu_seqlens", AssertionError),
        (chunk_call(cu_seqlens=torch.tensor([0])), "cu_seqlens", ValueError),
        (chunk_call(cu_seqlens=torch.tensor([0, 9])), "cu_seqlens", ValueError),
        (chunk_call(backend="triton"), "backend", ValueError),
        (chunk_call(use_cp="yes"), "use_cp", ValueError),
        (chunk_call(max_seqlen=2), "max_seqlen", ValueError),
        (chunk_call(max_seqlen=6), "max_seqlen", ValueError),
        (chunk_call(max_seqlen=3.0), "max_seqlen", ValueError),
        (chunk_call(g=torch.ones(5, 2)), "g", ValueError),
        (chunk_call(initial_state=torch.zeros(3, 4, 24, 16)), "initial_state", ValueError),
        (chunk_call(initial_state=torch.zeros(2, 4, 24, 16, dtype=torch.float8_e4m3fn)),
         "initial_state", ValueError),
        (chunk_call(output_state=torch.zeros(1, 4, 24, 16)), "output_state", ValueError),
        (chunk_call(state_indices=SLOTS, output_final_state=True), "output_state", ValueError),
        (chunk_call(state_indices=SLOTS[:1]), "state_indices", ValueError),
        (chunk_call(state_indices=SLOTS.float()), "state_indices", ValueError),
        (chunk_call(state_indices=SLOTS, initial_state=torch.zeros(3, 4, 24, 16)), "state_indices",
         ValueError),
        (chunk_call(checkpoint_every_n_tokens=32), "checkpoint_every_n_tokens", ValueError),
        (chunk_call(checkpoint_every_n_tokens=-64), "checkpoint_every_n_tokens", ValueError),
        (chunk_call(checkpoint_every_n_tokens=64), "state_checkpoints", ValueError),
        (chunk_call(state_checkpoints=BUFFER[0]), "state_checkpoints", ValueError),
    ],
)  # fmt: skip
def test_errors_name_flashinfers_argument(call, argument, kind):
    with pytest.raises((hyla.InvalidArgument, hyla.Unsupported)) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert str(caught.value).startswith(f"{argument}: ")

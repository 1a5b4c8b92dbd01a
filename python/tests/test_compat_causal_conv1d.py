"""hyla.compat.causal_conv1d against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hyla
from compat_tools import FLOATS, assert_close, convolve, signature, to_numpy
from hyla.compat.causal_conv1d import causal_conv1d_fn, causal_conv1d_update

ACTIVATIONS = [None, "silu", "swish"]


def test_the_signatures_are_causal_conv1ds():
    assert signature(causal_conv1d_fn) == [
        "x", "weight", ("bias", None), ("seq_idx", None), ("initial_states", None),
        ("return_final_states", False), ("final_states_out", None), ("activation", None),
    ]  # fmt: skip
    assert signature(causal_conv1d_update) == [
        "x", "conv_state", "weight", ("bias", None), ("activation", None), ("cache_seqlens", None),
        ("conv_state_indices", None),
    ]  # fmt: skip


class Inputs:
    def __init__(self, seed, B, D, T, W, dtype, bias, channels_last=False):
        generator = torch.Generator().manual_seed(seed)
        self.normal = lambda *shape: torch.randn(shape, generator=generator)
        x = self.normal(B, T, D).to(dtype).transpose(1, 2)
        self.x = x if channels_last else x.contiguous()
        self.weight = self.normal(D, W).to(dtype)
        self.bias = self.normal(D).to(dtype) if bias else None

    def check(self, out, x, window, activation):
        exact, naive = (
            convolve(to_numpy(x), to_numpy(self.weight), to_numpy(self.bias), window,
                     activation is not None, dtype)
            for dtype in (np.float64, np.float32)
        )  # fmt: skip
        # A vector is the tokens of a channel, whose sums have the same weights.
        assert_close(out, exact, naive)


common = (
    st.integers(0, 9999), st.integers(1, 3), st.sampled_from([1, 5]), st.integers(1, 6),
    st.integers(2, 4), st.sampled_from(FLOATS), st.booleans(), st.sampled_from(ACTIVATIONS),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(*common, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_sequences(seed, B, D, T, W, dtype, bias, activation, last, initial, final, given_final):
    y = Inputs(seed, B, D, T, W, dtype, bias, last)
    before = y.normal(B, D, W - 1).to(dtype)
    kept = before.clone()
    target = torch.full((B, D, W - 1), torch.nan, dtype=dtype) if given_final else None
    result = causal_conv1d_fn(
        y.x, y.weight, y.bias, initial_states=before if initial else None,
        return_final_states=final, final_states_out=target, activation=activation,
    )  # fmt: skip
    out, state = result if final else (result, None)
    assert torch.equal(before, kept)
    assert out.dtype == dtype and out.stride() == y.x.stride()
    window = before if initial else torch.zeros_like(before)
    for b in range(B):
        y.check(out[b], y.x[b], to_numpy(window[b]), activation)
    if final:
        assert target is None or state is target
        assert torch.equal(state, torch.cat([window, y.x], 2)[:, :, -(W - 1) :])
    elif given_final:
        assert target.isnan().all()


@settings(max_examples=30, deadline=None)
@given(st.data(), *common)
def test_packed_sequences_do_not_see_each_other(data, seed, B, D, T, W, dtype, bias, activation):
    y = Inputs(seed, B, D, T, W, dtype, bias, data.draw(st.booleans()))
    seq_idx = torch.tensor(
        [sorted(data.draw(st.lists(st.integers(-1, 3), min_size=T, max_size=T))) for _ in range(B)],
        dtype=torch.int32,
    )
    out = causal_conv1d_fn(y.x, y.weight, y.bias, seq_idx, activation=activation)
    assert out.stride() == y.x.stride()
    for b in range(B):
        for n in seq_idx[b].unique():
            mine = seq_idx[b] == n
            if n < 0:
                assert (out[b][:, mine] == 0).all()
            else:
                y.check(out[b][:, mine], y.x[b][:, mine], np.zeros((D, W - 1)), activation)


@settings(max_examples=40, deadline=None)
@given(st.data(), *common, st.integers(0, 3), st.booleans())
def test_update(data, seed, B, D, T, W, dtype, bias, activation, extra, pooled):
    y = Inputs(seed, B, D, T, W, dtype, bias, data.draw(st.booleans()))
    slots, L = (B + 2 if pooled else B), W - 1 + extra
    pool = y.normal(slots, D, L).to(dtype)
    before, indices = pool.clone(), None
    rows = list(range(B))
    if pooled:
        rows = [data.draw(st.sampled_from([r, -1])) for r in
                data.draw(st.permutations(range(slots)))[:B]]  # fmt: skip
        indices = torch.tensor(rows, dtype=torch.int32)
    one = T == 1 and data.draw(st.booleans())
    out = causal_conv1d_update(
        y.x[:, :, 0] if one else y.x, pool, y.weight, y.bias, activation,
        conv_state_indices=indices,
    )  # fmt: skip
    assert out.shape == (y.x[:, :, 0] if one else y.x).shape
    out = out.view(B, D, T)
    for b, row in enumerate(rows):
        if row < 0:
            assert (out[b] == 0).all()
            continue
        y.check(out[b], y.x[b], to_numpy(before[row, :, L - (W - 1) :]), activation)
        assert torch.equal(pool[row], torch.cat([before[row], y.x[b]], 1)[:, -L:])
    for row in set(range(slots)) - set(rows):
        assert torch.equal(pool[row], before[row])


@settings(max_examples=40, deadline=None)
@given(st.data(), *common, st.integers(0, 3), st.booleans())
def test_update_of_a_ring(data, seed, B, D, T, W, dtype, bias, activation, extra, pooled):
    y = Inputs(seed, B, D, T, W, dtype, bias, data.draw(st.booleans()))
    slots, L = (B + 2 if pooled else B), W - 1 + extra
    pool = y.normal(slots, D, L).to(dtype)
    before, rows = pool.clone(), list(range(B))
    if pooled:
        rows = data.draw(st.permutations(range(-1, slots)))[:B]
    begins = [data.draw(st.integers(0, 20)) for _ in range(B)]
    out = causal_conv1d_update(
        y.x, pool, y.weight, y.bias, activation, torch.tensor(begins, dtype=torch.int32),
        torch.tensor(rows, dtype=torch.int32) if pooled else None,
    )  # fmt: skip
    for b, row in enumerate(rows):
        if row < 0:
            assert (out[b] == 0).all()
            continue
        window = before[row][:, [(begins[b] - (W - 1) + j) % L for j in range(W - 1)]]
        y.check(out[b], y.x[b], to_numpy(window), activation)
        ring = before[row].clone()
        for t in range(T):
            ring[:, (begins[b] + t) % L] = y.x[b, :, t]
        assert torch.equal(pool[row], ring)
    for row in set(range(slots)) - set(rows):
        assert torch.equal(pool[row], before[row])


def test_a_decode_continues_a_prefill():
    y = Inputs(0, 2, 5, 9, 4, torch.float32, True)
    whole = causal_conv1d_fn(y.x, y.weight, y.bias, activation="silu")
    first, state = causal_conv1d_fn(
        y.x[:, :, :5], y.weight, y.bias, return_final_states=True, activation="silu"
    )
    rest = [
        causal_conv1d_update(y.x[:, :, t], state, y.weight, y.bias, "silu") for t in range(5, 9)
    ]
    assert torch.equal(torch.cat([first, torch.stack(rest, 2)], 2), whole)


X, W4 = torch.zeros(2, 5, 3), torch.zeros(5, 4)
ERRORS = [
    (lambda: causal_conv1d_fn(X, W4, activation="relu"), "activation", NotImplementedError),
    (lambda: causal_conv1d_fn(X[0], W4), "x", ValueError),
    (lambda: causal_conv1d_fn(X, W4[:4]), "weight", ValueError),
    (lambda: causal_conv1d_fn(X, torch.zeros(5, 5)), "weight", ValueError),
    (lambda: causal_conv1d_fn(X, W4, W4[:4, 0]), "bias", ValueError),
    (lambda: causal_conv1d_fn(X, W4, seq_idx=torch.zeros(2, 2)), "seq_idx", ValueError),
    (lambda: causal_conv1d_fn(X, W4, seq_idx=torch.zeros(2, 3), initial_states=X),
     "initial_states", AssertionError),
    (lambda: causal_conv1d_fn(X, W4, seq_idx=torch.zeros(2, 3), return_final_states=True),
     "return_final_states", AssertionError),
    (lambda: causal_conv1d_fn(X, W4, initial_states=X[:, :, :2]), "initial_states", ValueError),
    (lambda: causal_conv1d_fn(X, W4, initial_states=X[:1], return_final_states=True),
     "initial_states", ValueError),
    (lambda: causal_conv1d_fn(X, W4, return_final_states=True, final_states_out=X[:1]),
     "final_states_out", ValueError),
    (lambda: causal_conv1d_fn(X.clone().requires_grad_(), W4), "x", ValueError),
    (lambda: causal_conv1d_update(X, X[:, :, :2].clone(), W4), "conv_state", ValueError),
    (lambda: causal_conv1d_update(X, X[:1].clone(), W4), "conv_state", ValueError),
    (lambda: causal_conv1d_update(X, X[0].clone(), W4), "conv_state", ValueError),
    (lambda: causal_conv1d_update(X[0, 0], X.clone(), W4), "x", ValueError),
    (lambda: causal_conv1d_update(X, X.clone(), W4, activation="gelu"), "activation",
     NotImplementedError),
    (lambda: causal_conv1d_update(X, X.clone(), W4, conv_state_indices=torch.tensor([0, 7])),
     "conv_state_indices", ValueError),
    (lambda: causal_conv1d_update(X, X.clone(), W4, cache_seqlens=torch.tensor([0, 7]),
                                  conv_state_indices=torch.tensor([0, 7])),
     "conv_state_indices", ValueError),
    (lambda: causal_conv1d_update(X, X[:, :, :2].clone(), W4, cache_seqlens=torch.tensor([0, 7])),
     "conv_state", ValueError),
    (lambda: causal_conv1d_update(X, X.clone(), W4.clone().requires_grad_()), "weight", ValueError),
]  # fmt: skip


@pytest.mark.parametrize(("call", "argument", "kind"), ERRORS)
def test_errors_name_the_argument(call, argument, kind):
    with pytest.raises((hyla.InvalidArgument, hyla.Unsupported)) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert str(caught.value).startswith(f"{argument}: ")

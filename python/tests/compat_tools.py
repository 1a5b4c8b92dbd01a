"""What the tests of the drop-in functions share: an oracle in numpy and the error model.

E is the exact result, in float64. N is the same algorithm in float32. A result may be four times as
far from E as N is (at least 16 roundoffs of float32, because a small tensor can be lucky), relative
to the largest value of its vector, and is rounded once to the dtype it is stored in. `coarse` says
that operands may be rounded to the dtype of the inputs, as chunked algorithms on 16-bit inputs do.
"""

import inspect

import numpy as np
import torch

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def to_numpy(x):
    return None if x is None else x.detach().to(torch.float64).numpy()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def raw_gate(a, A_log, dt_bias):
    x = to_numpy(a) + to_numpy(dt_bias)
    return np.exp(-np.exp(to_numpy(A_log)) * (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))))


def gated_delta(q, k, v, state, alpha, beta, *, scale=None, norm=False, dtype=np.float64):
    """One sequence. q, k [T, heads, K], v [T, heads, V], state [Hs, K, V], gates [T, Hs].

    Returns the outputs [T, Hs, V] and the states [T + 1, Hs, K, V], the initial one first.
    """
    q, k, v, S, alpha, beta = (np.asarray(x, dtype) for x in (q, k, v, state, alpha, beta))
    heads = S.shape[0]
    q, k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (q, k, v))
    if norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + dtype(1e-6)) for x in (q, k))
    scale = dtype(q.shape[-1] ** -0.5 if scale is None else scale)
    outputs, states = [], [S]
    for t in range(len(q)):
        S = S * alpha[t, :, None, None]
        delta = beta[t, :, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], S))
        S = S + k[t, :, :, None] * delta[:, None, :]
        outputs.append(scale * np.einsum("hk,hkv->hv", q[t], S))
        states.append(S)
    return np.array(outputs).reshape(len(q), heads, v.shape[-1]), np.array(states)


def convolve(x, weight, bias, window, silu, dtype=np.float64):
    """x [D, T], window [D, W-1] of the inputs before it -> [D, T]."""
    x, weight, window = (np.asarray(y, dtype) for y in (x, weight, window))
    inputs = np.concatenate([window, x], axis=1)
    T, W = x.shape[1], weight.shape[1]
    y = sum(weight[:, j, None] * inputs[:, j : j + T] for j in range(W))
    y = y + (0 if bias is None else np.asarray(bias, dtype)[:, None])
    return y * sigmoid(y) if silu else y


class Both:
    """A computation in float64 and in float32."""

    def __init__(self, function):
        self.exact, self.naive = function(np.float64), function(np.float32)


def assert_close(got, exact, naive, coarse=None):
    dtype, got = got.dtype, to_numpy(got)
    assert got.shape == exact.shape
    if exact.size == 0:
        return
    assert np.isfinite(got).all()
    largest = np.abs(exact).max(-1, keepdims=True)
    naive_error = (np.abs(naive - exact) / np.maximum(largest, 1e-30)).max()
    floor = 16 * 2.0**-24
    if coarse is not None:
        floor = max(floor, torch.finfo(coarse).eps / 2)
    allowed = 4 * max(naive_error, floor) * largest
    info = torch.finfo(dtype)
    allowed = allowed + np.abs(exact) * info.eps / 2 + info.smallest_normal * info.eps
    error = np.abs(got - exact)
    assert (error <= allowed).all(), f"worst error {(error - allowed).max()} above the bound"


def signature(function):
    """[(name, default or None where there is none)], and the name of **kwargs."""
    return [
        name if p.default is p.empty else (name, p.default)
        for name, p in inspect.signature(function).parameters.items()
    ]

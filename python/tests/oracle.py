"""The operations once more, in numpy, written from their definitions.

In float64 they are exact. `measured` runs them in float32 too, where kernels may do so with operands
rounded to the dtype of the inputs, and says what that costs: the yardstick of arrays.assert_rounded.
"""

import contextlib

import numpy as np

_real, _operands = np.float64, None


@contextlib.contextmanager
def _precision(real, operands):
    global _real, _operands
    before = _real, _operands
    _real, _operands = real, operands
    try:
        yield
    finally:
        _real, _operands = before


def measured(function, *args, operands=np.float32, **keywords):
    """What the function returns, and the largest error of float32 relative to a vector's largest value.

    A vector is the last dimension, and of states the one before it too: layouts differ in that.
    """
    exact = function(*args, **keywords)
    with _precision(np.float32, None if operands is np.float32 else operands):
        naive = function(*args, **keywords)
    eps = 0.0
    several = isinstance(exact, tuple)
    for e, n in zip(exact if several else (exact,), naive if several else (naive,)):
        assert e.dtype == np.float64 and n.dtype == np.float32
        finite = np.isfinite(e)
        e, error = np.where(finite, e, 0), np.abs(np.where(finite, n, 0) - np.where(finite, e, 0))
        for axis in (-1, -2) if e.ndim == 4 else (-1,):
            largest = np.abs(e).max(axis, keepdims=True, initial=0)
            eps = max(eps, np.max(error / np.where(largest > 0, largest, np.inf), initial=0))
    return exact, eps


def operand(x):
    return x if _operands is None else x.astype(_operands).astype(_real)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def l2norm(x, eps):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + eps)


def gate_values(shape, *, alpha=None, log_alpha=None, a=None, A_log=None, dt_bias=None):
    if alpha is not None:
        return number(alpha).reshape(shape)
    if log_alpha is not None:
        return np.exp(number(log_alpha)).reshape(shape)
    if a is not None:
        return np.exp(-np.exp(number(A_log)) * softplus(number(a).reshape(shape) + number(dt_bias)))
    return np.ones(shape)


def beta_values(shape, *, beta=None, b=None):
    if beta is not None:
        return number(beta).reshape(shape)
    return np.ones(shape) if b is None else sigmoid(number(b).reshape(shape))


def number(x):
    return np.asarray(x, _real)


def gdn_rows(q, k, v, states, alpha, beta, *, scale=None, norm=False, eps=1e-6):
    """q, k [tokens, Hq or Hk, K], v [tokens, HV, V], states [Hs, K, V], gates [tokens, Hs].

    Returns the outputs [tokens, Hs, V] and the states after every token [tokens, Hs, K, V].
    """
    q, k, v, S = number(q), number(k), number(v), number(states).copy()
    alpha, beta = number(alpha), number(beta)
    heads, scale = S.shape[0], q.shape[-1] ** -0.5 if scale is None else scale
    if norm:
        q, k = operand(l2norm(q, eps)), operand(l2norm(k, eps))
    out, after = [], []
    for t in range(len(q)):
        o = np.zeros((heads, v.shape[-1]), _real)
        for h in range(heads):
            hq, hk, hv = (h // (heads // x.shape[1]) for x in (q, k, v))
            S[h] *= alpha[t, h]
            delta = operand(beta[t, h] * (v[t, hv] - k[t, hk] @ operand(S[h])))
            S[h] += np.outer(k[t, hk], delta)
            o[h] = scale * (q[t, hq] @ operand(S[h]))
        out.append(o)
        after.append(S.copy())
    shape = (len(q), heads, v.shape[-1])
    return np.array(out, _real).reshape(shape), np.array(after, _real).reshape(len(q), *S.shape)


def conv_row(x, weight, bias, window, activation):
    """x [tokens, C], window [C, W-1] oldest first -> outputs [tokens, C], all inputs [C, W-1+tokens]."""
    inputs = np.concatenate([number(window), number(x).T], axis=1)
    width = weight.shape[1]
    out = np.zeros(x.shape, _real)
    for t in range(len(x)):
        y = (inputs[:, t : t + width] * number(weight)).sum(1)
        if bias is not None:
            y = y + number(bias)
        out[t] = silu(y) if activation == "silu" else y
    return out, inputs


def gated_rms(x, z, weight, eps, gate):
    x, z = number(x), number(z)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return normed * number(weight) * (silu(z) if gate == "silu" else sigmoid(z))


def attention_row(q, k, v, *, scale, causal=True, window=None, chunk=None, sinks=None, softcap=None):
    """q [queries, Hq, D], k [keys, Hk, D], v [keys, Hk, DV] -> out [queries, Hq, DV], lse."""
    q, k, v = number(q), operand(number(k)), operand(number(v))
    keys = len(k)
    out, lse = np.zeros((*q.shape[:2], v.shape[-1]), _real), np.full(q.shape[:2], -np.inf, _real)
    for i in range(len(q)):
        here = keys - len(q) + i
        p = np.arange(keys)
        seen = np.ones(keys, bool)
        if causal:
            seen &= p <= here
        if window:
            seen &= (here - p < window) & (p - here < window)
        if chunk:
            seen &= (p // chunk == here // chunk) & (here >= 0)
        if not seen.any():
            continue
        for h in range(q.shape[1]):
            kv = h // (q.shape[1] // k.shape[1])
            logits = scale * (k[seen, kv] @ q[i, h])
            if softcap:
                logits = softcap * np.tanh(logits / softcap)
            extra = [] if sinks is None else [number(sinks[h])]
            top = max([*logits, *extra])
            weights = np.exp(logits - top)
            total = weights.sum() + sum(np.exp(s - top) for s in extra)
            out[i, h] = operand(weights) @ v[seen, kv] / total
            lse[i, h] = top + np.log(total)
    return out, lse

"""The operations once more, in numpy and float64, written from their definitions."""

import numpy as np


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
        return f64(alpha).reshape(shape)
    if log_alpha is not None:
        return np.exp(f64(log_alpha)).reshape(shape)
    if a is not None:
        return np.exp(-np.exp(f64(A_log)) * softplus(f64(a).reshape(shape) + f64(dt_bias)))
    return np.ones(shape)


def beta_values(shape, *, beta=None, b=None):
    if beta is not None:
        return f64(beta).reshape(shape)
    return np.ones(shape) if b is None else sigmoid(f64(b).reshape(shape))


def f64(x):
    return np.asarray(x, np.float64)


def gdn_rows(q, k, v, states, alpha, beta, *, scale=None, norm=False, eps=1e-6):
    """q, k [tokens, Hq or Hk, K], v [tokens, HV, V], states [Hs, K, V], gates [tokens, Hs].

    Returns the outputs [tokens, Hs, V] and the states after every token [tokens, Hs, K, V].
    """
    q, k, v, S = f64(q), f64(k), f64(v), f64(states).copy()
    heads, scale = S.shape[0], q.shape[-1] ** -0.5 if scale is None else scale
    if norm:
        q, k = l2norm(q, eps), l2norm(k, eps)
    out, after = [], []
    for t in range(len(q)):
        o = np.zeros((heads, v.shape[-1]))
        for h in range(heads):
            hq, hk, hv = (h // (heads // x.shape[1]) for x in (q, k, v))
            S[h] *= alpha[t, h]
            delta = beta[t, h] * (v[t, hv] - k[t, hk] @ S[h])
            S[h] += np.outer(k[t, hk], delta)
            o[h] = scale * (q[t, hq] @ S[h])
        out.append(o)
        after.append(S.copy())
    shape = (len(q), heads, v.shape[-1])
    return np.array(out).reshape(shape), np.array(after).reshape(len(q), *S.shape)


def conv_row(x, weight, bias, window, activation):
    """x [tokens, C], window [C, W-1] oldest first -> outputs [tokens, C], all inputs [C, W-1+tokens]."""
    inputs = np.concatenate([f64(window), f64(x).T], axis=1)
    width = weight.shape[1]
    out = np.zeros(x.shape)
    for t in range(len(x)):
        y = (inputs[:, t : t + width] * f64(weight)).sum(1)
        if bias is not None:
            y = y + f64(bias)
        out[t] = silu(y) if activation == "silu" else y
    return out, inputs


def gated_rms(x, z, weight, eps, gate):
    x, z = f64(x), f64(z)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return normed * f64(weight) * (silu(z) if gate == "silu" else sigmoid(z))


def attention_row(q, k, v, *, scale, causal=True, window=None, chunk=None, sinks=None, softcap=None):
    """q [queries, Hq, D], k [keys, Hk, D], v [keys, Hk, DV] -> out [queries, Hq, DV], lse."""
    q, k, v = f64(q), f64(k), f64(v)
    keys = len(k)
    out, lse = np.zeros((*q.shape[:2], v.shape[-1])), np.full(q.shape[:2], -np.inf)
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
            extra = [] if sinks is None else [float(sinks[h])]
            top = max([*logits, *extra])
            weights = np.exp(logits - top)
            total = weights.sum() + sum(np.exp(s - top) for s in extra)
            out[i, h] = weights @ v[seen, kv] / total
            lse[i, h] = top + np.log(total)
    return out, lse

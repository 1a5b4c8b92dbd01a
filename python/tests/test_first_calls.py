"""One call of every operation on every framework, small enough to follow."""

import ml_dtypes
import numpy as np
import pytest
import torch

import hyla
import oracle


def as_numpy(x):
    return x


def as_torch(x):
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


@pytest.fixture(params=[as_numpy, as_torch])
def to(request):
    """Arrays of a framework over the memory of numpy arrays."""
    return request.param


@pytest.fixture(params=[np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def dtype(request):
    return request.param


def half_ulp(dtype):
    return float(ml_dtypes.finfo(dtype).eps) / 2


def assert_rounded(got, want, dtype):
    """The float64 result, rounded once: half an ulp, and a hundred ulps of float64 for the sums."""
    got, slack = oracle.f64(got), 100 * np.finfo(np.float64).eps
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    bound = np.abs(want) * (half_ulp(dtype) + slack) + tiny + slack * np.abs(want).max(initial=0)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= bound).all(), np.abs(got - want).max()


def test_the_step_that_can_be_checked_in_the_head(to):
    """The state says 4 under key e0; it fades to 2 and the value 10 moves it half of the way to 6."""
    q = np.eye(1, 8, dtype=np.float32).reshape(1, 1, 8)
    state = np.zeros((1, 1, 8, 8), np.float32)
    state[..., 0] = 4
    half = np.full((1, 1), 0.5, np.float32)
    v = np.full((1, 1, 8), 10, np.float32)
    out = hyla.gdn.decode(
        to(q), to(q.copy()), to(v), to(state), alpha=to(half), beta=to(half), scale=1.0
    )
    assert type(out) is type(to(q))
    assert (np.asarray(out) == 6).all()
    assert (state[..., 0] == 6).all() and (state[..., 1:] == 0).all()


def test_decode(to, dtype, rng):
    B, H, HV, K, V = 3, 2, 4, 16, 8
    q, k, v = (rng.standard_normal((B, h, d)).astype(dtype) for h, d in ((H, K), (H, K), (HV, V)))
    a, b = (rng.standard_normal((B, HV)).astype(dtype) for _ in range(2))
    A_log, dt_bias = (rng.standard_normal(HV).astype(np.float32) for _ in range(2))
    pool = rng.standard_normal((5, HV, V, K)).astype(np.float32)
    before, slots = pool.copy(), np.array([4, -1, 0], np.int32)
    out = hyla.gdn.decode(
        *map(to, (q, k, v, pool)),
        a=to(a), A_log=to(A_log), dt_bias=to(dt_bias), b=to(b),
        read_slots=to(slots), l2norm=True,
    )  # fmt: skip
    out = oracle.f64(out.float() if isinstance(out, torch.Tensor) else out)
    alpha = oracle.gate_values((B, HV), a=a, A_log=A_log, dt_bias=dt_bias)
    beta = oracle.beta_values((B, HV), b=b)
    for row, slot in enumerate(slots):
        if slot < 0:
            assert (out[row] == 0).all()
            continue
        want, after = oracle.gdn_rows(
            q[row : row + 1], k[row : row + 1], v[row : row + 1],
            before[slot].transpose(0, 2, 1), alpha[row : row + 1], beta[row : row + 1], norm=True,
        )  # fmt: skip
        assert_rounded(out[row], want[0], dtype)
        assert_rounded(pool[slot], after[0].transpose(0, 2, 1), np.float32)
    untouched = [1, 2, 3]
    assert (pool[untouched] == before[untouched]).all()


def test_conv_prefill_then_update(to, rng):
    C, W = 5, 4
    x = rng.standard_normal((6, C)).astype(np.float32)
    weight = rng.standard_normal((C, W)).astype(np.float32)
    bias = rng.standard_normal(C).astype(np.float32)
    pool = np.full((2, C, W - 1), np.nan, np.float32)
    want, _ = oracle.conv_row(x, weight, bias, np.zeros((C, W - 1)), "silu")
    first = hyla.conv.prefill(
        to(x[:5]), to(weight), to(pool), bias=to(bias), slots=to(np.array([1])),
        cu_seqlens=to(np.array([0, 5])), has_initial_state=to(np.array([False])),
    )  # fmt: skip
    assert_rounded(first, want[:5], np.float32)
    last = hyla.conv.update(to(x[5:]), to(weight), to(pool), bias=to(bias), slots=to(np.array([1])))
    assert_rounded(last, want[5:], np.float32)
    assert (pool[1] == x[3:].T).all() and np.isnan(pool[0]).all()


def test_attention_append_then_run(to, rng):
    Hq, Hk, D, S = 4, 2, 16, 4
    pages = np.full((5, 2, S, Hk, D), np.nan, np.float32)
    table = np.array([[3, 1, -1], [0, -1, -1]], np.int32)
    k, v = (rng.standard_normal((9, Hk, D)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((9, Hq, D)).astype(np.float32)
    cu, lengths = np.array([0, 6, 9]), np.array([6, 3])
    cache = hyla.attention.PagedCache.fused(to(pages))
    keywords = {
        "cu_seqlens": to(cu), "kv_lengths": to(lengths), "page_table": to(table)
    }  # fmt: skip
    assert hyla.attention.append(cache, to(k), to(v), **keywords) is None
    lse = np.zeros((9, Hq), np.float32)
    out = hyla.attention.run(to(q), cache, lse=to(lse), **keywords)
    for begin, end in ((0, 6), (6, 9)):
        want, want_lse = oracle.attention_row(q[begin:end], k[begin:end], v[begin:end], scale=0.25)
        assert_rounded(out[begin:end], want, np.float32)
        assert_rounded(lse[begin:end], want_lse, np.float32)


def test_gated_rms(to, dtype, rng):
    x, z = (rng.standard_normal((3, 2, 8)).astype(dtype) for _ in range(2))
    weight = rng.standard_normal(8).astype(np.float32)
    out = hyla.norm.gated_rms(to(x), to(z), to(weight), gate="sigmoid")
    out = out.float() if isinstance(out, torch.Tensor) else out
    assert_rounded(out, oracle.gated_rms(x, z, weight, 1e-6, "sigmoid"), dtype)

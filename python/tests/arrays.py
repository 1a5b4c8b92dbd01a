"""Arrays for tests: strided views inside poisoned memory, in every framework."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

import hyla

BF16 = ml_dtypes.bfloat16
FLOATS = [np.float32, np.float16, BF16]
INDICES = [np.int32, np.int64, np.uint32]

float_dtypes = st.sampled_from(FLOATS)
index_dtypes = st.sampled_from([np.int32, np.int64])
head_dims = st.sampled_from([8, 16, 24, 40])
seeds = st.integers(0, 2**32 - 1)


def poison(dtype):
    return np.nan if np.dtype(dtype).kind in "fV" or dtype is BF16 else 99


class Strided:
    """A view with gaps between its outer rows, and what lies in the gaps."""

    def __init__(self, values: np.ndarray, gap: int) -> None:
        shape = values.shape
        padded = (*(s + (gap if d else 0) for d, s in enumerate(shape[:-1])), shape[-1] + gap)
        padded = (shape[0] + (gap > 0), *padded[1:]) if len(shape) > 1 else (shape[0] + gap,)
        self.base = np.full(padded, poison(values.dtype), values.dtype)
        self.view = self.base[tuple(slice(0, s) for s in shape)]
        self.view[...] = values
        self.gaps = np.ones(padded, bool)
        self.gaps[tuple(slice(0, s) for s in shape)] = False
        self.before = self.base.copy()

    def gaps_untouched(self) -> bool:
        a, b = self.base[self.gaps], self.before[self.gaps]
        return a.tobytes() == b.tobytes()


def as_torch(x: np.ndarray) -> torch.Tensor:
    """The same memory as a torch tensor."""
    if x.dtype == BF16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def as_numpy(x: np.ndarray) -> np.ndarray:
    return x


FRAMEWORKS = {"numpy": as_numpy, "torch": as_torch}
frameworks = st.sampled_from(sorted(FRAMEWORKS))


def values(x) -> np.ndarray:
    """An array of any framework, in float64."""
    if isinstance(x, torch.Tensor):
        x = x.detach().to(torch.float64).cpu().numpy()
    return np.asarray(x).astype(np.float64)


ROUNDOFFS = 64  # of float32, a token and a unit of size: what another order of summing may cost


def assert_rounded(got, want, dtype, *, exact=True, tokens=1, operands=np.float32) -> None:
    """`got` is the float64 result `want` rounded once to `dtype`: half an ulp.

    For the order of sums, the reference gets 2^17 roundoffs of float64 (of the largest intermediate
    value, which is below 100 in these tests), and the others ROUNDOFFS of float32 for every token
    that the result depends on. Chunked prefill may round its operands to the dtype of q: 16 roundoffs
    of that, since it multiplies a few matrices in a row.
    """
    got, want = values(got), np.asarray(want, np.float64)
    info = ml_dtypes.finfo(dtype)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    largest = max(np.abs(want[finite]).max(initial=0), 1)
    bound = np.abs(want) * float(info.eps) / 2 * (1 + 1e-6) + float(info.smallest_subnormal)
    slack = 2.0**-36
    if not exact:
        rounded = 0 if operands is np.float32 else 16 * float(ml_dtypes.finfo(operands).eps) / 2
        slack = ROUNDOFFS * 2.0**-24 * (tokens + 1) + rounded
    bound = bound + largest * slack
    assert (np.isfinite(got) == finite).all()
    assert (got[~finite] == want[~finite]).all()
    error = np.abs(got[finite] - want[finite])
    assert (error <= bound[finite]).all(), f"worst error {error.max()}, bound {bound[finite].max()}"


# The reference, or whatever runs by default; with the first a result has no excuse.
implementations = st.sampled_from([hyla.reference, hyla])

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


FACTOR, FLOOR = 4.0, 16.0 * 2.0**-24  # of the error model in judge.py


def assert_rounded(got, want, dtype, *, naive_error=None, operands=np.float32) -> None:
    """`got` is the float64 result `want` rounded once to `dtype`: half an ulp.

    The reference gets 2^17 roundoffs of float64 on top, for the order of its sums (of the largest
    intermediate value, which is below 100 in these tests). Others get what judge.py allows:
    `naive_error` is what oracle.measured says about float32 and `operands`, the dtype to which an
    implementation may round operands of matrix products.
    """
    got, want = values(got), np.asarray(want, np.float64)
    info = ml_dtypes.finfo(dtype)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    assert (np.isfinite(got) == finite).all()
    assert (got[~finite] == want[~finite]).all()
    got, want = np.where(finite, got, 0), np.where(finite, want, 0)
    if naive_error is None:
        slack = 2.0**-36 * max(np.abs(want).max(initial=0), 1)
    else:
        roundoff = 0 if operands is np.float32 else float(ml_dtypes.finfo(operands).eps) / 2
        largest = np.abs(want).max(-1, keepdims=True, initial=0)
        slack = FACTOR * max(naive_error, FLOOR, roundoff) * largest
    half_ulp = (np.abs(want) + slack) * float(info.eps) / 2 + float(info.smallest_subnormal)
    error = np.abs(got - want)
    bound = slack + half_ulp
    assert (error <= bound).all(), f"worst error {error.max()}, bound {bound.max()}"


# The reference, or whatever runs by default; with the first a result has no excuse.
implementations = st.sampled_from([hyla.reference, hyla])

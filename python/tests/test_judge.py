"""The judge itself: it lets rounding through and nothing else."""

import functools

import pytest
import torch

import hyla
from calls import torch_calls
from judge import check

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NAMES = sorted(torch_calls())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_errors_beyond_rounding_are_seen(name, dtype, monkeypatch):
    """One element off by 4 % of its vector (a float32 one by 0.1 %), another value, or NaN."""
    call = torch_calls(dtype)[name]
    part = 1e-3 if dtype is torch.float32 else 4e-2

    def off(x):
        vector = x[(-1,) * (x.dim() - 1)]
        vector[3] += part * vector.abs().max()

    def another(x):
        x[(-1,) * x.dim()] = 7 + x.abs().max()

    def not_a_number(x):
        x[(-1,) * x.dim()] = torch.nan

    module, function = name.split("_", 1)
    original = getattr(getattr(hyla, module), function)
    for spoil in (off, another, not_a_number):

        @functools.wraps(original)
        def wrong(*args, **kwargs):
            result = original(*args, **kwargs)
            spoil(args[0].v if result is None else result)  # noqa: B023
            return result

        with monkeypatch.context() as patch:
            patch.setattr(getattr(hyla, module), function, wrong)
            with pytest.raises(AssertionError):
                check(call.run, device="cpu", dtype=dtype, **call.tensors)

"""When is a result right? The error model of the C++ checks (testing/compare.h), for torch calls.

E is the call in exact arithmetic, N in the precision that a kernel may use: float32, and where tensor
cores are the natural choice products of operands rounded to the dtype of the inputs. Both have every
tensor as float32, so that what they store is rounded no further. A kernel sums in another order than
N, so it is not wrong where it differs from N; it is wrong where it is much farther from E than N is:

    eps   = max over vectors of |N - E|_max / |E|_max    (a tensor's last dimension is a vector)
    bound = 4 * max(eps, floor) * |E of its vector|_max
            + half an ulp of the element in the dtype it is stored in
            + half an ulp of float32, for E's own rounding

floor: 16 roundoffs of float32, one of the operands' dtype where that is coarser. NaN and infinity,
and with them all memory that must not be touched, are where E has them.
"""

import pytest
import torch

from naive import naive

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FACTOR, FLOOR = 4.0, 16.0 * 2.0**-24


def half_ulp(dtype, x):
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp(min=info.smallest_normal))[1].double() - 1
    return 0.5 * info.eps * 2.0**exponent


def compare(what, got, exact, naive, operands):
    assert got.shape == exact.shape == naive.shape, what
    if not got.is_floating_point():
        assert torch.equal(got, exact), what
        return
    if got.numel() == 0:
        return
    g, e, n = (x.double() for x in (got, exact, naive))
    finite = e.isfinite()
    assert torch.equal(g.isnan(), e.isnan()), f"{what}: NaN elsewhere than expected"
    assert torch.equal(g[e.isinf()], e[e.isinf()]) and torch.equal(g.isinf(), e.isinf()), what
    g, e, n = (torch.where(finite, x, 0.0) for x in (g, e, n))
    scale = e.abs().amax(-1, keepdim=True) if e.dim() else e.abs()
    relative = torch.where(scale > 0, (n - e).abs() / scale, 0.0).max()
    eps = max(relative.item(), FLOOR, 0.0 if operands is None else torch.finfo(operands).eps / 2)
    slack = FACTOR * eps * scale
    limit = e.abs() + slack
    bound = slack + half_ulp(got.dtype, limit) + half_ulp(torch.float32, limit)
    error = (g - e).abs()
    worst = (error - bound).argmax()
    assert (error <= bound).all(), (
        f"{what}: expected {e.flatten()[worst]:.8g}, got {g.flatten()[worst]:.8g}, "
        f"allowed error {bound.flatten()[worst]:.3g}"
    )


def _is_float(x):
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _run(function, args, kwargs, change):
    """What a call on changed copies returns, and what its arguments hold afterwards."""
    move = lambda x: change(x) if isinstance(x, torch.Tensor) else x  # noqa: E731
    tensors, named = [move(x) for x in args], {name: move(x) for name, x in kwargs.items()}
    returned = function(*tensors, **named)
    returned = returned if isinstance(returned, tuple) else (returned,)
    result = {f"result {i}": x for i, x in enumerate(returned)}
    result |= {f"argument {i}": x for i, x in enumerate(tensors)} | named
    return {name: x for name, x in result.items() if isinstance(x, torch.Tensor)}


def check(function, *args, device, dtype, **kwargs):
    """Runs a call on a device and judges everything it returns and writes. `dtype`: its inputs'."""
    operands = None if dtype is torch.float32 else dtype
    wide = lambda x: x.clone().float() if _is_float(x) else x.clone()  # noqa: E731
    got = _run(function, args, kwargs, lambda x: x.clone().to(device))
    assert all(x.device.type == device for x in got.values())
    with naive(torch.float64):
        exact = _run(function, args, kwargs, wide)
    with naive(torch.float32, operands):
        rounded = _run(function, args, kwargs, wide)
    assert got.keys() == exact.keys()
    for name, x in got.items():
        compare(name, x.cpu(), exact[name], rounded[name], operands)

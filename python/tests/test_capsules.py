"""DLPack objects that say something wrong: refused by the argument's name, nothing read or written."""

import numpy as np
import pytest

import hyla
from capsules import COPIED, READ_ONLY, Handmade

ROWS, V = 3, 8


def arrays():
    rng = np.random.default_rng(3)
    x, z = (rng.standard_normal((ROWS, V)).astype(np.float32) for _ in range(2))
    return x, z, rng.standard_normal(V).astype(np.float32)


def handmade(x, **fields):
    return Handmade(
        x.ctypes.data, fields.pop("shape", x.shape), fields.pop("strides", None), **fields
    )


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("strides", [None, (V, 1)])
def test_they_are_taken_in_place(versioned, strides):
    x, z, weight = arrays()
    out = np.full_like(x, np.nan)
    hyla.norm.gated_rms(
        handmade(x, versioned=versioned, strides=strides), z, weight,
        out=handmade(out, versioned=versioned, strides=strides),
    )  # fmt: skip
    assert (out == hyla.norm.gated_rms(x, z, weight)).all()
    shifted = np.full((ROWS + 1, V), np.nan, np.float32)
    hyla.norm.gated_rms(x, z, weight, out=handmade(shifted, shape=(ROWS, V), byte_offset=4 * V))
    assert np.isnan(shifted[0]).all() and (shifted[1:] == out).all()


WRONG = {
    "negative size": ({"shape": (-3, V)}, "sizes? >= 0|expected shape"),
    "negative vector": ({"shape": (ROWS, -V)}, "sizes? >= 0|expected shape"),
    "negative stride": ({"strides": (-V, 1)}, "strides >= 0"),
    "strided vector": ({"strides": (2 * V, 2)}, "a contiguous last dimension"),
    "rank": ({"ndim": 7}, "0 to 6 dimensions"),
    "negative rank": ({"ndim": -1}, "0 to 6 dimensions"),
    "no shape": ({"shape": None}, "a shape|expected"),
    "lanes": ({"lanes": 4}, "a dtype of 1 lane"),
    "no lanes": ({"lanes": 0}, "a dtype of 1 lane"),
    "float64": ({"bits": 64}, r"a dtype that hyla knows \(float32, .*\), got float64"),
    "complex": ({"code": 5, "bits": 64}, r"a dtype that hyla knows \(float32, .*\), got complex64"),
    "unknown type": ({"code": 99}, "a dtype that hyla knows"),
    "no memory": ({"data": None}, "memory, got a null pointer"),
    "another device": ({"device_type": 8}, "a CPU or"),
    "version": ({"major": 2}, "DLPack version 1"),
    "used capsule": ({"name": b"used_dltensor_versioned"}, "a DLPack capsule"),
    "two devices": ({"announced": (2, 0)}, "expected"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("argument", ["z", "out"])
def test_wrong_descriptions(argument, case):
    fields, match = WRONG[case]
    x, z, weight = arrays()
    memory = np.full((ROWS, V), 7, np.float32)
    shape = fields.get("shape", (ROWS, V))
    bad = handmade(memory, **{**fields, "shape": shape or (ROWS, V)})
    if shape is None:
        bad.managed.tensor.shape = None
    given = {"z": z, "out": np.zeros_like(x), argument: bad}
    with pytest.raises(hyla.InvalidArgument, match=f"^{argument}: .*({match})"):
        hyla.norm.gated_rms(x, weight=weight, **given)
    assert (memory == 7).all()


@pytest.mark.parametrize("flags", [READ_ONLY, COPIED, READ_ONLY | COPIED])
def test_what_cannot_be_written(flags):
    """A copy would lose the update; as an input both are fine."""
    x, z, weight = arrays()
    memory = np.full((ROWS, V), 7, np.float32)
    with pytest.raises(hyla.InvalidArgument, match="^out: expected a tensor that can be written"):
        hyla.norm.gated_rms(x, z, weight, out=handmade(memory, flags=flags))
    assert (memory == 7).all()
    got = hyla.norm.gated_rms(x, handmade(z, flags=flags), weight)
    assert (got == hyla.norm.gated_rms(x, z, weight)).all()


def test_an_optional_tensor_that_says_nothing_is_not_absent():
    """All fields zero: not a tensor, and not the same as none either."""
    x, weight = np.ones((2, 6), np.float32), np.ones((6, 4), np.float32)
    state = np.zeros((2, 6, 3), np.float32)
    nothing = Handmade(None, (), lanes=0, bits=0, code=0, device_type=0, announced=(1, 0))
    nothing.managed.tensor.shape = None
    with pytest.raises(hyla.InvalidArgument, match="^bias: expected"):
        hyla.conv.update(x, weight, state, bias=nothing)


def test_an_overflowing_shape():
    x, z, weight = arrays()
    for shape in ((2**62, V), (2**40, 2**40), (2**63 - 1, 2**63 - 1)):
        with pytest.raises(hyla.InvalidArgument, match="^(x|z): "):
            hyla.norm.gated_rms(handmade(x, shape=shape), handmade(z, shape=shape), weight,
                                out=handmade(x, shape=shape))  # fmt: skip

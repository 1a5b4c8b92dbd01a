"""Arguments that nobody should pass: an exception of the right class, never a crash or a hang."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hyla
from arrays import BF16, as_torch
from calls import torch_calls
from hyla import _info

HUGE = torch.zeros(1).expand(2**31, 2**31, 1)  # four bytes of memory


def odd_arrays():
    base = np.arange(64, dtype=np.float32).reshape(1, 4, 16)
    yield from (base, base[:, :, ::2], base[:, ::-1], base[:0], base[0, 0, 0:0], np.float32(3).reshape(()))
    yield from (base.reshape(1, 1, 1, 1, 4, 16), base.reshape(1, 1, 1, 1, 1, 4, 16))
    yield from (np.broadcast_to(base, (5, 4, 16)), np.zeros((0, 2**40), np.float32))
    for dtype in (np.int32, np.int64, np.uint32, np.bool_, np.uint8, np.float16, BF16, np.float64):
        yield np.zeros((2,), dtype)
        yield np.full((1, 2), -1 if np.dtype(dtype).kind == "i" else 1, dtype)
    yield np.array([0, 2**40, -(2**63)])
    yield np.array([2**31 - 1, -(2**31)], np.int32)
    yield np.array(["a", "b"])
    yield np.zeros(3, [("x", "f4"), ("y", "i1")])["x"]
    yield np.array([None])


ODD = list(odd_arrays())
ODD += [as_torch(np.ascontiguousarray(x)) for x in ODD[:5]]
ODD += [torch.zeros(2, 4, 16).expand(3, 2, 4, 16), torch.zeros(4, 4).t(), torch.empty(0), HUGE]
ODD += [None, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "vk", "", b"x", True, object(), [1], ()]

names = st.sampled_from(sorted(_info._FUNCTIONS))
HARMLESS = (hyla.Error, TypeError, MemoryError)


@settings(max_examples=600)
@given(names, st.data())
def test_any_argument_may_be_odd(operation, data):
    """A valid call with some arguments replaced."""
    function = _info._FUNCTIONS[operation]
    recorded = {}

    def record(*args, **kwargs):
        recorded.update(inspect.signature(function).bind(*args, **kwargs).arguments)

    module, name = operation.split(".")
    call = torch_calls(wide=16)[operation.replace(".", "_")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(getattr(hyla, module), name, record)
        call()
    parameters = [p for p in inspect.signature(function).parameters if p != "stream"]
    changed = data.draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=3, unique=True))
    for parameter in changed:
        recorded[parameter] = ODD[data.draw(st.integers(0, len(ODD) - 1))]
    try:
        function(**recorded)
    except hyla.InvalidArgument as error:
        known = [*parameters, *(f"cache.{x}" for x in ("k", "v", "k_scales", "v_scales", "cu_kv"))]
        assert error.argument in known, error
    except TypeError as error:
        assert str(error).partition(":")[0].partition(".")[0] in parameters, error
    except HARMLESS:
        pass


@settings(max_examples=150)
@given(st.data())
def test_any_cache_may_be_odd(data):
    draw = lambda: ODD[data.draw(st.integers(0, len(ODD) - 1))]  # noqa: E731
    good = torch.zeros(5, 4, 2, 16)
    pick = lambda: draw() if data.draw(st.booleans()) else good  # noqa: E731
    kind = data.draw(st.sampled_from(["DenseCache", "RaggedCache", "PagedCache"]))
    third = draw() if kind == "RaggedCache" else data.draw(st.sampled_from(["nhd", "hnd", "x", None]))
    cache = getattr(hyla.attention, kind)(pick(), pick(), third, k_scales=None, v_scales=pick())
    call = torch_calls(wide=16)["attention_run"].tensors
    where = {n: call[n] for n in ("cu_seqlens", "kv_lengths", "page_table")}
    for run in (
        lambda: hyla.attention.run(call["q"], cache, **where),
        lambda: hyla.attention.append(cache, call["q"][:, :2], call["q"][:, :2], **where),
    ):
        try:
            run()
        except HARMLESS:
            pass


def test_arguments_that_change_while_they_are_read():
    """An object whose answers change between two questions."""

    class Changing:
        def __init__(self):
            self.asked = 0

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            self.asked += 1
            if self.asked > 1:
                raise RuntimeError("gone")
            return np.zeros((2, 8), np.float32).__dlpack__(**keywords)

    x = Changing()
    out = np.zeros((2, 8), np.float32)
    hyla.norm.gated_rms(x, out.copy(), np.ones(8, np.float32), out=out)
    with pytest.raises(hyla.InvalidArgument, match="^x: .*gone"):
        hyla.norm.gated_rms(x, out.copy(), np.ones(8, np.float32), out=out)

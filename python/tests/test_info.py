"""explain, info, workspace_bytes, threads; and that the pieces of the package fit together."""

import inspect

import numpy as np
import pytest

import hyla
from hyla import _core, _info


def f32(*shape):
    return np.zeros(shape, np.float32)


def test_explain_says_who_would_run_and_runs_nothing():
    state = np.ones((2, 1, 8, 8), np.float32)
    out = np.full((2, 1, 8), 3, np.float32)
    candidates = hyla.explain("gdn.decode", f32(2, 1, 8), f32(2, 1, 8), f32(2, 1, 8), state, out=out)
    assert (state == 1).all() and (out == 3).all()
    assert [name for name, _, _ in candidates] == _core.implementations("gdn.decode")
    assert ("reference", "yes", "") in candidates
    for _, verdict, reason in candidates:
        assert (verdict == "yes") == (reason == "") and verdict in ("yes", "no")
    with pytest.raises(hyla.InvalidArgument, match="^k: "):
        hyla.explain("gdn.decode", f32(2, 1, 8), f32(2, 2, 8), f32(2, 1, 8), state)
    with pytest.raises(hyla.InvalidArgument, match="^operation: expected one of gdn.decode, "):
        hyla.explain("gdn.encode")
    with pytest.raises(TypeError, match="^operation: "):
        hyla.explain(3)


def test_explain_of_every_operation():
    cache = hyla.attention.DenseCache(f32(1, 4, 1, 8), f32(1, 4, 1, 8))
    pool, cu = f32(1, 1, 8, 8), np.array([0, 1])
    calls = {
        "gdn.decode": ((f32(1, 1, 8),) * 3 + (pool,), {}),
        "gdn.mtp": ((f32(1, 2, 1, 8),) * 3 + (pool,), {}),
        "gdn.prefill": ((f32(1, 1, 8),) * 3, {"cu_seqlens": cu}),
        "gdn.recurrence": (
            (f32(1, 24),), {"state": pool, "heads": (1, 1), "dims": (8, 8), "cu_seqlens": cu}),
        "conv.prefill": ((f32(1, 2, 3), f32(3, 4)), {}),
        "conv.update": ((f32(1, 3), f32(3, 4), f32(1, 3, 3)), {}),
        "norm.gated_rms": ((f32(1, 8), f32(1, 8), f32(8)), {}),
        "attention.run": ((f32(1, 1, 8), cache), {"cu_seqlens": cu}),
        "attention.append": ((cache, f32(1, 1, 8), f32(1, 1, 8)), {"cu_seqlens": cu}),
        "attention.merge": ((f32(1, 1, 8), f32(1, 1), f32(1, 1, 8), f32(1, 1)), {}),
    }  # fmt: skip
    assert sorted(calls) == sorted(_core.operations())
    for operation, (args, kwargs) in calls.items():
        found = hyla.explain(operation, *args, **kwargs)
        assert found and found[-1] == ("reference", "yes", "")


def test_forced_implementations_run_alone():
    q = np.ones((1, 1, 8), np.float32)
    for implementation in _core.implementations("gdn.decode"):
        verdicts = {n: v for n, v, _ in hyla.explain("gdn.decode", q, q, q, f32(1, 1, 8, 8))}
        if verdicts[implementation] == "yes":
            hyla.gdn.decode(q, q, q, f32(1, 1, 8, 8), impl=implementation)
        else:
            with pytest.raises(hyla.Unsupported) as caught:
                hyla.gdn.decode(q, q, q, f32(1, 1, 8, 8), impl=implementation)
            assert [name for name, _, _ in caught.value.candidates] == [implementation]


def test_info():
    info = hyla.info()
    assert info["version"] == hyla.__version__
    assert info["devices"][0]["device"] == "cpu"
    assert sorted(info["operations"]) == sorted(_info._FUNCTIONS)
    assert all(names[-1] == "reference" for names in info["operations"].values())


def test_workspace_bytes():
    prefill = {
        "max_sequences": 4, "max_tokens": 100, "query_heads": 2, "key_heads": 2, "value_heads": 4,
        "key_dim": 64, "value_dim": 64,
    }  # fmt: skip
    assert hyla.workspace_bytes("gdn.prefill", **prefill) >= 0
    assert hyla.workspace_bytes("gdn.decode") == 0
    run = {
        "max_sequences": 4, "max_tokens": 100, "max_kv_length": 1000, "query_heads": 4,
        "kv_heads": 2, "head_dim": 64, "value_dim": 64,
    }  # fmt: skip
    for device in ("cpu", "cuda", "cuda:0"):
        assert hyla.workspace_bytes("attention.run", device=device, **run) >= 0
        for cache in ("int8", "torch.float8_e4m3fn"):
            least = hyla.workspace_bytes("attention.run", device=device, **run)
            room = hyla.workspace_bytes("attention.run", device=device, cache_dtype=cache, **run)
            assert room >= least
    with pytest.raises(hyla.InvalidArgument, match="^cache_dtype: expected one of"):
        hyla.workspace_bytes("attention.run", cache_dtype="int3", **run)
    for change, error, match in (
        ({"max_tokens": -1}, hyla.InvalidArgument, "^max_tokens: expected a number from 0 to 2147483648"),
        ({"key_dim": 12}, hyla.InvalidArgument, "^key_dim: expected"),
        ({"max_tokens": 1.5}, TypeError, "^max_tokens: expected an int, got float"),
        ({"colour": 1}, TypeError, "^colour: expected one of max_sequences"),
        ({"cache_dtype": "int8"}, TypeError, "^cache_dtype: expected nothing for gdn.prefill"),
        ({"dtype": "float99"}, hyla.InvalidArgument, "^dtype: expected one of"),
        ({"device": "tpu"}, hyla.InvalidArgument, "^device: expected"),
        ({"device": "cuda:x"}, hyla.InvalidArgument, "^device: expected"),
    ):
        with pytest.raises(error, match=match):
            hyla.workspace_bytes("gdn.prefill", **{**prefill, **change})
    del prefill["key_dim"]
    with pytest.raises(TypeError, match="^key_dim: expected an int, got nothing"):
        hyla.workspace_bytes("gdn.prefill", **prefill)


def test_threads():
    before = hyla.get_num_threads()
    try:
        hyla.set_num_threads(1)
        assert hyla.get_num_threads() == hyla.info()["threads"] == 1
        for wrong, error in ((-1, hyla.InvalidArgument), (1 << 40, hyla.InvalidArgument),
                             ("2", TypeError), (True, TypeError)):  # fmt: skip
            with pytest.raises(error, match="^count: expected"):
                hyla.set_num_threads(wrong)
            with pytest.raises(error, match="^count: expected"):
                hyla.set_num_threads(wrong, pool=True)
        with pytest.raises(TypeError, match="^pool: expected a bool"):
            hyla.set_num_threads(1, pool=1)
        assert hyla.get_num_threads() == 1 and not hyla.info()["thread_pool"]
    finally:
        hyla.set_num_threads(before)


@pytest.mark.parametrize("operation", sorted(_info._FUNCTIONS))
def test_signatures_fit_the_module(operation):
    """The functions pass what the module expects, by the names that its errors use."""
    function = _info._FUNCTIONS[operation]
    names = list(inspect.signature(function).parameters)
    core = list(_core.arguments[operation.replace(".", "_")])
    taken_apart = {"heads": ["key_heads", "value_heads"], "dims": ["key_dim", "value_dim"],
                   "cache": [n for n in core if n.startswith("cache.")]}  # fmt: skip
    flat = [part for name in names for part in taken_apart.get(name, [name])]
    assert sorted(flat) == sorted(core)
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        named = f"{parameter.name} " in function.__doc__ or parameter.name in function.__doc__
        module = inspect.getmodule(function).__doc__
        assert named or parameter.name in module or parameter.name in hyla.gdn.__doc__, parameter


def test_reference_has_every_operation():
    for operation in _info._FUNCTIONS:
        module, name = operation.split(".")
        assert callable(getattr(getattr(hyla.reference, module), name))

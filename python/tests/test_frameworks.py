"""Arrays of every library, the dtypes that only some have, and who owns what."""

import gc
import sys
import weakref

import jax
import numpy as np
import pytest
import torch

import hyla
from arrays import BF16, as_torch, values

B, H, HV, K, V = 2, 1, 2, 16, 8


def as_jax(x):
    """On the CPU, wherever jax would put it."""
    return jax.device_put(x, jax.devices("cpu")[0])


def arrays(dtype=np.float32, state=np.float32):
    rng = np.random.default_rng(7)
    q, k = (rng.standard_normal((B, H, K)).astype(dtype) for _ in range(2))
    v = rng.standard_normal((B, HV, V)).astype(dtype)
    return q, k, v, rng.standard_normal((B, HV, V, K)).astype(state)


@pytest.fixture(params=[np.float32, np.float16, BF16], ids=lambda d: np.dtype(d).name)
def dtype(request):
    return request.param


def expected(dtype):
    q, k, v, state = arrays(dtype)
    out = hyla.reference.gdn.decode(q, k, v, state, l2norm=True)
    return values(out), state


def test_outputs_come_in_the_framework_of_the_inputs(dtype):
    want, want_state = expected(dtype)
    for make in (np.asarray, as_torch, as_jax):
        q, k, v, state = arrays(dtype)
        first = make(q)
        out = hyla.reference.gdn.decode(first, make(k), make(v), state, l2norm=True)
        assert type(out) is type(first)
        assert out.dtype == first.dtype and tuple(out.shape) == (B, HV, V)
        assert (values(out) == want).all()
        assert (state == want_state).all()


def test_frameworks_mix_on_one_device(dtype):
    want, want_state = expected(dtype)
    q, k, v, state = arrays(dtype)
    out = hyla.reference.gdn.decode(as_torch(q), as_jax(k), v, state, l2norm=True)
    assert isinstance(out, torch.Tensor)
    assert (values(out) == want).all() and (state == want_state).all()


def test_given_output_is_written_and_returned():
    want, _ = expected(np.float32)
    for make in (np.asarray, as_torch):
        q, k, v, state = map(make, arrays())
        memory = np.full((B, HV, 2 * V), np.nan, np.float32)
        out = make(memory[:, :, :V])
        assert hyla.reference.gdn.decode(q, k, v, state, l2norm=True, out=out) is out
        assert (memory[:, :, :V] == want).all() and np.isnan(memory[:, :, V:]).all()


class Foreign:
    """Any object with __dlpack__: no type of a known library."""

    def __init__(self, array, **answer):
        self.array, self.answer, self.asked = array, answer, []

    def __dlpack_device__(self):
        return self.answer.get("device", self.array.__dlpack_device__())

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        if "max_version" in keywords and self.answer.get("old"):
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        if self.answer.get("not a capsule"):
            return 5
        return self.array.__dlpack__(**keywords)


def test_foreign_objects_by_dlpack():
    want, want_state = expected(np.float32)
    for old in (False, True):
        q, k, v, state = arrays()
        given = [Foreign(x, old=old) for x in (q, k, v, state)]
        out = np.zeros((B, HV, V), np.float32)
        hyla.reference.gdn.decode(*given, l2norm=True, out=out)
        assert (out == want).all() and (state == want_state).all()
        assert all(x.asked[0].get("copy") is False for x in given)  # never a copy


def test_foreign_objects_that_lie_or_refuse():
    q, k, v, state = arrays()
    read_only = state.copy()
    read_only.flags.writeable = False
    for name, args in {
        "state": (q, k, v, Foreign(read_only)),
        "k": (q, Foreign(k, **{"not a capsule": True}), v, state),
        "v": (q, k, Foreign(v, device=(8, 0)), state),
    }.items():
        before = state.copy()
        with pytest.raises(hyla.InvalidArgument, match=f"^{name}: "):
            hyla.gdn.decode(*args)
        assert (state == before).all()
    with pytest.raises(TypeError, match="^out: expected a tensor, since hyla cannot make one"):
        hyla.gdn.decode(Foreign(q), k, v, state)


def test_numpy_arrays_that_are_unusual():
    want, want_state = expected(np.float32)
    q, k, v, state = arrays()
    read_only = q.copy()
    read_only.flags.writeable = False  # fine for an input
    out = hyla.reference.gdn.decode(read_only, k, v, state, l2norm=True)
    assert (out == want).all()
    with pytest.raises(hyla.InvalidArgument, match=r"^q: expected a dtype that hyla knows \(.*bool\), got float64"):
        hyla.gdn.decode(q.astype(np.float64), k, v, state)
    with pytest.raises(hyla.InvalidArgument, match=r"^q: expected a dtype that hyla knows \(.*bool\), got >f4"):
        hyla.gdn.decode(q.astype(">f4"), k, v, state)
    with pytest.raises(hyla.InvalidArgument, match="^q: .* got complex64"):
        hyla.gdn.decode(q.astype(np.complex64), k, v, state)
    with pytest.raises(hyla.InvalidArgument, match="^q: .* got object"):
        hyla.gdn.decode(q.astype(object), k, v, state)
    with pytest.raises(hyla.InvalidArgument, match="^q: expected strides"):
        packed = np.zeros((B, H, K), [("x", np.float32), ("y", np.int8)])
        hyla.gdn.decode(packed["x"], k, v, state)
    with pytest.raises(hyla.InvalidArgument, match="^q: expected strides >= 0"):
        hyla.gdn.decode(q[::-1], k, v, state)


def test_memmap(tmp_path):
    want, want_state = expected(np.float32)
    q, k, v, state = arrays()
    file = np.memmap(tmp_path / "state", np.float32, "w+", shape=state.shape)
    file[...] = state
    out = hyla.reference.gdn.decode(q, k, v, file, l2norm=True)
    assert (out == want).all() and (file == want_state).all()


def test_every_index_dtype():
    want, _ = expected(np.float32)
    for make in (np.asarray, as_torch):
        for index in (np.int32, np.int64, np.uint32):
            q, k, v, state = map(make, arrays())
            slots = make(np.array([1, 0], index))
            swapped = hyla.reference.gdn.decode(q, k, v, state, read_slots=slots, l2norm=True)
            assert not (values(swapped) == want).all()
    q, k, v, state = arrays()
    for wrong in (np.int8, np.bool_, np.float32, np.uint8):
        with pytest.raises(hyla.InvalidArgument, match="^read_slots: expected dtype int32 or int64"):
            hyla.gdn.decode(q, k, v, state, read_slots=np.zeros(B, wrong))


def test_torch_parameters_serve_without_gradients():
    q, k, v, state = map(torch.from_numpy, arrays())
    a, b = torch.zeros(B, HV), torch.zeros(B, HV)
    A_log = torch.nn.Parameter(torch.zeros(HV))
    dt_bias = torch.nn.Parameter(torch.zeros(HV))
    with torch.no_grad():
        hyla.gdn.decode(q, k, v, state, a=a, A_log=A_log, dt_bias=dt_bias, b=b)
    with torch.inference_mode():
        hyla.gdn.decode(q, k, v, state, a=a, A_log=A_log, dt_bias=dt_bias, b=b)
    with pytest.raises(hyla.InvalidArgument, match="^A_log: expected a tensor that needs no gradient"):
        hyla.gdn.decode(q, k, v, state, a=a, A_log=A_log, dt_bias=dt_bias, b=b)
    with pytest.raises(hyla.InvalidArgument, match="^q: expected a tensor that needs no gradient"):
        hyla.gdn.decode(q.clone().requires_grad_() * 2, k, v, state)


def test_torch_tensors_without_memory():
    q, k, v, state = map(torch.from_numpy, arrays())
    freed = state.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(hyla.InvalidArgument, match="^state: expected memory, got a null pointer"):
        hyla.gdn.decode(q, k, v, freed)
    with pytest.raises(hyla.InvalidArgument, match="^k: "):
        hyla.gdn.decode(q, k.to_sparse(), v, state)
    with pytest.raises(hyla.InvalidArgument, match="^k: .* got float64"):
        hyla.gdn.decode(q, k.double(), v, state)
    with pytest.raises(hyla.InvalidArgument, match="^k: .* got complex64"):
        hyla.gdn.decode(q, k.to(torch.complex64), v, state)
    with pytest.raises((hyla.InvalidArgument, TypeError), match="^k: "):
        hyla.gdn.decode(q, k.to("meta"), v, state)


def test_moved_torch_tensors():
    """Memory is asked for at every call: a tensor that was given other memory is updated there."""
    q, k, v, state = map(torch.from_numpy, arrays())
    moved = torch.full_like(state, torch.nan)
    other = state.clone()
    hyla.gdn.decode(q, k, v, moved)  # whatever is remembered about the tensor is remembered now
    old = moved.clone()
    memory = moved.detach()
    moved.set_(other)
    want = hyla.gdn.decode(q, k, v, state)
    assert torch.equal(hyla.gdn.decode(q, k, v, moved), want)
    assert torch.equal(other, state) and torch.equal(moved, state)
    assert torch.equal(memory.isnan(), old.isnan())
    moved.data = torch.zeros(1, 1, 1)
    with pytest.raises(hyla.InvalidArgument, match="^state: expected shape"):
        hyla.gdn.decode(q, k, v, moved)
    grown = torch.zeros(1).resize_(B, HV, V, K).copy_(other)
    hyla.gdn.decode(q, k, v, grown)
    hyla.gdn.decode(q, k, v, other)
    assert torch.equal(grown, other)


def test_jax_arrays_are_never_written():
    q, k, v, state = map(as_jax, arrays())
    before = np.asarray(state).copy()
    with pytest.raises(hyla.InvalidArgument, match="^state: expected a tensor that can be written"):
        hyla.gdn.decode(q, k, v, state)
    with pytest.raises(hyla.InvalidArgument, match="^out: expected a tensor that can be written"):
        hyla.gdn.decode(q, k, v, np.array(before), out=as_jax(np.zeros((B, HV, V), np.float32)))
    assert (np.asarray(state) == before).all()


def test_nothing_is_kept():
    """No call keeps a reference to an argument, whatever becomes of the call."""
    for make in (np.asarray, as_torch, as_jax):
        q, k, v, _ = map(make, arrays())
        state = np.zeros((B, HV, V, K), np.float32)
        objects = [q, k, v, state]
        counts = [sys.getrefcount(x) for x in objects]
        results = []
        for _ in range(50):
            results.append(hyla.gdn.decode(q, k, v, state))
            with pytest.raises(hyla.InvalidArgument):
                hyla.gdn.decode(q, k, v, state[:1])
            with pytest.raises(hyla.InvalidArgument):
                hyla.gdn.decode(q, k, v, state, layout="xx")
            with pytest.raises(TypeError):
                hyla.gdn.decode(q, k, v, 3)
            hyla.explain("gdn.decode", q, k, v, state)
        assert [sys.getrefcount(x) for x in objects] == counts
        references = sys.getrefcount(results[0])  # the list's and that of the question
        assert len({id(x) for x in results}) == 50 and references == 2
        if make is not as_jax:
            gone = weakref.ref(results[0])
            results.clear()
            gc.collect()
            assert gone() is None


def test_memory_does_not_grow():
    """Outputs, exported capsules and errors give back what they take."""
    import resource

    q, k, v, state = arrays()
    big = np.zeros((4096, H, K), np.float32)
    big_v = np.zeros((4096, HV, V), np.float32)
    pool = np.zeros((4096, HV, V, K), np.float32)
    tensors = [as_torch(x) for x in (big, big, big_v, pool)]
    foreign = Foreign(big)

    def once():
        hyla.norm.gated_rms(big_v, big_v, np.ones(V, np.float32))
        hyla.norm.gated_rms(tensors[2], tensors[2], torch.ones(V))
        hyla.norm.gated_rms(foreign, big, np.ones(K, np.float32), out=big.copy())
        for _ in range(20):
            with pytest.raises(hyla.InvalidArgument):
                hyla.gdn.decode(q, k, foreign, state)

    for _ in range(3):
        once()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(60):
        once()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 4 * 1024, f"{grown} KiB"  # 60 outputs alone would be 15 MiB each way


def test_no_framework_is_imported():
    """hyla itself needs nothing: importing it imports neither numpy nor torch."""
    import subprocess

    code = "import hyla, sys; print([m for m in ('numpy', 'torch', 'jax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

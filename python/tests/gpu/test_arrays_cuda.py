"""Arrays of every library on a GPU: who describes them, whose stream is used, what is refused."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hyla
from calls import torch_calls
from capsules import Handmade

pytestmark = pytest.mark.gpu

NAMES = sorted(torch_calls())
FLOATS = [torch.float32, torch.float16]
WRITTEN = ("state", "states_out", "pages", "lse")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


class OnlyInterface:
    """An array that has nothing but __cuda_array_interface__, over the memory of a torch tensor."""

    def __init__(self, tensor, **changed):
        self.tensor = tensor  # keeps the memory
        self.device = SimpleNamespace(id=changed.pop("device", 0))
        self.shape = tuple(tensor.shape)
        interface = dict(tensor.__cuda_array_interface__)
        interface["data"] = (interface["data"][0], changed.pop("read_only", False))
        self.interface = {**interface, **changed}

    @property
    def __cuda_array_interface__(self):
        return self.interface

    def __getitem__(self, index):
        return OnlyInterface(self.tensor[index])


class OnlyDlpack:
    """An array that has nothing but __dlpack__."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.tensor.__dlpack__(**keywords)


def dlpack_elsewhere(tensor):
    code = 2 if tensor.is_floating_point() else 0
    return Handmade(tensor.data_ptr(), tensor.shape, tensor.stride(), device_type=2, device_id=1,
                    code=code)  # fmt: skip


def interface_elsewhere(tensor):
    return OnlyInterface(tensor, device=1)


def same(got, want):
    if want is None:
        assert got is None
        return
    assert torch.equal(torch.as_tensor(got, device="cuda"), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_cupy(name, dtype, cupy):
    """All tensors of a call, allocated outputs and workspaces, in place."""
    call = torch_calls(dtype)[name].copy("cuda")
    other = {n: cupy.asarray(t.cpu().numpy()) for n, t in call.tensors.items()}
    want, got = call(), call.run(**other)
    assert want is None or type(got) is cupy.ndarray
    same(got, want)
    for n, t in call.tensors.items():
        same(other[n], t)


def test_cupy_streams(cupy):
    """The stream that cupy has current, and streams of cupy as stream=."""
    call = torch_calls()["gdn_decode"].copy("cuda")
    want = call.copy("cuda")()
    other = {n: cupy.asarray(t.cpu().numpy()) for n, t in call.tensors.items()}
    q = other["q"].copy()
    other["q"].fill(np.nan)
    cupy.cuda.Device().synchronize()
    side = cupy.cuda.Stream(non_blocking=True)
    with side, torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
        torch.cuda._sleep(50_000_000)
        other["q"][...] = q
        got = call.run(**other)
        assert not side.done
    side.synchronize()
    same(got, want)
    x, z, weight = (
        cupy.asarray(t.cpu().numpy()) for t in torch_calls()["norm_gated_rms"].tensors.values()
    )
    plain = hyla.norm.gated_rms(x, z, weight)
    out = cupy.zeros_like(x)
    cupy.cuda.Device().synchronize()
    assert hyla.norm.gated_rms(x, z, weight, stream=side, out=out) is out
    side.synchronize()
    assert (out == plain).all()


def test_cupy_read_only_and_strided(cupy):
    x = cupy.ones((3, 16), "float32")
    for bad in (x[:, ::2], cupy.asfortranarray(x)):
        with pytest.raises(hyla.InvalidArgument, match="^(x|z): expected"):
            hyla.norm.gated_rms(bad, bad, cupy.ones(bad.shape[1], "float32"))
    wide = cupy.full((3, 32), cupy.nan, "float32")
    hyla.norm.gated_rms(x, x, cupy.ones(16, "float32"), out=wide[:, 8:24])
    assert not cupy.isnan(wide[:, 8:24]).any() and cupy.isnan(wide[:, :8]).all()


@pytest.mark.parametrize("wrap", [OnlyInterface, OnlyDlpack])
@pytest.mark.parametrize("name", NAMES)
def test_foreign_objects(name, wrap):
    """They are updated in place; what hyla would have to allocate for them must be given."""
    call = torch_calls()[name].copy("cuda")
    twin = call.copy("cuda")
    want = call()
    out = {} if want is None else {"out": torch.zeros_like(want)}
    given = {n: wrap(t) for n, t in twin.tensors.items()}
    if "pages" in given:  # the calls cut it in two, which only arrays can
        given["pages"] = twin.tensors["pages"]
    torch.cuda.synchronize()
    hyla_module, function = name.split("_", 1)
    module = getattr(hyla, hyla_module)
    original = getattr(module, function)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, function, lambda *args, **kwargs: original(*args, **kwargs, **out))
        if name in ("gdn_prefill", "attention_run"):  # scratch memory too
            patch.setattr(
                module,
                function,
                lambda *args, **kwargs: original(
                    *args,
                    **kwargs,
                    **out,
                    workspace=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
                ),
            )
        twin.run(**given)
    if want is not None:
        assert torch.equal(out["out"], want)
    for n, t in call.tensors.items():
        assert torch.equal(t, twin.tensors[n]), n


def test_foreign_objects_that_cannot_be_used():
    call = torch_calls()["gdn_decode"].copy("cuda")
    t = call.tensors
    read_only = OnlyInterface(t["state"], read_only=True)
    before = t["state"].clone()
    with pytest.raises(hyla.InvalidArgument, match="^state: expected a tensor that can be written"):
        call.run(**{**t, "state": read_only})
    for typestr in ("<f8", ">f4", "<c8", "|V2"):
        with pytest.raises(hyla.InvalidArgument, match="^k: expected a dtype that hyla knows"):
            call.run(**{**t, "k": OnlyInterface(t["k"], typestr=typestr)})
    with pytest.raises(hyla.InvalidArgument, match="^k: expected memory, got a null pointer"):
        call.run(**{**t, "k": OnlyInterface(t["k"], data=(0, False))})
    with pytest.raises(hyla.InvalidArgument, match="^k: expected shape|^k: "):
        call.run(**{**t, "k": OnlyInterface(t["k"], shape=(-1, 2, 64))})
    with pytest.raises(TypeError, match="^out: expected a tensor, since hyla cannot make one"):
        hyla.norm.gated_rms(OnlyDlpack(t["v"]), t["v"], t["v"][0, 0].contiguous())
    assert torch.equal(t["state"], before)


@pytest.mark.parametrize("elsewhere", [dlpack_elsewhere, interface_elsewhere])
def test_tensors_on_different_gpus(elsewhere):
    """No other GPU is needed to say that a tensor is there."""
    call = torch_calls()["gdn_decode"].copy("cuda")
    before = {n: x.clone() for n, x in call.tensors.items()}
    for name in call.tensors:
        if name == "q":
            continue
        argument = "read_slots" if name == "slots" else name
        with pytest.raises(hyla.InvalidArgument, match=f"^{argument}: .* cuda:0, got .*cuda:1"):
            call.run(**{**call.tensors, name: elsewhere(call.tensors[name])})
    out = torch.zeros_like(call.tensors["v"])
    q, k, v, state = (call.tensors[n] for n in ("q", "k", "v", "state"))
    with pytest.raises(hyla.InvalidArgument, match="^k: .* cuda:1, got .*cuda:0"):
        hyla.gdn.decode(elsewhere(q), k, v, state, out=out)
    if torch.cuda.device_count() == 1:  # all of them on a GPU that is not there
        with pytest.raises(hyla.Error):
            hyla.gdn.decode(*map(elsewhere, (q, k, v, state)), out=elsewhere(out))
    torch.cuda.synchronize()
    for name, x in before.items():
        assert torch.equal(call.tensors[name], x)


def test_jax_arrays():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax without a GPU")
    call = torch_calls()["gdn_decode"].copy("cuda")
    t = call.tensors
    want, state = call(), t["state"]
    fresh = torch_calls()["gdn_decode"].copy("cuda").tensors
    read = {n: jax.dlpack.from_dlpack(fresh[n]) for n in ("q", "k", "v", "a", "b")}
    fixed = {"A_log": fresh["A_log"], "dt_bias": fresh["dt_bias"], "read_slots": fresh["slots"]}
    q, k, v, a, b = read.values()
    arguments = {"a": a, "b": b, **fixed, "l2norm": True}
    out = torch.zeros_like(want)
    torch.cuda.synchronize()
    hyla.gdn.decode(q, k, v, fresh["state"], **arguments, out=out)
    assert torch.equal(out, want) and torch.equal(fresh["state"], state)
    pool = jax.dlpack.from_dlpack(fresh["state"].clone())
    with pytest.raises(hyla.InvalidArgument, match="^state: .* a jax array, which never changes"):
        hyla.gdn.decode(q, k, v, pool, **arguments, out=out)
    with pytest.raises(hyla.InvalidArgument, match="^out: .* a jax array, which never changes"):
        hyla.gdn.decode(
            q, k, v, fresh["state"], **arguments, out=jax.dlpack.from_dlpack(out.clone())
        )
    with pytest.raises(TypeError, match="^out: expected a tensor, since hyla cannot make one"):
        hyla.gdn.decode(q, k, v, fresh["state"], **arguments)


def test_frameworks_mix(cupy):
    call = torch_calls()["gdn_decode"].copy("cuda")
    mixed = dict(call.copy("cuda").tensors)
    mixed["state"] = cupy.asarray(mixed["state"])
    mixed["k"] = OnlyInterface(mixed["k"])
    mixed["v"] = OnlyDlpack(mixed["v"])
    want, got = call(), call.run(**mixed)
    assert isinstance(got, torch.Tensor) and torch.equal(got, want)
    same(mixed["state"], call.tensors["state"])


def test_tensors_without_memory():
    call = torch_calls()["gdn_decode"].copy("cuda")
    for name in ("q", "state"):
        freed = {n: t.clone() for n, t in call.tensors.items()}
        freed[name].untyped_storage().resize_(0)
        with pytest.raises(
            hyla.InvalidArgument, match=f"^{name}: expected memory, got a null pointer"
        ):
            call.run(**freed)
    moved = {**call.tensors, "state": call.tensors["state"].to("cpu")}
    with pytest.raises(hyla.InvalidArgument, match="^state: expected a tensor on cuda:0, got"):
        call.run(**moved)


def test_gradients_are_refused():
    call = torch_calls()["gdn_decode"].copy("cuda")
    call.tensors["A_log"].requires_grad_()
    with pytest.raises(hyla.InvalidArgument, match="^A_log: expected a tensor that needs no grad"):
        call()
    with torch.no_grad():
        call()


def test_several_threads_and_streams():
    """Each thread has its own stream and pool; all of them get what one alone would get."""
    results, failures = {}, []
    barrier = threading.Barrier(8)

    def steps(seed, stream):
        call = torch_calls()["gdn_decode"].copy("cuda")
        call.tensors["q"] += seed
        outs = []
        with torch.cuda.stream(stream):
            for _ in range(50):
                outs.append(call())
                try:
                    hyla.gdn.decode(call.tensors["q"], call.tensors["k"], call.tensors["v"], None)
                except TypeError as error:
                    assert str(error).startswith("state: ")
            stream.synchronize()
        return torch.stack(outs), call.tensors["state"]

    def work(seed):
        try:
            stream = torch.cuda.Stream()
            barrier.wait()
            results[seed] = steps(seed, stream)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    alone = {seed: steps(seed, torch.cuda.current_stream()) for seed in range(8)}
    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    for seed, (outs, state) in alone.items():
        assert torch.equal(results[seed][0], outs) and torch.equal(results[seed][1], state)


def test_nothing_is_kept_and_nothing_allocated():
    call = torch_calls()["gdn_decode"].copy("cuda")
    t = call.tensors
    out = torch.zeros_like(t["v"])
    gates = {n: t[n] for n in ("a", "b", "A_log", "dt_bias")}
    call()
    counts = {n: sys.getrefcount(x) for n, x in t.items()}
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    for _ in range(100):
        hyla.gdn.decode(t["q"], t["k"], t["v"], t["state"], **gates, read_slots=t["slots"], out=out)
        assert torch.cuda.memory_allocated() == held
        call()
        with pytest.raises(hyla.InvalidArgument):
            hyla.gdn.decode(t["q"], t["k"], t["v"], t["state"][:, :1])
    assert torch.cuda.memory_allocated() == held
    assert {n: sys.getrefcount(x) for n, x in t.items()} == counts

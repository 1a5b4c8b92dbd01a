"""CUDA tensors: results, streams, graphs, devices. Needs a GPU, and torch with CUDA."""

import pytest
import torch

import hyla
from calls import torch_calls

pytestmark = pytest.mark.gpu

NAMES = sorted(torch_calls())
DTYPES = [torch.float32, torch.bfloat16]


def close(got, want, dtype):
    """Kernels compute in float32, with 16-bit operands where the inputs are 16-bit."""
    if want is None:
        return
    roundoff = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}[dtype]
    got, want = got.double().cpu(), want.double()
    bound = 64 * roundoff * max(float(want[want.isfinite()].abs().max()), 1.0)
    assert torch.equal(got.isfinite(), want.isfinite())
    error = (got - want)[want.isfinite()].abs().max()
    assert error <= bound, f"{error} > {bound}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_cpu(name, dtype):
    cpu = torch_calls(dtype)[name]
    gpu = cpu.copy("cuda")
    got = gpu()
    want = cpu()
    assert got is None or got.is_cuda
    close(got, want, dtype)
    for argument in cpu.tensors:
        close(gpu.tensors[argument], cpu.tensors[argument], dtype)


def test_runs_on_the_current_stream():
    """A call on a side stream sees what that stream did before, though it takes long."""
    call = torch_calls()["gdn_decode"].copy("cuda")
    want = call.copy("cuda")()
    true_q = call.tensors["q"].clone()
    call.tensors["q"].fill_(float("nan"))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        call.tensors["q"].copy_(true_q)
        got = call()
        assert not side.query()  # asynchronous: the call did not wait
    side.synchronize()
    assert torch.equal(got, want)


def test_explicit_streams():
    call = torch_calls()["norm_gated_rms"].copy("cuda")
    x, z, weight = call.tensors.values()
    want = hyla.norm.gated_rms(x, z, weight)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for stream in (side, side.cuda_stream):
        out = torch.zeros_like(x)
        side.wait_stream(torch.cuda.current_stream())
        assert hyla.norm.gated_rms(x, z, weight, stream=stream, out=out) is out
        side.synchronize()
        assert torch.equal(out, want)
    with pytest.raises(hyla.InvalidArgument, match="^out: expected a tensor, because stream is"):
        hyla.norm.gated_rms(x, z, weight, stream=side)
    with pytest.raises(TypeError, match="^stream: "):
        hyla.norm.gated_rms(x, z, weight, stream="first", out=torch.zeros_like(x))
    with pytest.raises(hyla.InvalidArgument, match="^stream: "):
        hyla.norm.gated_rms(x.cpu(), z.cpu(), weight.cpu(), stream=side)


def test_graph_replays_with_other_slots_and_values():
    call = torch_calls()["gdn_decode"].copy("cuda")
    call()  # loads the kernels
    out = torch.zeros_like(call.tensors["v"])
    t = call.tensors

    def step():
        hyla.gdn.decode(
            t["q"], t["k"], t["v"], t["state"], a=t["a"], b=t["b"], A_log=t["A_log"],
            dt_bias=t["dt_bias"], read_slots=t["slots"], l2norm=True, out=out,
        )  # fmt: skip

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for slots in ([0, 1, 2], [3, -1, 1], [-1, -1, -1]):
        t["slots"].copy_(torch.tensor(slots, dtype=torch.int32))
        t["q"].add_(0.5)
        eager = {n: x.clone() for n, x in t.items()}
        want = torch.full_like(out, 3)
        hyla.gdn.decode(
            eager["q"], eager["k"], eager["v"], eager["state"], a=eager["a"], b=eager["b"],
            A_log=eager["A_log"], dt_bias=eager["dt_bias"], read_slots=eager["slots"],
            l2norm=True, out=want,
        )  # fmt: skip
        out.fill_(3)
        graph.replay()
        assert torch.equal(out, want)
        assert torch.equal(t["state"], eager["state"])


def test_outputs_may_be_allocated_inside_a_capture():
    call = torch_calls()["norm_gated_rms"].copy("cuda")
    want = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call()
    got.zero_()
    graph.replay()
    assert torch.equal(got, want)


def test_devices_do_not_mix():
    call = torch_calls()["gdn_decode"].copy("cuda")
    for name in ("k", "v", "state", "a", "A_log", "slots"):
        mixed = dict(call.tensors)
        mixed[name] = mixed[name].cpu()
        argument = "read_slots" if name == "slots" else name
        with pytest.raises(hyla.InvalidArgument, match=f"^{argument}: expected a tensor on cuda:0"):
            call.run(**mixed)
    with pytest.raises(hyla.InvalidArgument, match="^k: expected a tensor on cpu"):
        call.run(**{**call.tensors, "q": call.tensors["q"].cpu()})


@pytest.mark.parametrize("name", ["gdn_decode", "norm_gated_rms"])
def test_compiled(name):
    call = torch_calls()[name].copy("cuda")
    other = call.copy("cuda")
    want = call()
    got = other(torch.compile(call.run, fullgraph=True, backend="aot_eager"))
    assert torch.equal(got, want)
    for n in call.tensors:
        assert torch.equal(call.tensors[n], other.tensors[n])


def test_unsupported_says_who_refused():
    call = torch_calls()["gdn_decode"].copy("cuda")
    with pytest.raises(hyla.Unsupported) as caught:
        hyla.gdn.decode(
            call.tensors["q"], call.tensors["k"], call.tensors["v"], call.tensors["state"],
            impl="reference",
        )  # fmt: skip
    assert caught.value.candidates[0][0] == "reference"

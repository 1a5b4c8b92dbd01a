"""CUDA tensors: results, streams, graphs, devices. Needs a GPU, and torch with CUDA."""

import pytest
import torch

import hyla
from calls import torch_calls
from hyla.compat import fla, flashinfer
from judge import DEVICES, check

NAMES = sorted(torch_calls())
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_operation(name, dtype, device):
    """Against exact arithmetic; on the CPU the judge itself is seen to be fair."""
    call = torch_calls(dtype, wide=128)[name]
    check(call.run, device=device, dtype=dtype, **call.tensors)


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_outputs_may_be_allocated_inside_a_capture():
    call = torch_calls()["norm_gated_rms"].copy("cuda")
    want = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call()
    got.zero_()
    graph.replay()
    assert torch.equal(got, want)


@pytest.mark.gpu
def test_prefill_is_told_lengths_on_the_cpu():
    call = torch_calls(torch.bfloat16, wide=128)["gdn_prefill"].copy("cuda")
    t = call.tensors
    want = call.copy("cuda")()
    lengths = t["cu_seqlens"].diff()

    def told(said):
        pool = t["state"].clone()
        return hyla.gdn.prefill(
            t["q"], t["k"], t["v"], state=pool, log_alpha=t["log_alpha"],
            cu_seqlens=t["cu_seqlens"], l2norm=True, host_lengths=said,
        )  # fmt: skip

    for said in (lengths.cpu(), lengths.cpu().long() * 7, lengths.cpu().numpy()):
        assert torch.allclose(told(said).float(), want.float(), rtol=0.02, atol=0.02)
    with pytest.raises(hyla.InvalidArgument, match="^host_lengths: expected a tensor on cpu"):
        told(lengths)


@pytest.mark.gpu
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


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gdn_decode", "norm_gated_rms"])
def test_compiled(name):
    call = torch_calls()[name].copy("cuda")
    other = call.copy("cuda")
    want = call()
    got = other(torch.compile(call.run, fullgraph=True, backend="aot_eager"))
    assert torch.equal(got, want)
    for n in call.tensors:
        assert torch.equal(call.tensors[n], other.tensors[n])


@pytest.mark.gpu
def test_unsupported_says_who_refused():
    call = torch_calls()["gdn_decode"].copy("cuda")
    with pytest.raises(hyla.Unsupported) as caught:
        hyla.gdn.decode(
            call.tensors["q"], call.tensors["k"], call.tensors["v"], call.tensors["state"],
            impl="reference",
        )  # fmt: skip
    assert caught.value.candidates[0][0] == "reference"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gdn_decode", "norm_gated_rms"])
def test_compiled_by_inductor_into_graphs(name):
    """torch's own way to CUDA graphs, several times, so that graphs are recorded and replayed."""
    call = torch_calls()[name].copy("cuda")
    other = call.copy("cuda")
    compiled = torch.compile(call.run, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        assert torch.equal(other(compiled), call())
        for n in call.tensors:
            assert torch.equal(call.tensors[n], other.tensors[n])


@pytest.mark.gpu
def test_exported():
    call = torch_calls()["gdn_decode"].copy("cuda")

    class Layer(torch.nn.Module):
        def forward(self, **tensors):
            return call.run(**tensors)

    program = torch.export.export(Layer(), (), kwargs=call.copy("cuda").tensors)
    other = call.copy("cuda")
    assert torch.equal(program.module()(**other.tensors), call())
    assert torch.equal(call.tensors["state"], other.tensors["state"])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [7, 700])
def test_slots_and_rows_append_the_same(tokens):
    S, H, D = 16, 2, 128
    generator = torch.Generator().manual_seed(2)
    k, v = (torch.randn(tokens, H, D, generator=generator).bfloat16().cuda() for _ in range(2))
    angles = torch.rand(tokens + 5, D // 2, generator=generator).cuda()
    pages = torch.randperm(60, generator=generator)
    at = torch.arange(5, tokens + 5)
    slots = (pages[at // S] * S + at % S).cuda()
    slots[3] = -1
    caches = [torch.zeros(60, 2, S, H, D, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    rope = {"cos": angles.cos(), "sin": angles.sin()}
    hyla.attention.append(
        hyla.attention.PagedCache.fused(caches[0]), k, v, page_table=pages[None].int().cuda(),
        cu_seqlens=torch.tensor([0, tokens]).cuda(), kv_lengths=torch.tensor([tokens + 5]).cuda(),
        **rope,
    )  # fmt: skip
    caches[0][pages[8 // S], :, 8 % S] = 0  # token 3 stands at position 8
    hyla.attention.append(
        hyla.attention.PagedCache.fused(caches[1]), k, v, slots=slots, positions=at.cuda(), **rope
    )
    assert torch.equal(caches[0], caches[1])
    beyond = slots.clone()
    beyond[3] = 60 * S  # nowhere either
    hyla.attention.append(
        hyla.attention.PagedCache.fused(caches[1]), k, v, slots=beyond, positions=at.cuda(), **rope
    )
    assert torch.equal(caches[0], caches[1])


@pytest.mark.gpu
def test_lengths_that_the_caller_has_on_the_cpu_are_passed_on(monkeypatch):
    told = []
    prefill = hyla.gdn.prefill

    def recorded(*args, **keywords):
        told.append((keywords["host_lengths"], keywords.get("max_length", 0)))
        return prefill(*args, **keywords)

    monkeypatch.setattr(hyla.gdn, "prefill", recorded)
    q, k, v = torch.randn(3, 1, 200, 2, 128, device="cuda").unbind()
    # Longer keys make states grow from token to token, and with them what plans round differently.
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    q, k, v = (x.bfloat16() for x in (q, k, v))
    g, beta = -torch.rand(1, 200, 2, device="cuda"), torch.rand(1, 200, 2, device="cuda")
    offsets = torch.tensor([0, 130, 130, 200])
    want, _ = fla.chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=offsets.cuda())
    for given in (
        {"cu_seqlens": offsets.cuda(), "cu_seqlens_cpu": offsets},
        {"cu_seqlens": offsets},
    ):
        got, _ = fla.chunk_gated_delta_rule(q, k, v, g, beta, **given)
        assert torch.allclose(got.float(), want.float(), rtol=0.02, atol=0.02)
    flat = [x[0] for x in (q, k, v)]
    for given in (offsets, offsets.cuda()):
        flashinfer.chunk_gated_delta_rule(
            *flat, g[0].exp(), beta[0], cu_seqlens=given, max_seqlen=130
        )
    lengths = [None if x is None else x.tolist() for x, _ in told]
    assert lengths == [None, [130, 0, 70], [130, 0, 70], [130, 0, 70], None]
    assert [longest for _, longest in told] == [0, 0, 0, 130, 130]

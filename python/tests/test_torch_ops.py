"""hyla inside torch: compile, export, fake tensors and torch's own checks of operators."""

import subprocess
import sys

import pytest
import torch

import hyla
from calls import torch_calls
from hyla import _core

NAMES = sorted(torch_calls())


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield


def same(a, b):
    assert (a is None) == (b is None)
    if a is not None:
        assert a.dtype == b.dtype and torch.equal(a, b)


def same_call(a, b):
    for name in a.tensors:
        same(a.tensors[name], b.tensors[name])


def test_every_operation_is_covered():
    assert NAMES == sorted(_core.arguments)


@pytest.mark.parametrize("name", NAMES)
def test_compile_without_a_graph_break(name):
    """The graph that dynamo makes has the operator in it, and computes the same, in place too."""
    eager, traced = torch_calls()[name], torch_calls()[name]
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    def step(**tensors):
        out = eager.run(**tensors)
        return None if out is None else out * 2

    want, got = eager(step), traced(torch.compile(step, fullgraph=True, backend=backend))
    same(want, got)
    same_call(eager, traced)
    assert len(graphs) == 1
    assert f"hyla.{name}" in graphs[0].code.replace("torch.ops.", "")


@pytest.mark.parametrize("name", ["gdn_decode", "attention_append"])
def test_compile_with_inductor(name):
    """The whole way, with the functionalisation of in-place arguments and buffer reuse."""
    eager, traced = torch_calls()[name], torch_calls()[name]

    def step(**tensors):
        tensors = {n: t + 0 if n in ("q", "k") else t for n, t in tensors.items()}
        out = eager.run(**tensors)
        return None if out is None else out.sin()

    want, got = eager(step), traced(torch.compile(step, fullgraph=True))
    if want is not None:
        torch.testing.assert_close(want, got)  # sin is inductor's
    same_call(eager, traced)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_given_scale_is_only_read(backend):
    """A graph without in-place arguments cannot write a tensor of stride 0 back."""

    def append(pages, scale, k):
        scales = scale.expand(2, 4, 1, 1)
        cache = hyla.attention.PagedCache(pages[0], pages[1], k_scales=scales, v_scales=scales)
        hyla.attention.append(
            cache, k + 0, k + 0, cu_seqlens=torch.tensor([0, 3]), kv_lengths=torch.tensor([3]),
            page_table=torch.tensor([[1]]), given_scales=True,
        )  # fmt: skip

    k = torch.arange(24.0).reshape(3, 1, 8)
    results = []
    for function in (append, torch.compile(append, fullgraph=True, backend=backend)):
        pages = torch.zeros(2, 2, 4, 1, 8, dtype=torch.int8)
        function(pages, torch.tensor(0.5), k)
        results.append(pages)
    assert (results[0][:, 1, :3] == (k / 0.5)).all()
    same(*results)


def test_compile_with_changing_batches():
    """Sizes stay symbolic: no new graph for the third batch size."""
    count = 0

    def backend(graph, _):
        nonlocal count
        count += 1
        return graph.forward

    function = torch.compile(torch_calls()["gdn_decode"].run, fullgraph=True, backend=backend, dynamic=True)
    for rows in (3, 2, 5, 4):
        call = torch_calls()["gdn_decode"]
        for n in ("q", "k", "v", "a", "b"):
            call.tensors[n] = call.tensors[n].repeat(2, *[1] * (call.tensors[n].dim() - 1))[:rows]
        call.tensors["slots"] = torch.tensor([2, -1, 0, 1, 3], dtype=torch.int32)[:rows]
        other = call.copy()
        same(call(), other(function))
        same_call(call, other)
    assert count == 1


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_export(name, strict):
    call = torch_calls()[name]

    class Layer(torch.nn.Module):
        def forward(self, **tensors):
            out = call.run(**tensors)
            return tensors["k"].sum() if out is None else out

    program = torch.export.export(Layer(), (), kwargs=torch_calls()[name].tensors, strict=strict)
    assert any(f"hyla.{name}" in str(node.target) for node in program.graph.nodes)
    eager, exported = torch_calls()[name], torch_calls()[name]
    want, got = eager(), program.module()(**exported.tensors)
    same(eager.tensors["k"].sum() if want is None else want, got)
    same_call(eager, exported)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    from hyla import _torch

    call = torch_calls()[name]
    recorded = []
    functions = dict(_torch.functions)

    def record(*args):
        recorded.append(args)
        return functions[name](*args)

    # FakeTensorMode sends the call to torch's dispatcher; the arguments it had are those of opcheck.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_torch.functions, name, record)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = {n: mode.from_tensor(t) for n, t in call.tensors.items()}
            real = {id(f): t for f, t in zip(fakes.values(), call.tensors.values())}
            call.run(**fakes)
    names = [n for n in _core.arguments[name] if n != "stream"]
    given = dict(zip(_core.arguments[name], recorded[0]))
    arguments = []
    for n in names:
        value = given[n]
        if isinstance(value, torch.Tensor):
            value = real.get(id(value))
            if value is None:  # a view of the pages
                value = call.tensors["pages"][:, 0 if n == "cache.k" else 1].clone()
        if n == "out" and value is None:
            with torch.no_grad():
                value = torch.zeros_like(call())
        arguments.append(value)
    operator = getattr(torch.ops.hyla, name).default
    verdicts = torch.library.opcheck(operator, tuple(arguments))
    assert set(verdicts.values()) == {"SUCCESS"}, verdicts


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors(name):
    """Shapes, dtypes and devices without memory are those of the real call."""
    call = torch_calls()[name]
    want = call.copy()()
    with torch._subclasses.FakeTensorMode() as mode:
        got = call.run(**{n: mode.from_tensor(t) for n, t in call.tensors.items()})
    assert (got is None) == (want is None)
    if want is not None:
        assert got.shape == want.shape and got.dtype == want.dtype and got.device == want.device


def test_mutated_arguments_are_declared():
    for name in NAMES:
        schema = getattr(torch.ops.hyla, name).default._schema
        eager = torch_calls()[name]
        before = eager.copy()
        eager()
        changed = {n for n in eager.tensors if not torch.equal(eager.tensors[n], before.tensors[n])}
        declared = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
        changed -= {"pages"}  # known to the operator as cache_k and cache_v
        assert changed <= declared, (name, changed, declared)


def test_gradients_are_refused_while_tracing():
    call = torch_calls()["gdn_decode"]
    call.tensors["A_log"].requires_grad_()
    compiled = torch.compile(call.run, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="A_log.*a tensor that needs no gradient"):
        call(compiled)
    with torch.no_grad():
        call(compiled)


def test_functorch_tensors_are_refused():
    call = torch_calls()["norm_gated_rms"]
    x, z, weight = call.tensors.values()
    with pytest.raises(Exception, match="x: expected|vmap|[Bb]atch"):
        torch.vmap(lambda x: hyla.norm.gated_rms(x, z[0], weight))(x)


def test_hyla_before_torch():
    """The order of the imports does not matter."""
    code = """
import hyla, torch
x = torch.ones(2, 8)
f = torch.compile(lambda x: hyla.norm.gated_rms(x, x, x[0]), fullgraph=True, backend="eager")
assert torch.equal(f(x), hyla.norm.gated_rms(x, x, x[0]))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_output_over_its_input_in_a_graph():
    """Compiled code may put copies between; what it leaves in x and in the pool is the same."""
    weight = torch.randn(24, 4)

    def layer(x, state, z):
        hyla.conv.update(x, weight, state, out=x)
        hyla.norm.gated_rms(x, z, weight[:, 0].contiguous(), out=x)
        return 2 * x

    tensors = [torch.randn(3, 24), torch.randn(3, 24, 3), torch.randn(3, 24)]
    eager, compiled = ([x.clone() for x in tensors] for _ in range(2))
    want = layer(*eager)
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(*compiled)
    assert torch.equal(got, want)
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled))
    assert not torch.equal(eager[0], tensors[0])

"""hyla under the real transformers package: small random models, with and without it."""

import collections
import copy
import importlib
import sys

import numpy as np
import pytest
import torch
import transformers
from transformers import DynamicCache

import hyla
import hyla.integrations.transformers as integration
from compat_tools import gated_delta, to_numpy
from judge import DEVICES

LAYERS = ["linear_attention"] * 3 + ["full_attention"]
SMALL = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4, "layer_types": LAYERS, "max_position_embeddings": 4096,
}  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4,
    "num_experts_per_tok": 2, "experts_implementation": "eager",
}  # fmt: skip
MODELS = {
    "Qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {}),
    "Qwen3_5Moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", EXPERTS),
    "Qwen3Next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", EXPERTS),
    "OlmoHybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", {"pad_token_id": 0}),
}
FUNCTIONS = [
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "causal_conv1d_fn",
    "causal_conv1d_update",
]


def build(name="Qwen3_5", **changed):
    """A random model whose linear layers matter: with the usual small weights they hardly would."""
    config, model, extra = MODELS[name]
    config = getattr(transformers, config)(**{**SMALL, **extra, **changed})
    torch.manual_seed(7)
    model = getattr(transformers, model)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    return model


# 128 is what the fast kernels of a GPU are made for; the other dims are nobody's favourites.
WIDE = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
PLACES = [
    pytest.param(("cpu", {}), id="cpu"),
    pytest.param(("cuda", {}), id="cuda", marks=pytest.mark.gpu),
    pytest.param(("cuda", WIDE), id="cuda-128", marks=pytest.mark.gpu),
]


@pytest.fixture(scope="module", params=PLACES)
def model(request):
    device, dims = request.param
    return build(**dims).to(device)


@pytest.fixture(scope="module")
def cpu_model():
    return build()


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch):
    # Otherwise the convolutions of transformers round their operands on a GPU.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    # The models are so small that threads only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    hyla.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    hyla.set_num_threads(0)
    assert integration.replaced() == {}


@pytest.fixture
def calls(monkeypatch):
    """Counts the operations of hyla that a model reaches."""
    count = collections.Counter()
    for module in (hyla.gdn, hyla.conv):
        for name in module.__all__:
            full = f"{module.__name__.split('.')[-1]}.{name}"

            def counted(*args, _function=getattr(module, name), _name=full, **kwargs):
                count[_name] += 1
                return _function(*args, **kwargs)

            monkeypatch.setattr(module, name, counted)
    return count


def prompt(rows, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, SMALL["vocab_size"], (rows, tokens), generator=generator)


def there(model, keywords):
    """Tensors where the model is."""
    move = lambda x: x.to(model.device) if isinstance(x, torch.Tensor) else x  # noqa: E731
    return {name: move(x) for name, x in keywords.items()}


def generate(model, ids, tokens=12, **keywords):
    return model.generate(
        ids.to(model.device), max_new_tokens=tokens, do_sample=False, pad_token_id=0,
        eos_token_id=None, **there(model, keywords),
    ).cpu()  # fmt: skip


@torch.no_grad()
def logits(model, ids, **keywords):
    return model(ids.to(model.device), **there(model, keywords)).logits.double().cpu()


def double_rule(query, key, value, g, beta, initial_state=None, output_final_state=False, **unused):
    """The recurrence in float64, by this test's own numpy."""
    outputs, states = [], []
    for row in range(query.shape[0]):
        q, k, v = (to_numpy(x[row]) for x in (query, key, value))
        shape = (v.shape[1], q.shape[2], v.shape[2])
        state = np.zeros(shape) if initial_state is None else to_numpy(initial_state[row])
        gates = np.exp(to_numpy(g[row])), to_numpy(beta[row])
        out, after = gated_delta(q, k, v, state, *gates, norm=True)
        outputs.append(out)
        states.append(after[-1])
    state = torch.tensor(np.array(states)) if output_final_state else None
    return torch.tensor(np.array(outputs)), state


@torch.no_grad()
def exact_logits(model, ids, monkeypatch, **keywords):
    """The logits of the same weights in float64."""
    module = sys.modules[type(model).__module__]
    with monkeypatch.context() as patch:
        for name in FUNCTIONS[:2]:
            patch.setattr(module, name, double_rule)
        return logits(copy.deepcopy(model).cpu().double(), ids, **keywords)


def assert_no_worse(got, naive, exact, roundoff):
    """Rounding errors no larger than those of transformers itself, up to chance."""
    rms = lambda x: x.square().mean().sqrt().item()  # noqa: E731
    floor = 4 * roundoff * rms(exact)
    assert rms(got - exact) <= 1.5 * rms(naive - exact) + floor
    assert (got - exact).abs().max() <= 4 * (naive - exact).abs().max() + 4 * floor


@pytest.mark.parametrize("tokens", [1, 3, 63, 64, 65, 130])
@pytest.mark.parametrize("rows", [1, 2])
def test_greedy_tokens_are_the_same(model, calls, rows, tokens):
    ids = prompt(rows, tokens, seed=tokens)
    want = generate(model, ids)
    assert not calls
    with integration.enable(reference=True):
        got = generate(model, ids)
    assert torch.equal(got, want)
    # A prompt and eleven more tokens through three linear layers; a prompt of one token is a step.
    first = "gdn.prefill" if tokens > 1 else "gdn.decode"
    expected = collections.Counter({"conv.prefill": 3, "conv.update": 33, "gdn.decode": 33})
    assert calls == expected + collections.Counter({first: 3})


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches(model, side, monkeypatch):
    lengths, longest = [70, 3, 41, 1], 70
    ids, mask = prompt(4, longest), torch.zeros(4, longest, dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, slice(longest - length, None) if side == "left" else slice(0, length)] = 1
    ids = ids * mask
    with integration.enable(reference=True):
        got = generate(model, ids, attention_mask=mask)
        scores = logits(model, ids, attention_mask=mask)
    assert torch.equal(got, generate(model, ids, attention_mask=mask))
    exact = exact_logits(model, ids, monkeypatch, attention_mask=mask)
    naive = logits(model, ids, attention_mask=mask)
    live = mask.bool()
    assert_no_worse(scores[live], naive[live], exact[live], 2.0**-24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_as_good_as_without(model, dtype, monkeypatch, calls):
    ids, low = prompt(2, 130), copy.deepcopy(model).to(dtype)
    exact = exact_logits(low, ids, monkeypatch)
    naive = logits(low, ids)
    with integration.enable(reference=True):
        got = logits(low, ids)
    assert calls["gdn.prefill"] == 3
    assert_no_worse(got, naive, exact, torch.finfo(dtype).eps / 2)


def in_pieces(model, ids, cuts, switch=()):
    """The logits of a prompt given in pieces over one cache; hyla is off in those of `switch`."""
    cache, result, begin = DynamicCache(config=model.config), [], 0
    for number, end in enumerate([*cuts, ids.shape[1]]):
        if number in switch:
            integration.disable()
        result.append(logits(model, ids[:, begin:end], past_key_values=cache))
        if number in switch:
            integration.enable(reference=True)
        begin = end
    return torch.cat(result, 1), cache


@pytest.mark.parametrize("switch", [(), (0, 3), (1, 2)], ids=["all", "inner", "outer"])
def test_a_cache_is_continued(model, monkeypatch, switch):
    ids, cuts = prompt(2, 90), [40, 41, 42, 72]
    exact = exact_logits(model, ids, monkeypatch)
    naive, cache = in_pieces(model, ids, cuts)
    with integration.enable(reference=True):
        got, mine = in_pieces(model, ids, cuts, switch)
    assert_no_worse(got, naive, exact, 2.0**-24)
    for layer in range(3):
        a, b = (c.layers[layer].recurrent_states[0] for c in (cache, mine))
        assert a.dtype == b.dtype == torch.float32
        assert (a - b).norm() <= 1e-4 * a.norm()
        # All four columns, the oldest is never read again but is kept as transformers keeps it.
        a, b = (c.layers[layer].conv_states[0] for c in (cache, mine))
        assert (a - b).norm() <= 1e-4 * a.norm()


def test_a_long_prompt(model, monkeypatch):
    ids = prompt(1, 1500)
    exact = exact_logits(model, ids, monkeypatch, logits_to_keep=64)
    naive = logits(model, ids, logits_to_keep=64)
    with integration.enable():
        got = logits(model, ids, logits_to_keep=64)
    assert_no_worse(got, naive, exact, 2.0**-24)


def test_beams(model):
    ids = prompt(2, 9)
    want = generate(model, ids, num_beams=3)
    with integration.enable(reference=True):
        assert torch.equal(generate(model, ids, num_beams=3), want)


def test_static_caches(cpu_model):
    ids = prompt(2, 9)
    want = generate(cpu_model, ids, cache_implementation="static")
    with integration.enable(reference=True):
        assert torch.equal(generate(cpu_model, ids, cache_implementation="static"), want)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "Qwen3_5"])
@pytest.mark.parametrize("device", DEVICES)
def test_other_models(name, device, calls, monkeypatch):
    other, ids = build(name).to(device), prompt(2, 67)
    exact, naive = exact_logits(other, ids, monkeypatch), logits(other, ids)
    want = generate(other, ids, 6)
    with integration.enable(reference=True):
        got = logits(other, ids)
        assert torch.equal(generate(other, ids, 6), want)
    assert_no_worse(got, naive, exact, 2.0**-24)
    assert calls["gdn.prefill"] == 6 and calls["gdn.decode"] == 15
    assert calls["conv.prefill"] == 6 and calls["conv.update"] == 15


def test_convolutions_of_a_model_without_gated_delta_rules(calls):
    config = transformers.Lfm2Config(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, layer_types=["conv", "full_attention"],
    )  # fmt: skip
    torch.manual_seed(3)
    other, ids = transformers.Lfm2ForCausalLM(config).eval(), prompt(2, 9)
    want = generate(other, ids, 5)
    with integration.enable(reference=True):
        assert torch.equal(generate(other, ids, 5), want)
    assert calls == {"conv.prefill": 1, "conv.update": 4}


def test_on_the_cpu_only_fast_operations_are_used_unless_asked(cpu_model, calls):
    slow = {
        name for name, implementations in hyla.info()["operations"].items()
        if not any(x.startswith("cpu") for x in implementations)
    }  # fmt: skip
    with integration.enable():
        generate(cpu_model, prompt(1, 5), 3)
    wanted = {"gdn.prefill", "gdn.decode", "conv.prefill", "conv.update"}
    assert set(calls) == wanted - slow and "gdn.decode" not in slow


def test_training_goes_through_transformers(cpu_model, calls):
    def gradients():
        twin = copy.deepcopy(cpu_model)
        twin(prompt(1, 5), labels=prompt(1, 5)).loss.backward()
        return [p.grad for p in twin.parameters()]

    want = gradients()
    with integration.enable(reference=True):
        got = gradients()
    assert not calls
    assert all(torch.equal(a, b) for a, b in zip(got, want)) and any(g.any() for g in got)


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"linear_key_head_dim": 12}, "gdn"),
        ({"linear_conv_kernel_dim": 5}, "conv"),
        ({"hidden_act": "gelu"}, "conv"),
    ],
)
def test_what_hyla_does_not_have_stays_with_transformers(changed, missing, calls):
    other, ids = build(**changed), prompt(1, 5)
    want = generate(other, ids, 4)
    with integration.enable(reference=True):
        assert torch.equal(generate(other, ids, 4), want)
    assert {name.split(".")[0] for name in calls} == {"gdn", "conv"} - {missing}


def test_float64_stays_with_transformers(cpu_model, calls):
    double, ids = copy.deepcopy(cpu_model).double(), prompt(1, 5)
    want = logits(double, ids)
    with integration.enable(reference=True):
        assert torch.equal(logits(double, ids), want)
    assert not calls


def test_packed_sequences(cpu_model):
    """Without a kernel transformers refuses them."""
    module = sys.modules[type(cpu_model).__module__]
    q, k, v = torch.randn(3, 1, 9, 4, 16).unbind()
    g, beta = -torch.rand(1, 9, 4), torch.rand(1, 9, 4)
    x, weight = torch.randn(1, 6, 9), torch.randn(6, 4)
    pieces = [slice(0, 5), slice(5, 9)]
    with integration.enable(reference=True):
        for rule in (module.torch_chunk_gated_delta_rule, module.torch_recurrent_gated_delta_rule):
            out, state = rule(
                q, k, v, g, beta, output_final_state=True, cu_seqlens=torch.tensor([0, 5, 9])
            )
            for n, piece in enumerate(pieces):
                want = gated_delta(*(to_numpy(y[0, piece]) for y in (q, k, v)),
                                   np.zeros((4, 16, 16)), np.exp(to_numpy(g[0, piece])),
                                   to_numpy(beta[0, piece]))  # fmt: skip
                np.testing.assert_allclose(out[0, piece], want[0], rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(state[n], want[1][-1], rtol=1e-4, atol=1e-4)
        seq_idx = torch.tensor([[0] * 5 + [1] * 4], dtype=torch.int32)
        whole = module.causal_conv1d_fn(x, weight, None, activation="silu", seq_idx=seq_idx)
        parts = [
            module.causal_conv1d_fn(x[:, :, piece], weight, None, activation="silu")
            for piece in pieces
        ]
    assert torch.equal(whole, torch.cat(parts, 2))


def test_everything_is_put_back(cpu_model):
    module = sys.modules[type(cpu_model).__module__]
    before = {name: getattr(module, name) for name in FUNCTIONS}
    integration.enable()
    integration.enable()
    assert integration.replaced()[module.__name__] == FUNCTIONS
    assert all(getattr(module, name) is not before[name] for name in FUNCTIONS)
    assert all(getattr(module, name).__wrapped__ is before[name] for name in FUNCTIONS)
    integration.disable()
    integration.disable()
    assert all(getattr(module, name) is before[name] for name in FUNCTIONS)
    with pytest.raises(RuntimeError, match="inside"), integration.enable():
        raise RuntimeError("inside")
    assert all(getattr(module, name) is before[name] for name in FUNCTIONS)
    integration.enable()
    with integration.enable(reference=True):
        pass
    assert integration.replaced()  # as it was before the block
    integration.disable()


def test_somebody_elses_replacement_survives(cpu_model, calls):
    module = sys.modules[type(cpu_model).__module__]
    original = module.causal_conv1d_fn
    integration.enable(reference=True)
    ours = module.causal_conv1d_fn
    theirs = module.causal_conv1d_fn = lambda *args, **kwargs: ours(*args, **kwargs)
    integration.disable()
    try:
        assert module.causal_conv1d_fn is theirs
        logits(cpu_model, prompt(1, 3))
        assert not calls  # ours passes calls on once it is disabled
    finally:
        module.causal_conv1d_fn = original


def test_a_module_that_is_loaded_later(monkeypatch):
    name = "transformers.models.kimi_linear.modeling_kimi_linear"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with integration.enable():
        module = importlib.import_module(name)
        assert integration.replaced()[name] == FUNCTIONS[2:]
        assert module.causal_conv1d_fn.__module__ == name
    monkeypatch.delitem(sys.modules, name)
    again = importlib.import_module(name)
    assert again is not module and name not in integration.replaced()

"""The drop-in functions on every device, against the same calls in exact arithmetic."""

import sys
import types

import pytest
import torch

import hyla.integrations.transformers as integration
from hyla.compat import causal_conv1d, fla, flashinfer
from judge import DEVICES, check

pytestmark = pytest.mark.parametrize("device", DEVICES)

H, HV = 2, 4
DIMS = [(128, 128), (16, 24)]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(9)


def random(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator)


def rows(B, T, K, V, dtype, slots):
    normal = random(B * 100 + T)
    tokens = normal(B, T, H, K), normal(B, T, H, K), normal(B, T, HV, V)
    gates = normal(HV), normal(B, T, HV).to(dtype), normal(HV), normal(B, T, HV).to(dtype)
    return [x.to(dtype) for x in tokens], gates, normal(slots, HV, V, K)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_flashinfer_decode(dims, dtype, device):
    tokens, gates, state = rows(3, 1, *dims, dtype, 3)
    turned = state.transpose(2, 3).contiguous()
    check(flashinfer.gated_delta_rule_decode, *tokens, turned, *gates, device=device, dtype=dtype)
    pool = torch.full((6, *state.shape[1:]), torch.nan)
    pool[[5, 2]] = state[:2]
    check(
        flashinfer.gated_delta_rule_decode_pretranspose,
        *tokens,
        None,
        *gates,
        output=torch.full_like(tokens[2], 7),
        initial_state=pool,
        initial_state_indices=torch.tensor([5, -1, 2]),
        output_state_indices=torch.tensor([0, 1, -1]),
        device=device,
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_flashinfer_mtp(dims, dtype, device):
    tokens, gates, state = rows(3, 4, *dims, dtype, 16)
    indices = torch.tensor([15, -1, 3], dtype=torch.int32)
    for more in (
        {"intermediate_states_buffer": torch.full((4, 5, *state.shape[1:]), torch.nan)},
        {"ssm_state_indices": torch.tensor([[4, 5, -1, 6], [7, 8, 9, 10], [0, 1, 2, 11]],
                                           dtype=torch.int32)},
        {"output": torch.full(tokens[2].shape, 7.0)},
    ):  # fmt: skip
        check(
            flashinfer.gated_delta_rule_mtp,
            *tokens,
            state,
            indices,
            *gates,
            disable_state_update=False,
            **more,
            device=device,
            dtype=dtype,
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_flashinfer_chunk(dtype, device):
    normal, total = random(3), 203
    q, k, v = (normal(total, h, 128).to(dtype) for h in (H, H, HV))
    pool = normal(6, HV, 128, 128)
    arguments = {
        "g": torch.rand(total, HV), "beta": torch.rand(total, HV), "initial_state": pool,
        "output_final_state": True, "cu_seqlens": torch.tensor([0, 130, 130, 201, 203]),
        "use_qk_l2norm_in_kernel": True, "state_indices": torch.tensor([4, 0, 2, -1]),
    }  # fmt: skip
    check(
        flashinfer.chunk_gated_delta_rule,
        q,
        k,
        v,
        **arguments,
        output_state=torch.full_like(pool, torch.nan),
        device=device,
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"])
def test_fla(function, dtype, device):
    normal = random(4)
    q, k, v = (normal(2, 70, h, 128).to(dtype) for h in (H, H, HV))
    for v_first in (False, True):
        check(
            getattr(fla, function),
            q,
            k,
            v,
            g=-torch.rand(2, 70, HV),
            beta=torch.rand(2, 70, HV).to(dtype),
            initial_state=normal(2, HV, 128, 128),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            state_v_first=v_first,
            device=device,
            dtype=dtype,
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_causal_conv1d(dtype, device):
    normal = random(5)
    x, weight, bias = (y.to(dtype) for y in (normal(3, 40, 5), normal(40, 4), normal(40)))
    packed = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 2, 3, 4], [2, 2, 2, 2, -1]], dtype=torch.int32)
    slots = torch.tensor([4, -1, 0], dtype=torch.int32)
    fn, update = causal_conv1d.causal_conv1d_fn, causal_conv1d.causal_conv1d_update
    for last in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        for call in (
            (fn, last, weight, bias, None, normal(3, 40, 3).to(dtype), True, None, "silu"),
            (fn, last, weight, bias, packed),
            (update, last, normal(3, 40, 4).to(dtype), weight, bias, "silu"),
            (update, last, normal(5, 40, 6).to(dtype), weight, None, "silu",
             torch.tensor([9, 0, 4], dtype=torch.int32), slots),
            (update, last[:, :, 0], normal(5, 40, 3).to(dtype), weight, bias, None, None, slots),
        ):  # fmt: skip
            check(*call, device=device, dtype=dtype)


@pytest.fixture
def modeling(monkeypatch):
    """A module that looks like one of transformers; its own functions must not be reached."""
    module = types.ModuleType("transformers.models.none.modeling_none")

    def rule(query, key, value, g, beta, initial_state=None, **kwargs):
        raise AssertionError("not replaced")

    def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):
        raise AssertionError("not replaced")

    def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation=None):
        raise AssertionError("not replaced")

    module.torch_chunk_gated_delta_rule = rule
    module.torch_recurrent_gated_delta_rule = rule
    module.causal_conv1d_fn = causal_conv1d_fn
    module.causal_conv1d_update = causal_conv1d_update
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_stands_under_transformers(modeling, dtype, device):
    normal = random(6)
    with integration.enable(reference=True):
        assert len(integration.replaced()[modeling.__name__]) == 4
        for T in (1, 70):
            tokens = [normal(2, T, HV, 128).to(dtype) for _ in range(3)]
            gates = -torch.rand(2, T, HV), torch.rand(2, T, HV).to(dtype)
            for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
                for state in (None, normal(2, HV, 128, 128)):
                    check(
                        getattr(modeling, name),
                        *tokens,
                        *gates,
                        initial_state=state,
                        output_final_state=True,
                        use_qk_l2norm_in_kernel=True,
                        device=device,
                        dtype=dtype,
                    )
            x, weight = normal(2, T, 48).to(dtype).transpose(1, 2), normal(48, 4).to(dtype)
            check(modeling.causal_conv1d_fn, x, weight, None, "silu", device=device, dtype=dtype)
        state = normal(2, 48, 4).to(dtype)
        check(
            modeling.causal_conv1d_update,
            x[:, :, :1],
            state,
            weight,
            None,
            "silu",
            device=device,
            dtype=dtype,
        )

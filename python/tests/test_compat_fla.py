"""hyla.compat.fla against numpy, under the names and defaults of FLA 0.6."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hyla
from compat_tools import FLOATS, assert_close, gated_delta, raw_gate, sigmoid, signature, to_numpy
from hyla.compat import fla

NONE = None
SIGNATURES = {
    "chunk_gated_delta_rule": [
        "q", "k", "v", "g", "beta", ("scale", NONE), ("initial_state", NONE),
        ("output_final_state", False), ("use_qk_l2norm_in_kernel", False),
        ("use_beta_sigmoid_in_kernel", False), ("allow_neg_eigval", False),
        ("state_v_first", False), ("cu_seqlens", NONE), ("cu_seqlens_cpu", NONE),
        ("chunk_indices", NONE), ("cp_context", NONE), "kwargs",
    ],
    "fused_recurrent_gated_delta_rule": [
        "q", "k", "v", ("g", NONE), ("gk", NONE), ("gv", NONE), ("beta", NONE), ("scale", NONE),
        ("initial_state", NONE), ("output_final_state", False), ("use_qk_l2norm_in_kernel", False),
        ("use_gate_in_kernel", False), ("A_log", NONE), ("dt_bias", NONE),
        ("use_beta_sigmoid_in_kernel", False), ("allow_neg_eigval", False),
        ("state_v_first", False), ("cu_seqlens", NONE), "kwargs",
    ],
}  # fmt: skip
BOTH = [fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule]
either = pytest.mark.parametrize("function", BOTH, ids=["chunk", "fused_recurrent"])


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_flas(name):
    function = getattr(fla, name)
    assert signature(function) == SIGNATURES[name]
    assert inspect.signature(function).parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD


def test_the_short_names_are_the_same_functions():
    assert fla.chunk_gdn is fla.chunk_gated_delta_rule
    assert fla.fused_recurrent_gdn is fla.fused_recurrent_gated_delta_rule


class Batch:
    """Random [B, T, heads, dim] inputs. Keys are normalised, as FLA asks of its callers."""

    def __init__(self, seed, B, T, dtype=torch.float32, H=2, HV=4, K=16, V=24, sequences=None):
        generator = torch.Generator().manual_seed(seed)
        normal = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
        self.q = normal(B, T, H, K).to(dtype)
        self.k = torch.nn.functional.normalize(normal(B, T, H, K), dim=-1).to(dtype)
        self.v = normal(B, T, HV, V).to(dtype)
        self.g = torch.nn.functional.logsigmoid(normal(B, T, HV)).to(dtype)
        self.beta = torch.sigmoid(normal(B, T, HV)).to(dtype)
        self.initial = normal(B if sequences is None else sequences, HV, K, V)
        self.A_log, self.dt_bias = normal(HV), normal(HV)

    @property
    def tokens(self):
        return self.q, self.k, self.v

    def check(self, row, tokens, out, state, *, initial, alpha, beta, coarse, **options):
        """`row` and the slice `tokens` say which sequence it is."""
        q, k, v = (to_numpy(x[row, tokens]) for x in self.tokens)
        S = np.zeros(self.initial.shape[1:]) if initial is None else to_numpy(initial)
        exact, naive = (
            gated_delta(q, k, v, S, alpha[row, tokens], beta[row, tokens], dtype=d, **options)
            for d in (np.float64, np.float32)
        )
        coarse = self.q.dtype if coarse else None
        assert_close(out[row, tokens], exact[0], naive[0], coarse)
        if state is not None:
            assert_close(state, exact[1][-1], naive[1][-1], coarse)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(0, 9999), st.sampled_from(BOTH), st.integers(1, 3),
       st.sampled_from([1, 2, 5, 66]), st.sampled_from(FLOATS))  # fmt: skip
def test_batches(data, seed, function, B, T, dtype):
    x = Batch(seed, B, T, dtype)
    flag = lambda name: data.draw(st.booleans(), name)  # noqa: E731
    v_first, final, norm, scale = flag("v_first"), flag("final"), flag("norm"), flag("scale")
    initial = None
    if flag("initial"):
        initial = x.initial.transpose(2, 3).contiguous() if v_first else x.initial.clone()
        initial = initial.to(data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
        x.initial = initial.transpose(2, 3) if v_first else initial
    before = None if initial is None else initial.clone()
    keywords, alpha, beta = {"g": x.g, "beta": x.beta}, np.exp(to_numpy(x.g)), to_numpy(x.beta)
    if flag("raw"):
        keywords |= {"use_gate_in_kernel": True, "A_log": x.A_log, "dt_bias": x.dt_bias}
        bias = x.dt_bias
        if flag("no bias"):
            keywords["dt_bias"], bias = None, torch.zeros(4)
        alpha = raw_gate(x.g, x.A_log, bias)
    if flag("logit"):
        keywords |= {"use_beta_sigmoid_in_kernel": True}
        beta = sigmoid(beta)
        if flag("negative eigenvalues"):
            keywords |= {"allow_neg_eigval": True}
            beta = 2 * beta
    o, state = function(
        *x.tokens, scale=0.5 if scale else None, initial_state=initial, output_final_state=final,
        use_qk_l2norm_in_kernel=norm, state_v_first=v_first, use_cache=True, **keywords,
    )  # fmt: skip
    assert o.shape == x.v.shape and o.dtype == dtype
    assert (state is not None) == final
    assert state is None or (state.dtype == torch.float32 and state is not initial)
    assert before is None or torch.equal(before, initial)
    if final and v_first:
        state = state.transpose(2, 3)
    for b in range(B):
        x.check(b, slice(None), o, state[b] if final else None, alpha=alpha, beta=beta, norm=norm,
                initial=None if initial is None else x.initial[b], scale=0.5 if scale else None,
                coarse=function is fla.chunk_gated_delta_rule)  # fmt: skip


@either
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_sequences_back_to_back(function, index):
    lengths = [3, 0, 70, 1]
    cu = np.cumsum([0, *lengths])
    x = Batch(1, 1, sum(lengths), sequences=len(lengths))
    o, state = function(
        *x.tokens, g=x.g, beta=x.beta, initial_state=x.initial, output_final_state=True,
        cu_seqlens=torch.tensor(cu, dtype=index),
    )  # fmt: skip
    for n in range(len(lengths)):
        tokens = slice(cu[n], cu[n + 1])
        x.check(0, tokens, o, state[n], initial=x.initial[n], alpha=np.exp(to_numpy(x.g)),
                beta=to_numpy(x.beta), coarse=False)  # fmt: skip


def test_no_gate_and_no_beta_are_ones_for_every_value_head():
    x = Batch(2, 2, 3)
    o, state = fla.fused_recurrent_gated_delta_rule(*x.tokens, output_final_state=True)
    ones = np.ones((2, 3, 4))
    for b in range(2):
        x.check(b, slice(None), o, state[b], initial=None, alpha=ones, beta=ones, coarse=False)


@either
def test_slices_of_a_packed_projection_are_read_as_they_lie(function):
    x = Batch(3, 2, 4, H=2, HV=2, K=16, V=16)
    packed = torch.full((2, 4, 7, 16), torch.nan)
    packed[:, :, 0:2], packed[:, :, 2:4], packed[:, :, 5:7] = x.tokens
    views = packed[:, :, 0:2], packed[:, :, 2:4], packed[:, :, 5:7]
    want = function(*x.tokens, g=x.g, beta=x.beta, output_final_state=True)
    got = function(*views, g=x.g, beta=x.beta, output_final_state=True)
    assert torch.equal(want[0], got[0]) and torch.equal(want[1], got[1])


@either
def test_a_head_dim_that_is_not_contiguous(function):
    x = Batch(4, 2, 70)
    want = function(*x.tokens, g=x.g, beta=x.beta)[0]
    for outer in ((0, 3, 2, 1), (0, 2, 3, 1)):  # tokens innermost; the second is what conv1d leaves
        back = [outer.index(d) for d in range(4)]
        turned = [y.permute(outer).contiguous().permute(back) for y in x.tokens]
        assert all(y.stride(1) == 1 for y in turned)
        assert torch.equal(function(*turned, g=x.g, beta=x.beta)[0], want)


@either
@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "initial_state"])
def test_gradients_are_refused_by_name(function, name):
    x = Batch(5, 1, 2)
    arguments = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.beta, "initial_state": x.initial}
    arguments[name].requires_grad_()
    with pytest.raises(hyla.InvalidArgument, match=f"^{name}: .*forward only"):
        function(**arguments)
    with torch.no_grad():
        assert not function(**arguments)[0].requires_grad


@either
def test_the_old_name_of_state_v_first(function):
    x = Batch(6, 1, 2)
    arguments = {"g": x.g, "beta": x.beta, "output_final_state": True}
    with pytest.warns(DeprecationWarning, match="state_v_first") as caught:
        state = function(*x.tokens, **arguments, transpose_state_layout=True)[1]
    assert caught[0].filename == __file__
    assert torch.equal(state, function(*x.tokens, **arguments, state_v_first=True)[1])


def call(function, **changed):
    x = Batch(0, changed.pop("B", 1), 5)
    arguments = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.beta}
    return lambda: function(**{**arguments, **changed})


CU = torch.tensor([0, 2, 5])
STATE = torch.zeros(3, 4, 16, 24)
SHARED_ERRORS = [
    ({"q": torch.zeros(5, 2, 16)}, "q", ValueError),
    ({"k": torch.zeros(1, 5, 1, 16)}, "k", ValueError),
    ({"k": torch.zeros(1, 4, 2, 16)}, "k", ValueError),
    ({"v": torch.zeros(1, 5, 3, 24)}, "v", ValueError),
    ({"v": torch.zeros(1, 5, 4, 23)}, "v", ValueError),
    ({"g": torch.zeros(1, 5, 2)}, "g", ValueError),
    ({"beta": torch.zeros(1, 4, 4)}, "beta", ValueError),
    ({"B": 2, "cu_seqlens": CU}, "q", ValueError),
    ({"cu_seqlens": CU, "initial_state": STATE}, "initial_state", ValueError),
    ({"initial_state": STATE}, "initial_state", ValueError),
    ({"initial_state": STATE[:1].transpose(2, 3)}, "initial_state", ValueError),
    ({"allow_neg_eigval": True}, "allow_neg_eigval", ValueError),
    ({"use_gate_in_kernel": True}, "A_log", AssertionError),
    ({"use_gate_in_kernel": True}, "A_log", ValueError),
    ({"transpose_state_layout": True, "state_v_first": True}, "transpose_state_layout", ValueError),
]
ERRORS = [(f, *error) for f in BOTH for error in SHARED_ERRORS] + [
    (BOTH[0], {"head_first": False}, "head_first", DeprecationWarning),
    (BOTH[0], {"chunk_size": 48}, "chunk_size", ValueError),
    (BOTH[0], {"cp_context": object()}, "cp_context", NotImplementedError),
    (BOTH[1], {"gk": torch.zeros(1, 5, 4, 16)}, "gk", NotImplementedError),
    (BOTH[1], {"gv": torch.zeros(1, 5, 4, 24)}, "gv", NotImplementedError),
    (BOTH[1], {"use_gate_in_kernel": True, "A_log": torch.zeros(4), "g": None}, "g", ValueError),
]


@pytest.mark.parametrize(("function", "changed", "argument", "kind"), ERRORS)
def test_errors_name_flas_argument(function, changed, argument, kind):
    with pytest.raises((hyla.InvalidArgument, hyla.Unsupported)) as caught:
        call(function, **changed)()
    assert isinstance(caught.value, kind)
    assert str(caught.value).startswith(f"{argument}: ")


def test_lengths_on_the_cpu_are_told_to_a_device_that_cannot_show_them():
    from hyla.compat._shared import offsets_and_lengths

    offsets, device = torch.tensor([0, 3, 3, 10], dtype=torch.int32), torch.device("meta")
    on_device, lengths = offsets_and_lengths(offsets.to(device), offsets, device)
    assert on_device.device == device and lengths.tolist() == [3, 0, 7]
    on_device, lengths = offsets_and_lengths(offsets, None, device)  # moved there
    assert on_device.device == device and lengths.tolist() == [3, 0, 7]
    assert offsets_and_lengths(offsets.to(device), None, device)[1] is None
    same, lengths = offsets_and_lengths(offsets, offsets, torch.device("cpu"))
    assert same is offsets and lengths is None


def test_offsets_on_the_cpu_change_no_result():
    q, k, v = (torch.randn(1, 10, 2, 8) for _ in range(3))
    g, beta = -torch.rand(1, 10, 2), torch.rand(1, 10, 2)
    offsets = torch.tensor([0, 3, 3, 10])
    want, _ = fla.chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=offsets)
    got, _ = fla.chunk_gated_delta_rule(
        q, k, v, g, beta, cu_seqlens=offsets, cu_seqlens_cpu=offsets.clone()
    )
    assert torch.equal(got, want)

"""The drop-in functions inside torch.compile: one graph, the same bits, states updated in place."""

import pytest
import torch

from hyla.compat import causal_conv1d, fla, flashinfer

normal = torch.randn
TOKENS = [normal(2, 1, 2, 16), normal(2, 1, 2, 16), normal(2, 1, 4, 24)]
RAW = [normal(4), normal(2, 1, 4), normal(4), normal(2, 1, 4)]
GATES = [-torch.rand(2, 1, 4), torch.rand(2, 1, 4)]


def decode(q, k, v, pool, slots, *gates):
    return flashinfer.gated_delta_rule_decode_pretranspose(
        q, k, v, None, *gates, initial_state=pool, initial_state_indices=slots
    )


def chunk(q, k, v, g, beta, state):
    return fla.chunk_gated_delta_rule(
        q, k, v, g, beta, initial_state=state, output_final_state=True
    )


def recurrent(q, k, v, g, beta, state):
    return fla.fused_recurrent_gated_delta_rule(
        q, k, v, g, beta=beta, initial_state=state, output_final_state=True
    )


def conv(x, state, weight):
    first = causal_conv1d.causal_conv1d_fn(x, weight, activation="silu")
    return first, causal_conv1d.causal_conv1d_update(x, state, weight, None, "silu")


CALLS = {
    "decode": (decode, [*TOKENS, normal(3, 4, 24, 16), torch.tensor([2, 0]), *RAW]),
    "chunk": (chunk, [*TOKENS, *GATES, normal(2, 4, 16, 24)]),
    "recurrent": (recurrent, [*TOKENS, *GATES, normal(2, 4, 16, 24)]),
    "conv": (conv, [normal(2, 5, 3), normal(2, 5, 4), normal(5, 4)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_graph(name):
    function, arguments = CALLS[name]
    plain, traced = ([x.clone() for x in arguments] for _ in range(2))
    want = function(*plain)
    got = torch.compile(function, backend="eager", fullgraph=True)(*traced)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))

"""The tables of docs/python-migration.md: what stands in one column gives what stands in the other."""

import pathlib

import pytest
import torch

import hyla
from hyla.compat import causal_conv1d, fla, flashinfer

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python-migration.md"


def decode_tensors(T):
    B, H, HV, K, V = 2, 2, 4, 16, 24
    make = torch.randn
    return {
        "q": make(B, T, H, K), "k": make(B, T, H, K), "v": make(B, T, HV, V),
        "a": make(B, T, HV), "b": make(B, T, HV), "A_log": make(HV), "dt_bias": make(HV),
        "pool": make(9, HV, V, K), "i": torch.tensor([3, 0]), "o": torch.tensor([8, 7]),
        "s": torch.zeros(B, T, HV, V, K), "t": torch.tensor([[1, 2], [4, 5]], dtype=torch.int32),
    }  # fmt: skip


def ragged_tensors(rows):
    total, H, HV, K, V, N = 140, 2, 4, 16, 24, 2
    lead = (1, total) if rows else (total,)
    make = torch.randn
    k = torch.nn.functional.normalize(make(*lead, H, K), dim=-1)
    g = torch.rand(*lead, HV)
    return {
        "q": make(*lead, H, K), "k": k, "v": make(*lead, HV, V), "g": g.log() if rows else g,
        "beta": torch.rand(*lead, HV), "c": torch.tensor([0, 75, 140]),
        "h": make(N, HV, *((K, V) if rows else (V, K))), "i": torch.tensor([1, 0]), "n": 64,
        "p": torch.zeros(2, HV, V, K), "A": make(HV), "d": make(HV),
    } | ({} if rows else {"s": torch.tensor([0, 1, 2]), "f": torch.zeros(N, HV, V, K)})  # fmt: skip


def conv_tensors():
    return {
        "x": torch.randn(2, 5, 6), "weight": torch.randn(5, 4), "bias": torch.randn(5),
        "conv_state": torch.randn(2, 5, 3), "h": torch.randn(2, 5, 3),
        "i": torch.tensor([4, 1], dtype=torch.int32),
    }  # fmt: skip


RAW = "a=a, A_log=A_log, dt_bias=dt_bias, b=b"
DECODE = "gated_delta_rule_decode(q, k, v, state, A_log, a, dt_bias, b)"
PRETRANSPOSE = "gated_delta_rule_decode_pretranspose(q, k, v, state, A_log, a, dt_bias, b)"
MTP = "gated_delta_rule_mtp(q, k, v, pool, i, A_log, a, dt_bias, b, disable_state_update=False)"
OUR_MTP = f"gdn.mtp(q, k, v, pool, {RAW}, read_slots=i, l2norm=True)"
CHUNK = "chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=c)"
OUR_CHUNK = "gdn.prefill(q, k, v, alpha=g, beta=beta, cu_seqlens=c)"
OUR_FLA = (
    'gdn.prefill(q[0], k[0], v[0], log_alpha=g[0], beta=beta[0], cu_seqlens=c, layout="kv")'
)
FN, UPDATE = (
    'causal_conv1d_fn(x, weight, bias, activation="silu")',
    'causal_conv1d_update(x, conv_state, weight, bias, "silu")',
)
OUR_UPDATE = "conv.update(x.transpose(1, 2), weight, conv_state, bias=bias)"
# Where the tensors come from, the library, and per column a call and what a row adds to it.
CHECKS = [
    ("decode", flashinfer, (DECODE, ""),
     (f'gdn.decode(q, k, v, state, {RAW}, layout="kv", l2norm=True)', "")),
    ("vk", flashinfer, (PRETRANSPOSE, ""), (f"gdn.decode(q, k, v, state, {RAW}, l2norm=True)", "")),
    ("mtp", flashinfer, (MTP, ""), (OUR_MTP, "")),
    ("mtp", flashinfer, (MTP, "intermediate_states_buffer=s"), (OUR_MTP, "states_out=s")),
    ("mtp", flashinfer, (MTP, "ssm_state_indices=t"), (OUR_MTP, "step_slots=t")),
    ("mtp", flashinfer, (MTP, "output_state_indices=o"), (OUR_MTP, "write_slots=o")),
    ("ragged", flashinfer, (CHUNK, ""), (OUR_CHUNK, "")),
    ("ragged", flashinfer, (CHUNK, "initial_state=h, output_final_state=True, output_state=f"),
     (OUR_CHUNK, "state=h, state_out=f")),
    ("ragged", flashinfer,
     (CHUNK, "state_checkpoints=p, checkpoint_cu_starts=s, checkpoint_every_n_tokens=n"),
     (OUR_CHUNK, "checkpoints=p, checkpoint_starts=s, checkpoint_every=n")),
    ("ragged", flashinfer, (CHUNK, "use_qk_l2norm_in_kernel=True"), (OUR_CHUNK, "l2norm=True")),
    ("rows", fla, (CHUNK, ""), (OUR_FLA, "")),
    ("rows", fla, (CHUNK, "use_qk_l2norm_in_kernel=True"), (OUR_FLA, "l2norm=True")),
    ("conv", causal_conv1d, (FN, ""),
     ("conv.prefill(x.transpose(1, 2), weight, bias=bias)", "")),
    ("conv", causal_conv1d, (UPDATE, ""), (OUR_UPDATE, "")),
    ("pool", causal_conv1d, (UPDATE, "conv_state_indices=i"), (OUR_UPDATE, "slots=i")),
]  # fmt: skip


def tensors(kind):
    torch.manual_seed(1)
    if kind in ("decode", "vk", "mtp"):
        found = decode_tensors(2 if kind == "mtp" else 1)
        state = torch.randn(2, 4, 24, 16)
        found["state"] = state.transpose(2, 3).contiguous() if kind == "decode" else state
        return found
    if kind in ("conv", "pool"):
        found = conv_tensors()
        return found | ({"conv_state": torch.randn(6, 5, 3)} if kind == "pool" else {})
    return ragged_tensors(kind == "rows")


def evaluate(kind, names, call, more):
    found = tensors(kind)
    text = f"{call[:-1]}, {more})" if more else call
    result = eval(text, {**names, **found})  # noqa: S307 (our own documentation)
    out = result[0] if isinstance(result, tuple) else result
    return out, {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


@pytest.mark.parametrize(("kind", "library", "theirs", "ours"), CHECKS)
def test_a_row(kind, library, theirs, ours):
    docs = DOCS.read_text()
    for call, more in (theirs, ours):
        assert f"`{call}`" in docs and (not more or f"`{more}`" in docs)
    want, before = evaluate(kind, vars(library), *theirs)
    got, after = evaluate(kind, {"gdn": hyla.gdn, "conv": hyla.conv}, *ours)
    if kind in ("conv", "pool"):
        got = got.transpose(1, 2)
    assert torch.equal(got.reshape(want.shape), want)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert want.isfinite().all() and want.any()


def test_the_recurrent_row_of_fla():
    """There the state is in place in one column and returned in the other."""
    x, docs = ragged_tensors(True), DOCS.read_text()
    h, g, beta = torch.randn(1, 4, 16, 24), x["g"], x["beta"]
    theirs = (
        "fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, initial_state=h, "
        "output_final_state=True)"
    )
    ours = 'gdn.mtp(q, k, v, h, log_alpha=g, beta=beta, layout="kv")'
    assert f"`{theirs}`" in docs and f"`{ours}`" in docs
    o, state = eval(theirs, {**vars(fla), **x, "h": h})  # noqa: S307
    got = eval(ours, {"gdn": hyla.gdn, **x, "h": h})  # noqa: S307
    assert torch.equal(got, o) and torch.equal(h, state)


def test_track_slots():
    """Row 1 leaves a second copy of its state, row 0 does not; the pool is otherwise that of decode."""
    assert "`step_slots=track[:, None]`" in DOCS.read_text()
    x = tensors("mtp")
    pool, slots, track = x["pool"], x["i"], torch.tensor([-1, 5])
    q, k, v, a, b = (x[name][:, :1] for name in ("q", "k", "v", "a", "b"))
    common = {"A_log": x["A_log"], "dt_bias": x["dt_bias"], "l2norm": True, "read_slots": slots}
    want = pool.clone()
    out = hyla.gdn.decode(q[:, 0], k[:, 0], v[:, 0], want, a=a[:, 0], b=b[:, 0], **common)
    want[5] = want[slots[1]]
    got = hyla.gdn.mtp(
        q, k, v, pool, a=a, b=b, write_slots=slots, step_slots=track[:, None], **common
    )
    assert torch.equal(pool, want) and torch.equal(got[:, 0], out)


def test_the_convolution_may_write_over_the_projection():
    assert "`out=x` in `conv.update` and `conv.prefill`" in DOCS.read_text()
    x = tensors("conv")
    for call in (hyla.conv.update, hyla.conv.prefill):
        tokens, states = x["x"].transpose(1, 2).clone(), [x["conv_state"].clone() for _ in range(2)]
        want = call(tokens, x["weight"], states[0])
        assert call(tokens, x["weight"], states[1], out=tokens) is tokens
        assert torch.equal(tokens, want) and torch.equal(*states)

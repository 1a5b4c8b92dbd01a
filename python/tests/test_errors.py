"""Every documented error: its class, the argument's name first, and nothing written."""

import pickle

import numpy as np
import pytest
import torch

import hyla
from calls import torch_calls
from arrays import as_torch

B, T, H, HV, K, V = 2, 3, 2, 4, 16, 8


def f32(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def decode_arguments():
    return {
        "q": f32(B, H, K), "k": f32(B, H, K), "v": f32(B, HV, V), "state": f32(4, HV, V, K),
        "a": f32(B, HV), "A_log": f32(HV), "dt_bias": f32(HV), "b": f32(B, HV),
        "read_slots": np.array([3, 1]), "write_slots": np.array([0, 2]),
        "z": f32(B, HV, V), "norm_weight": f32(V), "out": f32(B, HV, V),
    }  # fmt: skip


def refused(function, arguments, change, error, match):
    """The change is refused with that text, and no array of the call changes."""
    arguments = {**arguments, **change}
    before = {n: x.copy() for n, x in arguments.items() if isinstance(x, np.ndarray)}
    with pytest.raises(error, match=match):
        function(**arguments)
    for name, copy in before.items():
        assert arguments[name].tobytes() == copy.tobytes(), name


INVALID = hyla.InvalidArgument
not_contiguous = f32(B, HV, 2 * V)[:, :, ::2]

DECODE = {
    "q: rank": ({"q": f32(B, K)}, INVALID, r"^q: expected shape \[B, H, K\].*got \[2, 16\]"),
    "q: dtype": ({"q": f32(B, H, K).astype(np.float64)}, INVALID, "^q: .*float64"),
    "q: int": ({"q": np.zeros((B, H, K), np.int32)}, INVALID, "^q: expected dtype float32 or"),
    "q: list": ({"q": [1.0]}, TypeError, "^q: expected a tensor .*, got list"),
    "q: None": ({"q": None}, TypeError, "^q: expected a tensor .*, got None"),
    "q: memoryview": ({"q": memoryview(b"12345678")}, TypeError, "^q: expected a tensor"),
    "k: other shape": ({"k": f32(B, H, 24)}, INVALID, r"^k: expected shape .*got \[2, 2, 24\]"),
    "k: other dtype": ({"k": f32(B, H, K).astype(np.float16)}, INVALID, "^k: expected dtype float32"),
    "v: heads": ({"v": f32(B, 3, V)}, INVALID, "^v: expected heads that are a multiple|^v: "),
    "v: strided": ({"v": not_contiguous}, INVALID, "^v: expected a contiguous last dimension"),
    "v: head dim": ({"v": f32(B, HV, 12), "out": f32(B, HV, 12), "z": f32(B, HV, 12)}, INVALID, "^v: "),
    "state: shape": ({"state": f32(4, HV, V, 8)}, INVALID, "^state: expected shape"),
    "state: dtype": ({"state": np.zeros((4, HV, V, K), np.int32)}, INVALID, "^state: expected dtype"),
    "state: strided": ({"state": f32(4, HV, V, 2 * K)[..., ::2]}, INVALID, "^state: expected a cont"),
    "state: broadcast": (
        {"state": np.broadcast_to(f32(1, HV, V, K), (4, HV, V, K))}, INVALID, "^state: expected a"),
    "state: None": ({"state": None}, TypeError, "^state: expected a tensor .*, got None"),
    "out: shape": ({"out": f32(B, HV, 16)}, INVALID, "^out: expected shape"),
    "out: dtype": ({"out": f32(B, HV, V).astype(np.float16)}, INVALID, "^out: expected dtype"),
    "out: strided": ({"out": not_contiguous.copy()[:, :, ::-1]}, INVALID, "^out: expected"),
    "a: shape": ({"a": f32(B, 3)}, INVALID, r"^a: expected shape \[B, HV\]"),
    "a: two gates": ({"alpha": f32(B, HV)}, INVALID, "^a: expected at most one of alpha, log_alpha"),
    "log_alpha: two gates": (
        {"alpha": f32(B, HV), "log_alpha": f32(B, HV)}, INVALID, "^log_alpha: expected at most one"),
    "A_log: missing": ({"A_log": None}, INVALID, "^A_log: expected a tensor, got none"),
    "A_log: alone": ({"a": None, "dt_bias": None}, INVALID, "^A_log: expected none without a"),
    "dt_bias: alone": ({"a": None, "A_log": None}, INVALID, "^dt_bias: expected none without a"),
    "dt_bias: dtype": ({"dt_bias": np.zeros(HV, np.int32)}, INVALID, "^dt_bias: expected dtype"),
    "b: two": ({"beta": f32(B, HV)}, INVALID, "^b: expected at most one of beta and b, got both"),
    "b: shape": ({"b": f32(B)}, INVALID, "^b: expected shape"),
    "read_slots: outside": ({"read_slots": np.array([0, 9])}, INVALID, "^read_slots: expected slots"),
    "read_slots: dtype": ({"read_slots": f32(B)}, INVALID, "^read_slots: expected dtype int32"),
    "read_slots: rank": ({"read_slots": np.zeros((B, 2), int)}, INVALID, "^read_columns: expected"),
    "read_columns": ({"read_columns": np.zeros(B, int)}, INVALID, "^read_(columns|slots): expected"),
    "write_slots": ({"write_slots": np.array([0, 4])}, INVALID, "^write_slots: expected slots below"),
    "first_slot": ({"first_slot": 1.5}, TypeError, "^first_slot: expected an int, got float"),
    "first_slot: bool": ({"first_slot": True}, TypeError, "^first_slot: expected an int, got bool"),
    "first_slot: large": ({"first_slot": 1 << 70}, INVALID, "^first_slot: expected an int of 64"),
    "layout": ({"layout": "kk"}, INVALID, "^layout: expected 'vk' or 'kv', got 'kk'"),
    "layout: type": ({"layout": 1}, TypeError, "^layout: expected a str, got int"),
    "scale: nan": ({"scale": float("nan")}, INVALID, "^scale: expected a finite number"),
    "scale: str": ({"scale": "1"}, TypeError, "^scale: expected a number, got str"),
    "scale: bool": ({"scale": True}, TypeError, "^scale: expected a number, got bool"),
    "l2norm": ({"l2norm": 1}, TypeError, "^l2norm: expected True or False, got int"),
    "l2norm_eps": ({"l2norm": True, "l2norm_eps": 0.0}, INVALID, "^l2norm_eps: expected a finite"),
    "z: shape": ({"z": f32(B, HV, 16)}, INVALID, "^z: expected shape"),
    "norm_weight: missing": ({"norm_weight": None}, INVALID, "^norm_weight: expected a tensor"),
    "norm_weight: alone": ({"z": None}, INVALID, "^norm_weight: expected none without"),
    "norm_eps": ({"norm_eps": -1.0}, INVALID, "^norm_eps: expected"),
    "norm_gate": ({"norm_gate": "relu"}, INVALID, "^norm_gate: expected 'silu' or 'sigmoid'"),
    "batch_invariant": ({"batch_invariant": None}, TypeError, "^batch_invariant: expected True"),
    "stream: on a cpu": ({"stream": 0}, INVALID, "^stream: expected none, because the tensors are"),
    "stream: type": ({"stream": "s"}, TypeError, "^stream: expected a CUDA stream"),
    "impl: unknown": ({"impl": "magic"}, INVALID, "^impl: expected|magic"),
    "impl: type": ({"impl": 5}, TypeError, "^impl: expected a str, got int"),
}  # fmt: skip


@pytest.mark.parametrize("case", DECODE)
def test_decode(case):
    change, error, match = DECODE[case]
    refused(hyla.gdn.decode, decode_arguments(), change, error, match)


def test_the_unchanged_arguments_are_fine():
    hyla.gdn.decode(**decode_arguments())


def test_overlaps_are_refused():
    arguments = decode_arguments()
    memory = f32(B, HV, 2 * V)
    refused(hyla.gdn.decode, arguments, {"v": memory[..., :V], "out": memory[..., 4 : V + 4]},
            INVALID, "^out: |^v: ")  # fmt: skip
    refused(hyla.gdn.decode, arguments, {"out": arguments["v"]}, INVALID, "^out: |^v: ")


def test_read_only_outputs():
    for name in ("state", "out"):
        arguments = decode_arguments()
        arguments[name].flags.writeable = False
        refused(hyla.gdn.decode, arguments, {}, INVALID,
                f"^{name}: expected a tensor that can be written.*read-only")  # fmt: skip


def test_a_call_by_the_wrong_names():
    q = f32(B, H, K)
    with pytest.raises(TypeError, match="state"):
        hyla.gdn.decode(q, q, q)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        hyla.gdn.decode(q, q, q, q, colour=1)
    with pytest.raises(TypeError, match="positional arguments"):
        hyla.gdn.decode(q, q, q, q, q)
    with pytest.raises(TypeError, match="multiple values for argument 'q'"):
        hyla.gdn.decode(q, q, q, q, q=q)


def mtp_arguments():
    return {
        "q": f32(B, T, H, K), "k": f32(B, T, H, K), "v": f32(B, T, HV, V), "state": f32(9, HV, V, K),
        "alpha": np.full((B, T, HV), 0.5, np.float32),
    }  # fmt: skip


MTP = {
    "update_state": ({"update_state": None}, TypeError, "^update_state: expected True or False"),
    "states_out": ({"states_out": f32(B, 2, HV, V, K)}, INVALID, "^states_out: expected room for the 3 tokens"),
    "both": (
        {"states_out": f32(B, T, HV, V, K), "step_slots": np.arange(6).reshape(B, T)},
        INVALID, "^(states_out|step_slots): expected none"),
    "step_slots": ({"step_slots": np.full((B, T), 9)}, INVALID, "^step_slots: expected slots below"),
    "commit": ({"commit_lengths": np.array([0, 4])}, INVALID, "^commit_lengths: expected"),
    "cu_seqlens": ({"cu_seqlens": np.array([0, 1, 2])}, INVALID, "^q: expected shape"),
    "alpha": ({"alpha": f32(B, HV)}, INVALID, "^alpha: expected shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", MTP)
def test_mtp(case):
    change, error, match = MTP[case]
    refused(hyla.gdn.mtp, mtp_arguments(), change, error, match)


def prefill_arguments():
    return {
        "q": f32(70, H, K), "k": f32(70, H, K), "v": f32(70, HV, V),
        "cu_seqlens": np.array([0, 66, 70]), "state": f32(3, HV, V, K),
    }  # fmt: skip


PREFILL = {
    "no sequences": ({"cu_seqlens": None}, INVALID, "^cu_seqlens: expected"),
    "both": ({"starts": np.array([0]), "lengths": np.array([1])}, INVALID, "^(cu_seqlens|starts): exp"),
    "starts alone": ({"cu_seqlens": None, "starts": np.array([0])}, INVALID, "^lengths: expected"),
    "falling": ({"cu_seqlens": np.array([0, 66, 60])}, INVALID, "^cu_seqlens: expected"),
    "negative": ({"cu_seqlens": np.array([-1, 66, 70])}, INVALID, "^cu_seqlens: expected"),
    "past the end": ({"cu_seqlens": np.array([0, 66, 71])}, INVALID, "^cu_seqlens: expected"),
    "negative length": (
        {"cu_seqlens": None, "starts": np.array([0]), "lengths": np.array([-1])}, INVALID,
        "^lengths: expected"),
    "mask": ({"has_initial_state": np.array([1, 0])}, INVALID, "^has_initial_state: expected dtype"),
    "mask without pool": (
        {"has_initial_state": np.array([True, False]), "state": None}, INVALID, "^state: expected a"),
    "write without pool": (
        {"write_slots": np.array([0, 1]), "state": None}, INVALID, "^write_slots: expected none"),
    "every": ({"checkpoint_every": 60}, INVALID, "^checkpoint_every: expected a multiple of 64"),
    "every: negative": ({"checkpoint_every": -64}, INVALID, "^checkpoint_every: expected"),
    "nowhere to go": ({"checkpoint_every": 64}, INVALID, "^checkpoints: expected"),
    "starts of checkpoints": (
        {"checkpoint_every": 64, "checkpoints": f32(2, HV, V, K),
         "checkpoint_starts": np.array([0, 2, 2])}, INVALID, "^checkpoint_starts: expected room"),
    "offsets": (
        {"checkpoint_offsets": np.array([[5, 3], [1, -1]]), "checkpoint_slots": np.zeros((2, 2), int)},
        INVALID, "^checkpoint_offsets: expected rising"),
    "cutoff": ({"decay_cutoff_log2": 0.0}, INVALID, "^decay_cutoff_log2: expected"),
    "longest": ({"max_length": -1}, INVALID, "^max_length: expected a number >= 0"),
    "told: negative": (
        {"host_lengths": np.array([66, -4])}, INVALID, "^host_lengths: expected numbers >= 0"),
    "told: rows": ({"host_lengths": np.array([66])}, INVALID, "^host_lengths: expected shape"),
    "told: dtype": ({"host_lengths": f32(2)}, INVALID, "^host_lengths: expected dtype int32"),
    "told: list": ({"host_lengths": [66, 4]}, TypeError, "^host_lengths: expected a tensor"),
    "heads": ({"k": f32(70, 1, K)}, INVALID, "^k: expected heads"),
    "workspace": ({"workspace": f32(4, 4).T}, INVALID, "^workspace: expected a contiguous tensor"),
    "out": ({"out": f32(70, H, V)}, INVALID, "^out: expected shape"),
    "alpha": ({"alpha": f32(70, H)}, INVALID, "^alpha: expected shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", PREFILL)
def test_prefill(case):
    change, error, match = PREFILL[case]
    refused(hyla.gdn.prefill, prefill_arguments(), change, error, match)


def recurrence_arguments():
    return {
        "qkv": f32(5, 2 * H * K + HV * V), "state": f32(1, HV, K, V), "heads": (H, HV),
        "dims": (K, V), "cu_seqlens": np.array([0, 5]),
    }  # fmt: skip


RECURRENCE = {
    "heads": ({"heads": (2, 3)}, INVALID, "^heads: expected a multiple"),
    "heads: negative": ({"heads": (-2, 4)}, INVALID, "^heads: expected"),
    "heads: huge": ({"heads": (1, 1 << 60)}, INVALID, "^heads: expected"),
    "heads: one": ({"heads": 4}, TypeError, "^heads: expected two ints"),
    "heads: three": ({"heads": (1, 2, 3)}, TypeError, "^heads: expected two ints"),
    "heads: float": ({"heads": (2.0, 4.0)}, TypeError, "^heads: expected two ints"),
    "dims": ({"dims": (K, 9)}, INVALID, "^dims: expected V a multiple of 8"),
    "dims: negative": ({"dims": (K, -8)}, INVALID, "^(dims|heads): expected"),
    "qkv": ({"qkv": f32(5, 3)}, INVALID, "^qkv: expected shape"),
    "state": ({"state": None}, TypeError, "^state: expected a tensor"),
}  # fmt: skip


@pytest.mark.parametrize("case", RECURRENCE)
def test_recurrence(case):
    change, error, match = RECURRENCE[case]
    refused(hyla.gdn.recurrence, recurrence_arguments(), change, error, match)


def conv_arguments():
    return {
        "x": f32(B, 6), "weight": f32(6, 4), "state": f32(4, 6, 3), "bias": f32(6),
        "slots": np.array([0, 1]),
    }  # fmt: skip


CONV = {
    "x": ({"x": f32(6)}, INVALID, "^x: expected"),
    "weight": ({"weight": f32(6, 5)}, INVALID, "^weight: expected"),
    "weight: channels": ({"weight": f32(5, 4)}, INVALID, "^weight: expected shape"),
    "state": ({"state": f32(4, 6, 2)}, INVALID, "^state: expected"),
    "state: None": ({"state": None}, TypeError, "^state: expected a tensor"),
    "bias": ({"bias": f32(5)}, INVALID, "^bias: expected shape"),
    "slots": ({"slots": np.array([0, 4])}, INVALID, "^slots: expected slots below 4"),
    "slots twice": ({"read_slots": np.array([0, 1])}, INVALID, "^slots: expected none beside read"),
    "activation": ({"activation": "gelu"}, INVALID, "^activation: expected 'silu' or 'none'"),
    "activation: type": ({"activation": True}, TypeError, "^activation: expected a str"),
    "commit": (
        {"commit_lengths": np.array([0, 2])}, INVALID, "^commit_lengths: expected"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONV)
def test_conv(case):
    change, error, match = CONV[case]
    refused(hyla.conv.update, conv_arguments(), change, error, match)


def attention_arguments():
    return {
        "q": f32(3, 4, 16), "cache": hyla.attention.PagedCache(f32(4, 4, 2, 16), f32(4, 4, 2, 16)),
        "cu_seqlens": np.array([0, 1, 3]), "kv_lengths": np.array([5, 2]),
        "page_table": np.array([[0, 1], [3, -1]]),
    }  # fmt: skip


def paged(*args, **kwargs):
    return {"cache": hyla.attention.PagedCache(*args, **kwargs)}


ATTENTION = {
    "cache: type": ({"cache": f32(2)}, TypeError, "^cache: expected a DenseCache, RaggedCache or"),
    "cache: layout": (paged(f32(4, 4, 2, 16), f32(4, 4, 2, 16), "xyz"), INVALID, "^cache.layout: exp"),
    "cache.k: None": (paged(None, None), INVALID, "^cache.k: expected a tensor, got none"),
    "cache.k: list": (paged([1], [2]), TypeError, "^cache.k: expected a tensor"),
    "cache.v: shape": (paged(f32(4, 4, 2, 16), f32(3, 4, 2, 16)), INVALID, "^cache.v: expected shape"),
    "cache.k_scales": (
        paged(f32(4, 4, 2, 16), f32(4, 4, 2, 16), k_scales=f32(4, 4, 2, 1)), INVALID,
        "^cache.k_scales: expected none"),
    "page_table": ({"page_table": None}, INVALID, "^page_table: expected"),
    "page_table: outside": (
        {"page_table": np.array([[0, 9], [3, -1]])}, INVALID, "^page_table: expected"),
    "page_table: needed": (
        {"page_table": np.array([[0, -1], [3, -1]])}, INVALID, "^page_table: expected"),
    "kv_lengths": ({"kv_lengths": None}, INVALID, "^kv_lengths: expected"),
    "kv_lengths: negative": ({"kv_lengths": np.array([5, -1])}, INVALID, "^kv_lengths: expected"),
    "kv_lengths: long": ({"kv_lengths": np.array([9, 2])}, INVALID, "^(kv_lengths|page_table): exp"),
    "cu_seqlens": ({"cu_seqlens": None}, INVALID, "^cu_seqlens: expected"),
    "heads": ({"q": f32(3, 3, 16)}, INVALID, "^q: expected a multiple of the 2 KV heads"),
    "dim": ({"q": f32(3, 4, 24)}, INVALID, "^(cache.k|q): expected"),
    "window": ({"window": -1}, INVALID, "^window: expected"),
    "window: type": ({"window": 2.0}, TypeError, "^window: expected an int"),
    "chunk": ({"window": 2, "chunk": 2}, INVALID, "^chunk: expected"),
    "softcap": ({"softcap": float("inf")}, INVALID, "^softcap: expected"),
    "sinks": ({"sinks": f32(3)}, INVALID, "^sinks: expected shape"),
    "lse": ({"lse": f32(3, 5)}, INVALID, "^lse: expected shape"),
    "lse: dtype": ({"lse": np.zeros((3, 4), np.float16)}, INVALID, "^lse: expected dtype float32"),
    "causal": ({"causal": 1}, TypeError, "^causal: expected True or False"),
}  # fmt: skip


@pytest.mark.parametrize("case", ATTENTION)
def test_attention(case):
    change, error, match = ATTENTION[case]
    refused(hyla.attention.run, attention_arguments(), change, error, match)


def test_append():
    cache = hyla.attention.PagedCache(f32(4, 4, 2, 16), f32(4, 4, 2, 16))
    arguments = {
        "cache": cache, "k": f32(3, 2, 16), "v": f32(3, 2, 16), "cu_seqlens": np.array([0, 1, 3]),
        "kv_lengths": np.array([5, 2]), "page_table": np.array([[0, 1], [3, -1]]),
    }  # fmt: skip
    for change, error, match in (
        ({"k": f32(3, 3, 16), "v": f32(3, 3, 16)}, INVALID, "^(cache.)?k: expected"),
        ({"v": None}, INVALID, "^v: expected"),
        ({"kv_lengths": np.array([0, 2])}, INVALID, "^kv_lengths: expected"),
        ({"cos": f32(8, 4)}, INVALID, "^sin: expected"),
        ({"cos": f32(8, 4), "sin": f32(8, 5)}, INVALID, "^sin: expected"),
        ({"interleaved": "yes"}, TypeError, "^interleaved: expected True"),
        ({"given_scales": 1}, TypeError, "^given_scales: expected True"),
        ({"given_scales": True}, INVALID, "^given_scales: expected scales in the cache"),
        ({"positions": np.array([0, 1, 2])}, INVALID, "^positions: expected none without slots"),
        ({"slots": np.array([0, 1, 2])}, INVALID, "^cu_seqlens: expected none beside slots"),
    ):
        refused(hyla.attention.append, arguments, change, error, match)
    by_slots = {"cache": cache, "k": arguments["k"], "v": arguments["v"],
                "slots": np.array([15, -1, 3])}  # fmt: skip
    rope = {"cos": f32(8, 4), "sin": f32(8, 4)}
    for change, match in (
        ({"slots": np.array([15, -1])}, "^slots: expected shape"),
        ({"slots": f32(3)}, "^slots: expected dtype"),
        ({"slots": np.array([16, -1, 3])}, "^slots: expected slots of .*, got 16 at index 0"),
        ({"kv_lengths": np.array([5, 2])}, "^kv_lengths: expected none beside slots"),
        ({"page_table": np.array([[0, 1]])}, "^page_table: expected none beside slots"),
        ({"starts": np.array([0])}, "^starts: expected none beside slots"),
        (rope, "^positions: expected .* because rope is given beside slots"),
        ({**rope, "positions": np.array([0, 1])}, "^positions: expected shape"),
        ({**rope, "positions": np.array([8, 1, 0])}, "^positions: expected .*, got 8 at index 0"),
        ({"positions": np.array([0, 1, 2])}, "^positions: expected none without rope.cos"),
    ):
        refused(hyla.attention.append, by_slots, change, INVALID, match)
    refused(hyla.attention.append, by_slots, {"slots": [15, -1, 3]}, TypeError, "^slots: expected a")
    cache.k.flags.writeable = False
    refused(hyla.attention.append, arguments, {}, INVALID, "^cache.k: expected a tensor that can be")
    scales = np.broadcast_to(np.float32(0.5), (4, 4, 2, 1))  # read-only, of stride 0
    pages = (np.zeros((4, 4, 2, 16), np.int8) for _ in range(2))
    arguments["cache"] = hyla.attention.PagedCache(*pages, k_scales=scales, v_scales=scales)
    refused(hyla.attention.append, arguments, {}, INVALID, "^cache.k_scales: expected a tensor that")
    with pytest.raises(INVALID, match="^pages: expected 5 dimensions, the second of size 2"):
        hyla.attention.PagedCache.fused(f32(2, 3, 4, 1, 8))
    with pytest.raises(TypeError, match="^pages: expected a tensor, got list"):
        hyla.attention.PagedCache.fused([1])


def test_merge():
    arguments = {"a": f32(3, 2, 8), "a_lse": f32(3, 2), "b": f32(3, 2, 8), "b_lse": f32(3, 2)}
    for change, error, match in (
        ({"a": f32(3, 8)}, INVALID, "^a: expected"),
        ({"b": f32(3, 2, 16)}, INVALID, "^b: expected shape"),
        ({"b": np.zeros((3, 2, 8), np.float16)}, INVALID, "^b: expected dtype float32"),
        ({"a_lse": f32(2, 3)}, INVALID, "^a_lse: expected shape"),
        ({"b_lse": np.zeros((3, 2), np.float16)}, INVALID, "^b_lse: expected dtype float32"),
        ({"b_lse": None}, TypeError, "^b_lse: expected a tensor"),
        ({"lse": f32(3, 3)}, INVALID, "^lse: expected shape"),
        ({"out": f32(3, 2, 4)}, INVALID, "^out: expected shape"),
        ({"out": arguments["a"][::-1]}, INVALID, "^(a|out): expected"),
    ):
        refused(hyla.attention.merge, arguments, change, error, match)


def test_gated_rms():
    arguments = {"x": f32(3, 8), "z": f32(3, 8), "weight": f32(8)}
    for change, error, match in (
        ({"x": f32(8)}, INVALID, "^x: expected"),
        ({"z": f32(3, 16)}, INVALID, "^z: expected shape"),
        ({"weight": f32(9)}, INVALID, "^weight: expected shape"),
        ({"eps": -1.0}, INVALID, "^eps: expected"),
        ({"eps": None}, TypeError, "^eps: expected a number"),
        ({"gate": "tanh"}, INVALID, "^gate: expected 'silu' or 'sigmoid'"),
    ):
        refused(hyla.norm.gated_rms, arguments, change, error, match)


def test_torch_says_the_same():
    arguments = {n: as_torch(x) for n, x in decode_arguments().items()}
    for change, match in (
        ({"q": torch.zeros(B, K)}, "^q: expected shape"),
        ({"v": torch.zeros(B, HV, 2 * V)[..., ::2]}, "^v: expected a contiguous last dimension"),
        ({"state": torch.zeros(1, HV, V, K).expand(4, -1, -1, -1)}, "^state: expected a written"),
        ({"out": torch.zeros(B, HV, V, dtype=torch.float16)}, "^out: expected dtype"),
        ({"k": torch.zeros(1, 1, 1, 1, 1, 1, 1)}, "^k: expected 0 to 6 dimensions, got 7"),
    ):
        with pytest.raises(INVALID, match=match):
            hyla.gdn.decode(**{**arguments, **change})


def test_classes_and_attributes():
    for error, base in (
        (hyla.InvalidArgument, ValueError),
        (hyla.Unsupported, NotImplementedError),
        (hyla.WorkspaceTooSmall, ValueError),
        (hyla.DeviceError, RuntimeError),
    ):
        assert issubclass(error, hyla.Error) and issubclass(error, base)
    with pytest.raises(INVALID) as caught:
        hyla.gdn.decode(**{**decode_arguments(), "layout": "kk"})
    error = caught.value
    assert (error.argument, error.expected, error.got) == ("layout", "'vk' or 'kv'", "'kk'")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is INVALID and str(again) == str(error) and again.argument == "layout"
    for error in (hyla.WorkspaceTooSmall(5, 3), hyla.DeviceError("x: no", 2),
                  hyla.Unsupported("gdn.decode: no", [("a", "no", "why")])):  # fmt: skip
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
    assert str(hyla.WorkspaceTooSmall(5, 3)) == "workspace: expected at least 5 bytes, got 3"


# The argument that a tensor of calls.py becomes part of, where it has another name.
ALSO = {"slots": {"read_slots"}, "pages": {"cache.k", "cache.v"}}


# What looks spoilt and is not: (argument, dimension, how much longer). Anything else must be refused.
MORE_SLOTS = ("state", 0, 1)  # a pool may have slots that nobody names,
LESS_SLOTS = ("state", 0, -1)  # or end right behind the last one that somebody names
LEGITIMATE = {
    "gdn_decode": {MORE_SLOTS, LESS_SLOTS},
    # A buffer of states has at least B rows and T columns.
    "gdn_mtp": {MORE_SLOTS, ("states_out", 0, 1), ("states_out", 1, 1)},
    # Fewer offsets are fewer sequences, and tokens that belong to none.
    "gdn_prefill": {MORE_SLOTS, LESS_SLOTS, ("cu_seqlens", 0, -1)},
    "gdn_recurrence": {MORE_SLOTS, LESS_SLOTS, ("cu_seqlens", 0, -1)},
    # Three taps instead of four; a pool with a column that the filter does not reach. A token more
    # belongs to no sequence.
    "conv_prefill": {MORE_SLOTS, ("weight", 1, -1), ("state", 2, 1), ("x", 0, 1)},
    "conv_update": {MORE_SLOTS, ("weight", 1, -1), ("state", 2, 1)},
    "norm_gated_rms": set(),
    # Pages that no table names, larger and smaller ones with as many tokens as a row needs, one
    # head of keys for all queries, a column of the table that no row needs.
    "attention_run": {
        ("pages", 0, 1), ("pages", 2, 1), ("pages", 2, -1), ("pages", 3, -1), ("page_table", 1, 1)},
    "attention_append": {("pages", 0, 1), ("pages", 2, 1), ("pages", 2, -1), ("page_table", 1, 1)},
    "attention_merge": set(),
}  # fmt: skip
# Tensors whose last dimension must be dense; of the others any strides are taken.
DENSE = {
    "gdn_decode": {"q", "k", "v", "state"},
    "gdn_mtp": {"q", "k", "v", "state", "states_out"},
    "gdn_prefill": {"q", "k", "v", "state"},
    "gdn_recurrence": set(),
    "conv_prefill": set(),
    "conv_update": set(),
    "norm_gated_rms": {"x", "z"},
    "attention_run": {"q", "pages"},
    "attention_append": {"pages", "k", "v"},
    "attention_merge": {"a", "b"},
}


def spoilt(tensor):
    """What an engine passes by mistake: (kind, tensor or something else)."""
    floats = tensor.is_floating_point()
    yield "dtype", tensor.to(torch.float64 if floats else torch.float32)
    yield "dtype", tensor.to(torch.complex64 if floats else torch.int16)
    yield "dtype", tensor.to(torch.int32 if floats else torch.bool)
    yield "rank", tensor[None, None, None]
    yield "rank", tensor.flatten()[0]
    yield "kind", tensor.tolist()
    yield "memory", tensor.to("meta")
    if tensor.shape[-1] > 1:
        yield "stride", torch.stack([tensor, tensor], -1)[..., 0]
    for d in range(tensor.dim()):
        yield ("size", d, 1), torch.cat([tensor, tensor.narrow(d, 0, 1)], d)
        yield ("size", d, -1), tensor.narrow(d, 0, tensor.shape[d] - 1).contiguous()


@pytest.mark.parametrize("name", sorted(torch_calls()))
def test_whatever_is_wrong_has_a_name(name):
    """Sizes are compared with each other, so that any of them may be the one that does not fit."""
    call = torch_calls()[name]
    sizes, strided = set(), set()
    for argument, tensor in call.tensors.items():
        own = {argument} | ALSO.get(argument, set())
        anyone = set(call.tensors).union(*ALSO.values(), own)
        for kind, wrong in spoilt(tensor):
            tried = call.copy()
            tried.tensors[argument] = wrong
            is_size = isinstance(kind, tuple)
            try:
                tried()
            except (hyla.InvalidArgument, TypeError) as error:
                named, _, rest = str(error).partition(": expected ")
                assert named in (anyone if is_size else own), (argument, kind, str(error))
                assert ", got " in rest, str(error)
            else:
                assert is_size or kind == "stride", (argument, kind)
                sizes |= {(argument, *kind[1:])} if is_size else set()
                strided |= set() if is_size else {argument}
    assert sizes == LEGITIMATE[name]
    assert strided == set(call.tensors) - DENSE[name]

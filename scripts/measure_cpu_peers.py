#!/usr/bin/env python3
"""Measures other CPU implementations of hyla's operations and writes them as its benchmark's peers.

usage: measure_cpu_peers.py OUTPUT [THREADS]

torch, and where they are installed transformers (its torch code) and ONNX Runtime, on THREADS
threads (2 unless given). Medians; hyla's numbers of the same machine come from
`hyla bench --suite cpu --peers OUTPUT`. Exit code 77: torch is missing.
"""

import datetime
import json
import os
import pathlib
import statistics
import sys
import time

# Rows, query tokens, keys, query heads, KV heads, head dim; problems as in the suite.
DECODE = [
    ((16, 1, 8192, 16, 2, 256), "attention_decode:b=16,kvlen=8192,hq=16,hk=2,d=256"),
    ((8, 1, 16384, 32, 4, 128), "attention_decode:b=8,kvlen=16384,hq=32,hk=4,d=128"),
]
PREFILL = [
    ((1, 2048, 2048, 16, 2, 128), "attention_prefill:lens=2048,hq=16,hk=2,d=128"),
    ((1, 2048, 2048, 16, 2, 256), "attention_prefill:lens=2048,hq=16,hk=2,d=256"),
]
KEY_HEADS, HEADS, DIM = 16, 32, 128  # of the layer whose GDN, convolution and norm are measured
CHANNELS = 2 * KEY_HEADS * DIM + HEADS * DIM


def median_us(call) -> float:
    """At least 7 calls and half a second of them, after two that are not counted."""
    times: list[float] = []
    for run in range(1000):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
        if run >= 8 and sum(times) > 0.5e6:
            break
    return statistics.median(times[2:])


class Rows:
    def __init__(self) -> None:
        self.rows: list[dict] = []

    def add(self, problem: str, peer: str, call) -> None:
        us = round(median_us(call), 2)
        print(f"{problem}: {peer} {us:.1f} us", flush=True)
        # Ours is measured in pages of 64, too.
        for name in (problem, problem + ",page=64") if "attention_decode" in problem else (problem,):
            self.rows.append({"problem": name, "peer": peer, "us": us})


def attention(rows: Rows, torch) -> None:
    run = torch.nn.functional.scaled_dot_product_attention
    name = f"torch {torch.__version__.split('+')[0]} SDPA, contiguous"
    for (b, t, keys, hq, hk, d), problem in DECODE:
        # Queries that share a KV head as rows: several times faster than enable_gqa.
        q, k, v = (torch.randn(b, hk, n, d, dtype=torch.bfloat16) for n in (hq // hk * t, keys, keys))
        rows.add(problem, name, lambda: run(q, k, v))
    for (b, t, keys, hq, hk, d), problem in PREFILL:
        for dtype, suffix in ((torch.bfloat16, ""), (torch.float32, ",io=f32,kv=f32")):
            q, k, v = (torch.randn(b, h, t, d, dtype=dtype) for h in (hq, hk, hk))
            rows.add(problem + suffix, name, lambda: run(q, k, v, is_causal=True, enable_gqa=True))


def convolution(rows: Rows, torch) -> None:
    name = f"torch {torch.__version__.split('+')[0]} conv1d and SiLU"
    weight, f = torch.randn(CHANNELS, 1, 4, dtype=torch.bfloat16), torch.nn.functional
    for tokens in (256, 1024, 4096):
        x = torch.randn(1, CHANNELS, tokens, dtype=torch.bfloat16)
        call = lambda: f.silu(f.conv1d(x, weight, padding=3, groups=CHANNELS)[..., :tokens])
        rows.add(f"conv_prefill:lens={tokens}", name, call)


def transformers_layer(rows: Rows, torch) -> None:
    import transformers
    from transformers.models.qwen3_next import modeling_qwen3_next as layer

    name = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
    bf16 = torch.bfloat16

    def gdn(function, b: int, t: int):
        q, k = (torch.randn(b, t, KEY_HEADS, DIM, dtype=bf16) for _ in range(2))
        q, k = (x.repeat_interleave(HEADS // KEY_HEADS, 2) for x in (q, k))
        v = torch.randn(b, t, HEADS, DIM, dtype=bf16)
        g, beta = -torch.rand(b, t, HEADS), torch.rand(b, t, HEADS, dtype=bf16)
        state = torch.randn(b, HEADS, DIM, DIM)
        return lambda: function(
            q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
        )

    for b, t, problem in (
        (1, 1, "gdn_decode:b=1"),
        (64, 1, "gdn_decode:b=64"),
        (1, 4, "gdn_mtp:b=1,t=4"),
        (64, 4, "gdn_mtp:b=64,t=4"),
        (4, 64, "gdn_recurrence:lens=64x4"),
    ):
        rows.add(problem, name, gdn(layer.torch_recurrent_gated_delta_rule, b, t))
    rows.add("gdn_prefill:lens=1024", name, gdn(layer.torch_chunk_gated_delta_rule, 1, 1024))
    rows.add("gdn_prefill:lens=64x16", name, gdn(layer.torch_chunk_gated_delta_rule, 16, 64))

    x, window = torch.randn(32, CHANNELS, 1, dtype=bf16), torch.randn(32, CHANNELS, 3, dtype=bf16)
    weight = torch.randn(CHANNELS, 4, dtype=bf16)
    rows.add("conv_update:b=32", name, lambda: layer.causal_conv1d_update(x, window, weight, None, "silu"))
    norm = layer.Qwen3NextRMSNormGated(DIM).to(bf16)
    y, z = (torch.randn(32 * HEADS, DIM, dtype=bf16) for _ in range(2))
    rows.add("norm_gated_rms:b=32", name, lambda: norm(y, z))


def onnx_attention(rows: Rows, threads: int) -> None:
    """GroupQueryAttention in float32: on a CPU it takes no bfloat16."""
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    for (b, t, keys, hq, hk, d), problem in PREFILL:
        sizes = {"query": hq * d, "key": hk * d, "value": hk * d}
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [b, t, size]) for n, size in sizes.items()]
        inputs.append(helper.make_tensor_value_info("last", TensorProto.INT32, [b]))
        inputs.append(helper.make_tensor_value_info("total", TensorProto.INT32, [1]))
        outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
        outputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("keys", "values")]
        node = helper.make_node(
            "GroupQueryAttention", ["query", "key", "value", "", "", "last", "total"], ["out", "keys", "values"],
            domain="com.microsoft", num_heads=hq, kv_num_heads=hk,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "attention", inputs, outputs)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feed = {n: numpy.random.randn(b, t, size).astype(numpy.float32) for n, size in sizes.items()}
        feed |= {"last": numpy.full(b, t - 1, numpy.int32), "total": numpy.full(1, keys, numpy.int32)}
        name = f"ONNX Runtime {onnxruntime.__version__} GroupQueryAttention"
        rows.add(problem + ",io=f32,kv=f32", name, lambda: session.run(["out"], feed))


def machine() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def main() -> int:
    if not 2 <= len(sys.argv) <= 3 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    output, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    try:
        import torch
    except ImportError as error:
        print(f"measure_cpu_peers: not measured: {error}", file=sys.stderr)
        return 77
    torch.set_num_threads(threads)
    rows = Rows()
    with torch.no_grad():
        attention(rows, torch)
        convolution(rows, torch)
        for more, argument in ((transformers_layer, torch), (onnx_attention, threads)):
            try:
                more(rows, argument)
            except Exception as error:  # not installed, or it does not take the problem
                print(f"measure_cpu_peers: {more.__name__}: {error}", file=sys.stderr)
    document = {
        "cpu": f"{machine()}, {threads} threads",
        "date": datetime.date.today().isoformat(),
        "method": "median of at least 7 calls by scripts/measure_cpu_peers.py, random data"
        + (f", oneDNN held to {isa}" if (isa := os.environ.get("ONEDNN_MAX_CPU_ISA")) else ""),
        "rows": rows.rows,
    }
    lines = ",\n".join("  " + json.dumps(row) for row in document.pop("rows"))
    head = json.dumps(document, indent=1)[:-2]
    output.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Measures cuDNN's attention through torch and writes it as peers of hyla's benchmark.

usage: measure_cudnn.py OUTPUT [PEERS]

OUTPUT gets the rows of PEERS (a file as in bench/peers) and one row for each shape below: causal
attention over contiguous bfloat16 tensors, median of runs between events. Exit code 77: torch, its
cuDNN backend or a GPU is missing.
"""

import json
import pathlib
import statistics
import sys

# Batch, tokens, query heads, KV heads, head dim; keys of ours lie in pages of 64.
SHAPES = [
    (1, 8192, 16, 2, 256),
    (1, 32768, 16, 2, 256),
    (4, 4096, 32, 8, 128),
    (1, 16384, 32, 8, 128),
    (4, 4096, 32, 8, 64),
]


def problem(batch: int, tokens: int, query_heads: int, kv_heads: int, dim: int) -> str:
    lengths = f"{tokens}x{batch}" if batch > 1 else f"{tokens}"
    return f"attention_prefill:lens={lengths},hq={query_heads},hk={kv_heads},d={dim},page=64,device=cuda"


def measure(torch, shape) -> float:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, tokens, query_heads, kv_heads, dim = shape

    def tensor(heads: int):
        return torch.randn(batch, tokens, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    q, k, v = tensor(query_heads), tensor(kv_heads), tensor(kv_heads)
    times = []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for run in range(13):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            end.record()
            end.synchronize()
            if run >= 3:
                times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main() -> int:
    output = pathlib.Path(sys.argv[1])
    document = json.loads(pathlib.Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else {"rows": []}
    try:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU")
        name = f"cuDNN {torch.backends.cudnn.version()} (torch {torch.__version__.split('+')[0]}), contiguous"
        for shape in SHAPES:
            with torch.no_grad():
                us = measure(torch, shape)
            document["rows"].append({"problem": problem(*shape), "peer": name, "us": round(us, 2)})
            print(f"{problem(*shape)}: {name} {us:.1f} us", flush=True)
    except (ImportError, RuntimeError) as error:
        print(f"measure_cudnn: not measured: {error}", file=sys.stderr)
        return 77
    output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

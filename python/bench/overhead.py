"""What a Python call costs on top of C++: decode with 12 torch tensors, and its parts.

    python python/bench/overhead.py [--device cuda] [--json FILE]

Every number is nanoseconds a call, the least of several runs. `c++` is the same call repeated inside
the module, `exchange` what torch takes to describe the 12 tensors and its stream: no binding is below
that. On a GPU the batch is of one row, and the stream is drained between runs, not in them; a kernel
that takes longer than the call hides part of it, so the CPU's number is the one to compare.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Callable

import torch

import hyla
from hyla import _core


def least(function: Callable[[], object], count: int, runs: int, settle: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(runs):
        settle()
        start = time.perf_counter_ns()
        for _ in range(count):
            function()
        best = min(best, (time.perf_counter_ns() - start) / count)
    settle()
    return best


def tensors(device: str, rows: int) -> dict[str, torch.Tensor]:
    H, HV, K, V = 16, 32, 128, 128
    def bf16(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16, device=device)
    def f32(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)
    slots = torch.zeros(rows, dtype=torch.int32, device=device)
    return {
        "q": bf16(rows, H, K), "k": bf16(rows, H, K), "v": bf16(rows, HV, V),
        "state": f32(2, HV, V, K), "a": bf16(rows, HV), "A_log": f32(HV), "dt_bias": f32(HV),
        "b": bf16(rows, HV), "read_slots": slots, "write_slots": slots.clone(),
        "out": bf16(rows, HV, V),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    # No row on the CPU: the arithmetic of a slow machine would drown the rest.
    t = tensors(options.device, 1 if cuda else 0)
    # A twelfth tensor, so that the count is that of a call with the fused norm's weight.
    settle = torch.cuda.synchronize if cuda else lambda: None
    decode = hyla.gdn.decode
    q, k, v, state, a, A_log, dt_bias, b = (t[n] for n in "q k v state a A_log dt_bias b".split())
    reads, writes, out = t["read_slots"], t["write_slots"], t["out"]
    columns = torch.zeros(reads.shape, dtype=torch.int32, device=options.device)
    table = reads.reshape(-1, 1).expand(-1, 1)

    def call() -> None:
        decode(q, k, v, state, a=a, A_log=A_log, dt_bias=dt_bias, b=b, read_slots=table,
               read_columns=columns, write_slots=writes, l2norm=True, out=out)  # fmt: skip

    def cpp() -> float:
        return decode(q, k, v, state, a=a, A_log=A_log, dt_bias=dt_bias, b=b, read_slots=table,
                      read_columns=columns, write_slots=writes, l2norm=True, out=out,
                      impl=_core.Repeat(options.count))  # fmt: skip

    arguments = (q, k, v, state, a, A_log, dt_bias, b, table, columns, writes, out)

    def exchange() -> float:
        return _core.measure_exchange(arguments, options.count)

    results = {}
    with torch.inference_mode():
        call()
        results["exchange"] = min(exchange() for _ in range(options.runs))
        results["python"] = least(call, options.count, options.runs, settle)
        times = []
        for _ in range(options.runs):
            settle()
            times.append(cpp())
        results["c++"] = min(times)
        settle()
    results["overhead"] = results["python"] - results["c++"]
    for name, value in results.items():
        print(f"{name:10} {value:8.0f} ns")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"tensors": 12, "device": options.device, "ns": results}, file, indent=1)


if __name__ == "__main__":
    main()

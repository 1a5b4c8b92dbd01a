"""What a Python call costs on top of C++: decode with 12 torch tensors, and attention with 8.

    python python/bench/overhead.py [--device cuda] [--more] [--limit 1500] [--json FILE]

Nanoseconds a call. `c++` is the same call repeated inside the module, `exchange` what torch takes to
describe the tensors and its stream: no binding is below that. `python - c++` is the overhead.

The three are measured in turns, many short rounds each, and the least of each counts: a machine that
others use too is quiet for some rounds, hardly ever for seconds. The median over the rounds is printed
beside it. On a GPU a round is shorter than the queue of launches and the stream is drained between
rounds, not in them, so that the host's time is measured and not the kernel's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any, Callable

import torch

import hyla
from hyla import _core

COUNT = 100  # calls a round; a CUDA stream takes 1024 launches before it makes the host wait

Round = Callable[[], float]


def decode_rounds(device: str, rows: int) -> tuple[Round, Round, tuple[torch.Tensor, ...]]:
    H, HV, K, V = 16, 32, 128, 128
    make = lambda *shape, dtype=torch.bfloat16: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
    q, k, v, out = make(rows, H, K), make(rows, H, K), make(rows, HV, V), make(rows, HV, V)
    state = make(2, HV, V, K, dtype=torch.float32)
    a, b = make(rows, HV), make(rows, HV)
    A_log, dt_bias = make(HV, dtype=torch.float32), make(HV, dtype=torch.float32)
    table, columns, writes = make(rows, 1, dtype=torch.int32), *make(2, rows, dtype=torch.int32)
    decode = hyla.gdn.decode

    def python() -> float:
        start = time.perf_counter_ns()
        for _ in range(COUNT):
            decode(q, k, v, state, a=a, A_log=A_log, dt_bias=dt_bias, b=b, read_slots=table,
                   read_columns=columns, write_slots=writes, l2norm=True, out=out)  # fmt: skip
        return (time.perf_counter_ns() - start) / COUNT

    def cpp() -> float:
        return decode(q, k, v, state, a=a, A_log=A_log, dt_bias=dt_bias, b=b, read_slots=table,
                      read_columns=columns, write_slots=writes, l2norm=True, out=out,
                      impl=_core.Repeat(COUNT))  # fmt: skip

    return python, cpp, (q, k, v, state, a, A_log, dt_bias, b, table, columns, writes, out)


def attention_rounds(device: str, rows: int) -> tuple[Round, Round, tuple[torch.Tensor, ...]]:
    make = lambda *shape, dtype=torch.bfloat16: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
    q, out, pages = make(rows, 16, 128), make(rows, 16, 128), make(2, 2, 16, 2, 128)
    offsets = torch.arange(rows + 1, dtype=torch.int32, device=device)
    lengths, table = torch.full((rows,), 5, dtype=torch.int32, device=device), offsets[:rows, None]
    cache = hyla.attention.PagedCache.fused(pages)
    bounds = {"max_sequences": rows + 1, "max_tokens": rows, "max_kv_length": 16, "query_heads": 16,
              "kv_heads": 2, "head_dim": 128, "value_dim": 128}  # fmt: skip
    size = hyla.workspace_bytes("attention.run", device=device, **bounds)
    workspace = make(max(size, 1), dtype=torch.uint8)
    run = hyla.attention.run

    def python() -> float:
        start = time.perf_counter_ns()
        for _ in range(COUNT):
            run(q, cache, cu_seqlens=offsets, kv_lengths=lengths, page_table=table,
                workspace=workspace, out=out)  # fmt: skip
        return (time.perf_counter_ns() - start) / COUNT

    def cpp() -> float:
        return run(q, cache, cu_seqlens=offsets, kv_lengths=lengths, page_table=table,
                   workspace=workspace, out=out, impl=_core.Repeat(COUNT))  # fmt: skip

    return python, cpp, (q, cache.k, cache.v, offsets, lengths, table, workspace, out)


def variants(device: str, rows: int) -> dict[str, Callable[[], object]]:
    """The decode call in other ways, each with the tensors of the first."""
    tensors = decode_rounds(device, rows)[2]
    q, k, v, state, a, A_log, dt_bias, b, _, _, writes, out = tensors
    decode = hyla.gdn.decode

    def call(q: Any, k: Any, v: Any, state: Any, a: Any, A: Any, bias: Any, b: Any, o: Any) -> Any:
        return lambda: decode(q, k, v, state, a=a, A_log=A, dt_bias=bias, b=b, out=o)

    def with_gradients(function: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with torch.inference_mode(False), torch.enable_grad():
                function()

        return run

    nine = (q, k, v, state, a, A_log, dt_bias, b, out)
    found = {
        "9 torch tensors": call(*nine),
        "without out=": call(*nine[:-1], None),
        "without out=, with slots": lambda: decode(q, k, v, state, read_slots=writes),
        "entering grad mode": with_gradients(lambda: None),
        "in grad mode": with_gradients(call(*nine)),
    }
    try:
        from hyla.compat import flashinfer

        one = [x.unsqueeze(1) for x in (q, k, v)]
        gates = A_log, a.unsqueeze(1), dt_bias, b.unsqueeze(1)
        found["hyla.compat.flashinfer"] = lambda: (
            flashinfer.gated_delta_rule_decode_pretranspose(*one, state[:rows], *gates)
        )
    except ImportError:
        pass
    others = [x.float() for x in nine]
    if device == "cpu":
        found["9 numpy arrays"] = call(*(x.numpy() for x in others))
    else:
        try:
            import cupy

            found["9 cupy arrays"] = call(*(cupy.asarray(x) for x in others))
        except ImportError:
            pass
    return found


def show_variants(device: str, rows: int, rounds: int, settle: Callable[[], object]) -> None:
    for name, function in variants(device, rows).items():
        best = float("inf")
        with torch.inference_mode():
            for _ in range(rounds):
                settle()
                start = time.perf_counter_ns()
                for _ in range(COUNT):
                    function()
                best = min(best, (time.perf_counter_ns() - start) / COUNT)
        print(f"{name:36} {'':9} {best:9.0f}")
    settle()


def measure(
    python: Round, cpp: Round, tensors: tuple[torch.Tensor, ...], rounds: int, cuda: bool
) -> dict[str, Any]:
    settle = torch.cuda.synchronize if cuda else lambda: None
    times: dict[str, list[float]] = {"exchange": [], "python": [], "c++": []}
    with torch.inference_mode():
        python(), cpp()  # loads kernels
        for _ in range(rounds):
            times["exchange"].append(_core.measure_exchange(tensors, COUNT))
            settle()
            times["python"].append(python())
            settle()
            times["c++"].append(cpp())
        settle()
    least = {name: min(values) for name, values in times.items()}
    middle = {name: statistics.median(values) for name, values in times.items()}
    for result in (least, middle):
        result["overhead"] = result["python"] - result["c++"]
    return {"tensors": len(tensors), "least": least, "median": middle}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--limit", type=float, help="ns that decode's overhead may be; else exit 1")
    parser.add_argument("--more", action="store_true", help="also other ways to make the call")
    parser.add_argument("--json")
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    # No row on the CPU: the arithmetic of a slow machine would drown the rest.
    rows = 1 if cuda else 0
    results = {}
    print(f"{'ns':36} {'exchange':>9} {'python':>9} {'c++':>9} {'overhead':>9}")
    for name, make in {"gdn.decode": decode_rounds, "attention.run": attention_rounds}.items():
        python, cpp, tensors = make(options.device, rows)
        result = results[name] = measure(python, cpp, tensors, options.rounds, cuda)
        for kind in ("least", "median"):
            row = " ".join(f"{value:9.0f}" for value in result[kind].values())
            print(f"{f'{name}, {len(tensors)} tensors, {kind}':36} {row}")
    if options.more:
        settle = torch.cuda.synchronize if cuda else lambda: None
        show_variants(options.device, rows, options.rounds // 10 + 1, settle)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": options.device, "ns": results}, file, indent=1)
    if options.limit is not None and results["gdn.decode"]["least"]["overhead"] > options.limit:
        print(f"overhead: more than {options.limit:.0f} ns", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What the shares of `hyla check --suite gpu` say together.

usage: sum_checks.py TOOL RESULTS.json...

Fails when a check failed, or when a CUDA implementation that the tool lists had nothing to solve.
"""

import json
import subprocess
import sys


def operation_of(problem):
    name = problem.split(":")[0]
    return "attention.run" if name in ("attention_decode", "attention_prefill") else name.replace("_", ".", 1)


def main(tool, files):
    listed = json.loads(subprocess.run([tool, "info", "--json", "-"], check=True, capture_output=True).stdout)
    waiting = {
        (operation, name)
        for operation, names in listed["operations"].items()
        for name in names
        if name.startswith("cuda")
    }
    problems, pairs, bad = set(), 0, 0
    for file in files:
        with open(file, encoding="utf-8") as text:
            results = json.load(text)["results"]
        for result in results:
            problems.add(result["problem"])
            waiting.discard((operation_of(result["problem"]), result["impl"]))
            pairs += 1
            bad += not result["ok"]
    print(f"hyla check --suite gpu: {len(problems)} problems, {pairs} by their implementations, {bad} failed")
    for operation, name in sorted(waiting):
        print(f"hyla check --suite gpu: no problem for {name} of {operation}")
    return 1 if bad or waiting or not problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

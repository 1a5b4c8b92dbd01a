#!/usr/bin/env python3
"""Says whether the GPU results in bench/results were measured on the kernels as they are now.

It informs and never fails: a machine without a GPU cannot do anything about a stale result.
"""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def verdict(result: dict, digest: str) -> str:
    found = result.get("sources_digest")
    if not found:
        return "unknown (no digest of its sources)"
    return "fresh" if found == digest else "stale (the kernels changed since)"


def main() -> None:
    digest = subprocess.run(["bash", str(ROOT / "scripts" / "sources_digest.sh")],
                            check=True, capture_output=True, text=True).stdout.strip()
    files = sorted((ROOT / "bench" / "results").glob("*.json"))
    if not files:
        print("gpu-status: none (no results yet; `make gpu-check` on a GPU machine makes them)")
    for path in files:
        try:
            result = json.loads(path.read_text())
            date, commit = result.get("date", "no date"), str(result.get("commit", "?"))[:12]
            python = result.get("checks", {}).get("python", "")
            note = f", its Python half {python}" if python.startswith("failed") else ""
            print(f"gpu-status: {path.stem}: {verdict(result, digest)}, {date}, commit {commit}{note}")
        except (OSError, ValueError, AttributeError) as error:
            print(f"gpu-status: {path.stem}: unreadable ({error})")


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"gpu-status: unknown ({error})")

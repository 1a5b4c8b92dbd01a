#!/usr/bin/env python3
"""Adds to a benchmark result what the program could not know: the state of the source tree.

usage: stamp_result.py RAW OUTPUT DIGEST COMMIT GPU DRIVER CLOCK_MHZ
"""

import datetime
import json
import pathlib
import sys


def main() -> None:
    raw, output, digest, commit, gpu, driver, clock = sys.argv[1:]
    result = json.loads(pathlib.Path(raw).read_text())
    built_from = result.get("sources_digest")
    if built_from and built_from != digest:
        sys.exit(f"stamp_result: measured a build of other sources ({built_from}, not {digest})")
    result["sources_digest"] = digest
    result["commit"] = commit
    machine = result.setdefault("machine", {})
    machine.setdefault("name", gpu)
    machine["driver"] = driver
    machine["max_sm_clock_mhz"] = int(clock)
    if not result.get("date"):
        now = datetime.datetime.now(datetime.timezone.utc)
        result["date"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    pathlib.Path(output).write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {output}: {len(result.get('results', []))} results")


if __name__ == "__main__":
    main()

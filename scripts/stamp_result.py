#!/usr/bin/env python3
"""Adds to a benchmark result what the program could not know: the state of the source tree, of the
machine, and what else was run.

usage: stamp_result.py RAW OUTPUT DIGEST COMMIT [PART.KEY=VALUE ...]

PART.KEY=VALUE goes into the object PART of the result, such as machine.driver=580.1.
"""

import json
import pathlib
import sys


def main() -> None:
    raw, output, digest, commit, *pairs = sys.argv[1:]
    result = json.loads(pathlib.Path(raw).read_text())
    built_from = result.get("sources_digest")
    if built_from and built_from != digest:
        sys.exit(f"stamp_result: measured a build of other sources ({built_from}, not {digest})")
    result["sources_digest"] = digest
    result["commit"] = commit
    for pair in pairs:
        name, value = pair.split("=", 1)
        part, key = name.split(".")
        result.setdefault(part, {})[key] = int(value) if value.isdecimal() else value
    pathlib.Path(output).write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {output}: {len(result.get('results', []))} results")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Fails where the tool was built from other kernels than those that are here.

usage: check_digest.py TOOL DIGEST
"""

import json
import subprocess
import sys


def main(tool, digest):
    said = subprocess.run([tool, "info", "--json", "-"], check=True, capture_output=True).stdout
    built_from = json.loads(said).get("sources_digest")
    if built_from == digest:
        return 0
    print(f"gpu-check: {tool} was built from other kernels ({built_from or 'of an unknown digest'}, not {digest}):"
          " build it again", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

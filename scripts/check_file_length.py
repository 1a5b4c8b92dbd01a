#!/usr/bin/env python3
"""Fails when a code file is longer than a reader can hold in mind."""

import argparse
import pathlib
import statistics
import sys

import repository

LIMIT = 700
CODE = {".c", ".cpp", ".cu", ".cuh", ".h", ".py", ".sh", ".cmake"}


def lengths(root: pathlib.Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): len(path.read_bytes().splitlines())
        for path in repository.files(root)
        if path.suffix in CODE
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    found = lengths(parser.parse_args().root)
    if not found:
        print("file length: no code files")
        return 0
    too_long = {name: count for name, count in found.items() if count > LIMIT}
    for name, count in sorted(too_long.items()):
        print(f"{name}: {count} lines, the limit is {LIMIT}", file=sys.stderr)
    print(f"file length: {len(found)} files, median {statistics.median(found.values()):.0f} lines, "
          f"longest {max(found.values())}, limit {LIMIT}")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())

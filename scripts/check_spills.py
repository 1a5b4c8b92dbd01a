#!/usr/bin/env python3
"""Fails when a kernel spills registers, by the reports that the build left beside its objects.

usage: check_spills.py BUILD_DIRECTORY
"""

import pathlib
import re
import sys


def spills(report: str):
    """(kernel, bytes stored, bytes loaded) of each kernel that spills."""
    kernel = "?"
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'|Function properties for (\S+)", line):
            kernel = match.group(1) or match.group(2)
        if match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stored, loaded = map(int, match.groups())
            if stored or loaded:
                yield kernel, stored, loaded


def main() -> int:
    reports = sorted(pathlib.Path(sys.argv[1]).rglob("*.ptxas"))
    kernels, bad = 0, 0
    for path in reports:
        text = path.read_text()
        kernels += text.count("Compiling entry function")
        for kernel, stored, loaded in spills(text):
            print(f"{path.stem}: {kernel} spills {stored} bytes and reads back {loaded}")
            bad += 1
    print(f"spills: {kernels} kernels in {len(reports)} files, {bad} spill")
    return 1 if bad or kernels == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

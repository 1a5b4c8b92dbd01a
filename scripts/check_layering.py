#!/usr/bin/env python3
"""Checks who includes whom: see docs/architecture.md for the reasons.

  src/<folder>/    may include its own folder and those before it in LAYERS; nothing of Python,
                   torch, the test code or the libraries of the tool
  include/hyla/    may include <hyla/...> and the standard library; the headers with a device half
                   also CUDA, and a kernel's header that kernel
"""

import argparse
import pathlib
import re
import sys

import repository

LAYERS = ["core", "problem", "reference", "cpu", "arch", "device", "ops", "capi"]

CODE = {".c", ".cpp", ".cu", ".cuh", ".h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"cuda")
CUDA_ALLOWED = re.compile(r"^(kv_operand\w*|recurrence_kernel(_device)?)\.h$")
# Public headers that are compiled into a user's kernel, and the sources behind them (hyla::kernels).
KERNELS = {
    "attention_cuda.h": "ops/attention_prefill/",
    "attention_decode.h": "ops/attention_decode/",
    "attention_prefill.h": "ops/attention_prefill/",
}
DLPACK = "dlpack/dlpack.h"  # dlpack_abi.h takes the real header where there is one
FOREIGN = re.compile(
    r"^(Python\.h|torch/|ATen/|c10/|pybind11/|nanobind/|CLI/|fmt/|nlohmann/|gtest/|gmock/"
    r"|testing/|tools/|tests/)")

STANDARD = set("""
algorithm any array atomic barrier bit bitset cassert cerrno cfenv cfloat charconv chrono cinttypes
climits clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal
cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution
filesystem forward_list fstream functional future initializer_list iomanip ios iosfwd iostream
istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric
optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex
source_location span sstream stack stdexcept stop_token streambuf string string_view syncstream
system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
valarray variant vector version
assert.h errno.h float.h inttypes.h limits.h math.h stdalign.h stdarg.h stdatomic.h stdbool.h
stddef.h stdint.h stdio.h stdlib.h stdnoreturn.h string.h uchar.h wchar.h
""".split())


def includes(path: pathlib.Path):
    """(line number, is quoted, what) of every include directive."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found[1] == '"', found[2]


def source_fault(folder: str, quoted: bool, what: str) -> str | None:
    if FOREIGN.match(what):
        return "the library depends on nothing but the standard library and CUDA"
    if not quoted or what.startswith("hyla/"):
        return None
    if ".." in what.split("/"):
        return 'write the path from src/, as in "core/check.h"'
    target, slash, _ = what.partition("/")
    if not slash:
        return None  # a neighbour in the same folder
    if target not in LAYERS:
        return f"'{target}' is no layer; the layers are {', '.join(LAYERS)}"
    if LAYERS.index(target) > LAYERS.index(folder):
        return f"{folder}/ stands below {target}/ and must not know it"
    return None


def public_fault(name: str, quoted: bool, what: str) -> str | None:
    if quoted:
        return "a public header includes with <>"
    if what.startswith("hyla/") or what in STANDARD:
        return None
    if CUDA_HEADER.match(what):
        if CUDA_ALLOWED.match(name):
            return None
        return "only headers with a device half may need CUDA"
    if name in KERNELS and what.startswith(KERNELS[name]):
        return None
    if what == DLPACK and name == "dlpack_abi.h":
        return None
    return "a public header may include only <hyla/...> and the standard library"


def faults(root: pathlib.Path) -> list[str]:
    result = []
    for path in repository.files(root):
        where = path.relative_to(root)
        if path.suffix not in CODE:
            continue
        if where.parts[0] == "src":
            folder = where.parts[1] if len(where.parts) > 2 else None
            if folder not in LAYERS:
                result.append(f"{where}: not in one of the layers {', '.join(LAYERS)}")
                continue
            judge = lambda quoted, what: source_fault(folder, quoted, what)
        elif where.parts[:2] == ("include", "hyla"):
            judge = lambda quoted, what: public_fault(path.name, quoted, what)
        else:
            continue
        for number, quoted, what in includes(path):
            fault = judge(quoted, what)
            if fault:
                result.append(f"{where}:{number}: includes {what}: {fault}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    found = faults(parser.parse_args().root.resolve())
    for line in found:
        print(line, file=sys.stderr)
    print(f"layering: {len(found)} faults" if found else "layering: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

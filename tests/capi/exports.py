"""Only the public interface leaves the shared library.

usage: exports.py NM LIBRARY C_HEADER
"""

import pathlib
import re
import subprocess
import sys

C_FUNCTION = re.compile(r"\bHYLA_API\b[^;()]*?\b(hyla_\w+)\s*\(")
INTERNAL = re.compile(
    r"\bhyla::(core|capi|reference|cpu|device|arch|ops|problem)::|\(anonymous namespace\)")
PUBLIC = re.compile(r"^(vtable for |typeinfo for |typeinfo name for |guard variable for )?hyla::")
# Templates of the standard library instantiated here; every C++ library carries them, weakly.
WEAK = set("VWu")


def exported(nm: str, library: str) -> list[tuple[str, str]]:
    """(kind, demangled name) of every symbol that the library defines for others."""
    text = subprocess.run([nm, "-D", "-C", "--defined-only", library], check=True,
                          capture_output=True, text=True).stdout
    found = []
    for line in text.splitlines():
        fields = line.split(None, 2)
        if len(fields) == 3 and not line.startswith(" "):
            found.append((fields[1], fields[2].split("@@")[0]))
    return found


def main(nm: str, library: str, header: str) -> int:
    faults = []
    declared = set(C_FUNCTION.findall(pathlib.Path(header).read_text()))
    symbols = exported(nm, library)
    defined = {name for _, name in symbols if re.fullmatch(r"\w+", name)}
    faults += [f"{name} is declared in {header} but not exported" for name in declared - defined]
    faults += [f"{name} is exported but not declared in {header}" for name in defined - declared]
    for kind, name in symbols:
        if re.fullmatch(r"\w+", name):
            continue
        if INTERNAL.search(name):
            faults.append(f"an internal symbol is exported: {name}")
        elif not PUBLIC.match(name) and kind not in WEAK:
            faults.append(f"a symbol outside hyla is exported: {name}")
    cpp = sum(1 for _, name in symbols if PUBLIC.match(name))
    if not declared or not cpp:
        faults.append(f"nothing to judge: {len(declared)} C functions, {cpp} C++ symbols")
    for fault in sorted(faults):
        print(fault, file=sys.stderr)
    print(f"exports: {len(defined)} C functions, {cpp} C++ symbols, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

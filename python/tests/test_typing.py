"""The types of the package: complete, and the same in the stub and in the module."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

import hyla
from hyla import _core

PACKAGE = pathlib.Path(hyla.__file__).parent


def run(*command, cwd, on_path=False):
    environment = dict(os.environ)
    if on_path or PACKAGE.parent.name != "site-packages":  # not installed, only on the path
        environment["MYPYPATH"] = environment["PYTHONPATH"] = str(PACKAGE.parent)
    # torch is an outsider of its size: its own types are not the question.
    (cwd / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed(tmp_path):
    pytest.importorskip("mypy")
    assert (PACKAGE / "py.typed").exists()
    user = tmp_path / "user.py"
    user.write_text(
        "from typing import Any\n"
        "import hyla\n"
        "class Array:\n"
        "    def __dlpack__(self, *, stream: object = None, copy: bool | None = None) -> Any: ...\n"
        "def step(q: Array, state: Array) -> Array:\n"
        "    out: Array = hyla.gdn.decode(q, q, q, state, scale=0.5)\n"
        "    hyla.norm.gated_rms(out, out, q, gate='silu', out=out)\n"
        "    names: list[tuple[str, str, str]] = hyla.explain('gdn.decode', q, q, q, state)\n"
        "    return hyla.attention.run(out, hyla.attention.DenseCache(q, q), window=4)\n"
        "def wrong(q: Array) -> None:\n"
        "    hyla.gdn.decode(q, q, q, q, layout=3)  # type: ignore[arg-type]\n"
        "    hyla.gdn.decode(q, q, q)  # type: ignore[call-arg]\n"
        "    hyla.gdn.decode(3, q, q, q)  # type: ignore[type-var]\n"
    )
    # What the compiled functions return is known to the signatures alone.
    run("mypy", "--strict", "--no-warn-return-any", "-p", "hyla", cwd=tmp_path)
    run("mypy", "--strict", str(user), cwd=tmp_path)


@pytest.mark.parametrize(
    "module",
    ["", ".compat.flashinfer", ".compat.fla", ".compat.causal_conv1d", ".integrations.transformers"],
)
def test_types_are_complete(tmp_path, module):
    """Another type checker finds a type for everything that is public, without guessing."""
    pytest.importorskip("basedpyright")
    command = ("basedpyright", "--pythonpath", sys.executable, "--ignoreexternal", "--verifytypes")
    run(*command, "hyla" + module, cwd=tmp_path, on_path=True)


def test_the_stub_is_the_module():
    """The same names; and of functions that know their own types, the same parameters and result."""
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())
    declared = {}
    for node in stub.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            declared[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            declared[node.target.id] = node
    assert set(declared) == {name for name in dir(_core) if not name.startswith("__")}
    compared = 0
    for name, node in declared.items():
        signatures = getattr(getattr(_core, name), "__nb_signature__", None)
        if not signatures or not isinstance(node, ast.FunctionDef):
            continue
        actual = ast.parse(signatures[0][0] + ": ...").body[0]
        parameters = [
            [ast.unparse(p.annotation) for p in (*f.args.posonlyargs, *f.args.args)]
            for f in (node, actual)
        ]
        assert len(parameters[0]) == len(parameters[1]), name
        for a, b in zip(*parameters):
            assert a.startswith(b) or b == "object", (name, a, b)
        wanted, got = (ast.unparse(f.returns) for f in (node, actual))
        assert wanted.startswith(got), (name, wanted, got)
        compared += 1
    assert compared >= 9

"""The Python examples run, at sizes that take a moment, and say what their text promises."""

import pathlib
import runpy
import sys

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TINY = {"transformers_qwen35.py": ["--tiny", "--prompt", "70", "--tokens", "6", "--repeats", "1"]}


@pytest.fixture
def run(monkeypatch):
    """Runs an example as a program and returns its exit status."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are so small that threads only wait for each other

    def run(name, arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return end.value.code

    yield run
    torch.set_num_threads(threads)


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"decode.py", *TINY}


def test_decode(capsys):
    runpy.run_path(str(EXAMPLES / "decode.py"), run_name="__main__")
    assert capsys.readouterr().out == "out = 6, state = 6\n"


def test_transformers_qwen35(run, capsys):
    assert run("transformers_qwen35.py", TINY["transformers_qwen35.py"]) == 0
    printed = capsys.readouterr().out
    assert "the same text: 6 of 6 tokens" in printed
    assert printed.count("tokens/s") == 4


@pytest.mark.parametrize(
    "arguments", [["--prompt", "0"], ["--tokens", "1"], ["--repeats", "0"], ["--dtype", "int8"]]
)
def test_transformers_qwen35_refuses(run, capsys, arguments):
    assert run("transformers_qwen35.py", arguments) == 2
    assert "error:" in capsys.readouterr().err

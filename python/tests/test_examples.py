"""The Python examples run, at sizes that take a moment, and say what their text promises."""

import pathlib
import runpy
import sys

import pytest
import torch

from judge import DEVICES

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TINY = ["--tiny", "--prompt", "70", "--tokens", "6", "--repeats", "1"]


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
    names = {"decode.py", "engine_layers.py", "transformers_qwen35.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == names


def test_decode(capsys):
    runpy.run_path(str(EXAMPLES / "decode.py"), run_name="__main__")
    assert capsys.readouterr().out == "out = 6, state = 6\n"


@pytest.mark.parametrize("device", DEVICES)
def test_engine_layers(run, capsys, device):
    assert run("engine_layers.py", ["--device", device]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6 and printed[-1] == "verified"


def test_transformers_qwen35(run, capsys):
    assert run("transformers_qwen35.py", TINY) == 0
    printed = capsys.readouterr().out
    assert "the same text: 6 of 6 tokens" in printed
    assert printed.count("tokens/s") == 4


@pytest.mark.parametrize(
    "arguments", [["--prompt", "0"], ["--tokens", "1"], ["--repeats", "0"], ["--dtype", "int8"]]
)
def test_transformers_qwen35_refuses(run, capsys, arguments):
    assert run("transformers_qwen35.py", arguments) == 2
    assert "error:" in capsys.readouterr().err

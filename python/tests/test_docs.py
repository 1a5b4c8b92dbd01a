"""The code in the documentation runs as it stands."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_manual(capsys):
    """Each block goes on where the one before it ended; a comment after print says what it prints."""
    page = ROOT / "docs" / "python.md"
    found = blocks(page)
    assert len(found) >= 5
    names = {}
    for number, block in enumerate(found):
        capsys.readouterr()
        # Not the page's name: tracers would look its lines up in the whole page.
        exec(compile(block, f"<{page.name}, block {number}>", "exec"), names)
        printed = capsys.readouterr().out
        for promised in re.findall(r"print\(.*\) +# (.*)", block):
            assert promised in printed

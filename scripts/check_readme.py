"""The code in README.md is the code of the examples that are compiled and run as tests."""

import pathlib
import re
import sys

root = pathlib.Path(__file__).parents[1]
readme = (root / "README.md").read_text()
blocks = re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", readme, re.DOTALL)
wrong = [name for name, code in blocks if code != (root / name).read_text()]
links = [
    link
    for link in re.findall(r"\]\(([^)#:]+)\)", readme)
    if not (root / link).exists()
]
for name in wrong:
    print(f"README.md: the code after '<!-- {name} -->' differs from {name}")
for link in links:
    print(f"README.md: {link} does not exist")
if not blocks:
    print("README.md: quotes no example")
sys.exit(1 if wrong or links or not blocks else 0)

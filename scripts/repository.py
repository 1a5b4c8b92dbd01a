"""Which files belong to the repository; shared by the checks."""

import pathlib
import subprocess


def files(root: pathlib.Path) -> list[pathlib.Path]:
    """Tracked and new, not ignored files below root; without git, everything but build folders."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"],
            check=True, capture_output=True).stdout.decode()
        found = [root / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in root.rglob("*")
                 if not {"build", ".git", "__pycache__"} & set(path.relative_to(root).parts)]
    return sorted(path for path in set(found) if path.is_file())

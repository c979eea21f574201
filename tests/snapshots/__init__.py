"""Texts that must not change unnoticed. `UPDATE_SNAPSHOTS=1 pytest …` writes them anew; look at the difference."""

import os
from pathlib import Path


def check(name: str, text: str) -> None:
    path = Path(__file__).parent / name
    lines = "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(lines, encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8")

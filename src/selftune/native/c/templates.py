"""Templates of C files, and of the files beside them: text with `@name` or `@{name}` in the place of a value."""

import re
import string
from collections.abc import Mapping
from pathlib import Path

WIDTH = 116


class _Template(string.Template):
    delimiter = "@"


def fill(template: Path, values: Mapping[str, str | int | list[str]]) -> str:
    """Return the text of a template with the values.

    A list of C lines needs a placeholder that is alone on its line. The lines get the indent of the placeholder, and
    long lines are broken. An empty value leaves no line there.
    """
    lines = []
    for line in template.read_text(encoding="utf-8").splitlines():
        alone = re.fullmatch(r"( *)@(\w+)", line)
        value = values[alone[2]] if alone else line
        if alone and isinstance(value, list):
            lines += wrap(value, len(alone[1]))
        elif value != "" or not alone:
            lines.append(_Template(line).substitute(values))
    return "\n".join(lines) + "\n"


def wrap(lines: list[str], indent: int) -> list[str]:
    """Return the lines with an indent; long lines are broken at spaces."""
    out = []
    for line in lines:
        text = " " * indent + line
        while len(text) > WIDTH:
            cut = max(text.rfind(" ", indent + 24, WIDTH), 0)
            if cut <= 0:
                break
            out.append(text[:cut])
            text = " " * (indent + 4) + text[cut + 1 :]
        out.append(text)
    return out

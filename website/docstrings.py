"""Examples of docstrings as blocks of code. Markdown would take the sign >>> of Python's prompt for a quotation."""

# The tools of the site are not among those of the tests.
# pyright: reportMissingImports=false

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """Put each example between fences; an example ends at an empty line."""
    return EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


class FencedExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

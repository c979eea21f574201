"""What the reference needs beside the docstrings themselves: examples as blocks of code, and signatures of modules.

Markdown would take the sign >>> of Python's prompt for a quotation. The fields of an Equinox module are the arguments
of its constructor, which a reader of the source alone does not see.
"""

# The tools of the site are not among those of the tests.
# pyright: reportMissingImports=false

import inspect
import pkgutil
import re
from typing import Any

import equinox as eqx
import griffe

PAGE = re.compile(r"(?<!\[)`docs/([\w/-]+)\.md`")
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


def links(text: str) -> str:
    """Make the name of a page, such as `docs/native.md`, a link. The pages of the reference are in the folder api."""
    return PAGE.sub(r"[\g<0>](../\1.md)", text)


def fenced(text: str) -> str:
    """Put each example between fences; an example ends at an empty line."""
    return EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


def constructor(name: str, cls: type) -> str:
    """The call of the constructor with its defaults, as a block of code. A default that is not a plain value is "…"."""
    arguments, keyword_only = [], False
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            arguments.append("*")
            keyword_only = True
        value = parameter.default
        plain = value is None or isinstance(value, bool | int | float | str)
        default = "" if value is parameter.empty else f"={value!r}" if plain else "=…"
        arguments.append(parameter.name + default)
    return f"```python\n{name}({', '.join(arguments)})\n```\n\n"


class Reference(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(links(obj.docstring.value))

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is None or "__init__" in cls.members or cls.name.startswith(("_", "Abstract")):
            return
        value = pkgutil.resolve_name(cls.path)
        if issubclass(value, eqx.Module):
            cls.docstring.value = constructor(cls.name, value) + cls.docstring.value

"""Suggestions for a misspelled name."""

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the most similar of `names`; empty if none is similar."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""

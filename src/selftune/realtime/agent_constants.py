"""The constants that a saved agent and the agent that loads its state must share, as a list that people can read."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..control.controller import Controller
from ..problem.constraints import AbstractConstraint

MOST = 64
"""An array with more numbers is listed by its size, its sum and its sum of squares."""
CLOSE = 1e-4
"""Numbers that differ by a smaller share are the same: an observer's gain has other last digits on another machine."""
FREE = (
    *("theta", "constraint", "has_default_constraint", "memory", "u_start"),  # the start of a run, and Θ
    *("longest_filter", "units"),  # from the reference of simulations; names for people
    *("jacobian", "hold"),  # of an integrator: they follow from the constants of the model
)
"""Fields that may differ, or that follow from other fields. `load` checks by itself that θ is inside Θ."""


def constants_of(controller: Controller, dtype: Any) -> dict[str, Any]:
    """Return the constants of the system by name, as plain values for JSON.

    The functions of a `Loop` are modules, and their fields are listed: the model, the policy with its limits of the
    control, the observer, the cost. The inside of plain functions is not known. Tuner, estimator and guard may differ:
    the guard clips a stored control to its own limits.
    """
    found: dict[str, Any] = {"dtype": np.dtype(dtype).name}
    _collect(controller.system, "", found)
    return found


def first_difference(theirs: Any, mine: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the name, the expected and the found value of the first constant that differs; None if all agree."""
    if not isinstance(theirs, dict):
        return "constants", mine, theirs
    for name in (*mine, *(name for name in theirs if name not in mine)):
        here, there = mine.get(name), theirs.get(name)
        if not _same(here, there):
            return name, here, there
    return None


def _collect(node: Any, name: str, found: dict[str, Any]) -> None:
    if isinstance(node, AbstractConstraint) or type(node).__name__ == "BoundMethod":
        return
    if isinstance(node, eqx.Module):
        kind = type(node).__name__
        if name and not kind.startswith("_"):
            found[name] = kind
        for field in dataclasses.fields(node):
            if field.name not in FREE:
                # A private module only joins parts, so its name says nothing to the user.
                inner = field.name if not name or kind.startswith("_") else f"{name}.{field.name}"
                _collect(getattr(node, field.name, None), inner, found)
    elif isinstance(node, dict):
        for key, value in node.items():
            _collect(value, f"{name}.{key}", found)
    elif isinstance(node, list | tuple) and any(isinstance(part, eqx.Module | dict | list | tuple) for part in node):
        for i, value in enumerate(node):
            _collect(value, f"{name}[{i}]", found)
    elif not callable(node):
        found[name] = _plain(node)


def _plain(value: Any) -> Any:
    if isinstance(value, jax.Array | np.ndarray):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            return f"{array.dtype}{list(array.shape)}"
        if array.size > MOST:
            array = array.astype(float)
            return [list(array.shape), float(array.sum()), float((array**2).sum())]
        return _plain(list(array) if array.ndim else array[()])
    if isinstance(value, np.floating):
        return _plain(float(str(value)))  # 0.8 in place of 0.800000011920929 for a float32
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def _same(here: Any, there: Any) -> bool:
    if isinstance(here, list) and isinstance(there, list):
        return len(here) == len(there) and all(map(_same, here, there))
    if isinstance(here, bool) or isinstance(there, bool):
        return here is there
    if isinstance(here, int | float) and isinstance(there, int | float):
        return math.isclose(here, there, rel_tol=CLOSE, abs_tol=1e-12)
    return bool(here == there)

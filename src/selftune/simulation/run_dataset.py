"""The recorded rows of a run as an `xarray.Dataset`: named axes, named components, and what each field is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PyTree

from ..control.guard import Decision
from ..control.run_fields import FIELDS
from ..foundation.errors import ArgumentError

Names = Mapping[str, Sequence[str]]
"""The names of the components of fields, such as `{"x": ["angle", "speed"]}`."""


def make(
    recorded: Mapping[str, PyTree],
    time: np.ndarray,
    batch: tuple[int, ...] = (),
    *,
    names: Names | None = None,
    others: Mapping[str, tuple[Any, str]] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Return the dataset of recorded fields.

    **Arguments:**

    - `recorded`: the rows of each field, by its name in `RunFields`; None if the field has no value.
    - `time`: the step of each row.
    - `batch`: the sizes of the axes in front of the time axis.
    - `names`: names for the components of fields; by default, the names in the pytree, or numbers.
    - `others`: numbers of each run of the batch, with their descriptions.
    - `attrs`: the attributes of the dataset.
    """
    runs = ("run",) if len(batch) == 1 else tuple(f"run_{i}" for i in range(len(batch)))
    coords: dict[str, Any] = {dim: np.arange(size) for dim, size in zip(runs, batch, strict=True)}
    coords["time"] = ("time", time, {"long_name": "The number of the step."})
    data: dict[str, Any] = {}
    for name, field in FIELDS.items():
        if (rows := recorded.get(name)) is None:
            continue
        axes = field.axes
        values, components = _flat(rows, len(batch) + 1) if len(axes) == 1 else (np.asarray(rows), None)
        data[name] = ((*runs, "time", *axes), values, _attributes(name))
        for axis, size in zip(axes, values.shape[len(batch) + 1 :], strict=True):
            coords.setdefault(axis, np.arange(size))
        if components is not None:
            coords[axes[0]] = components
    for name, (values, description) in (others or {}).items():
        data[name] = (runs, np.asarray(values), {"long_name": description})
    for name, given in (names or {}).items():
        axis = _axis(name)
        if axis in coords:
            coords[axis] = _checked(name, given, len(coords[axis]))
    if "loop_state" in coords:
        coords["loop_state"] = _loop_state(coords)
    return xr.Dataset(data, coords=coords, attrs=dict(attrs or {}))


def _flat(rows: PyTree, lead: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the leaves of a pytree along one last axis, with a name for each number; None if the tree is a vector.

    The order is that of `ravel_pytree`, which is that of the fields that are flat in θ.
    """
    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="."), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_flatten_with_path(rows)[0]
    ]
    shapes = [leaf.shape[lead:] for _, leaf in leaves]
    flat = [leaf.reshape(*leaf.shape[:lead], math.prod(shape)) for (_, leaf), shape in zip(leaves, shapes, strict=True)]
    values = np.concatenate(flat, axis=-1)
    if len(leaves) == 1 and not leaves[0][0] and len(shapes[0]) < 2:
        return values, None
    components = [
        f"{name}[{', '.join(map(str, index))}]" if index else name
        for (name, _), shape in zip(leaves, shapes, strict=True)
        for index in np.ndindex(shape)
    ]
    return values, np.asarray(components)


def _loop_state(coords: dict[str, Any]) -> np.ndarray:
    """Return the names of the loop state's numbers: those of x, then those of the memory; numbers if these are not
    recorded."""
    parts = [np.asarray(coords[axis]) for axis in ("state", "memory_number") if axis in coords]
    if sum(map(len, parts)) != len(coords["loop_state"]) or all(part.dtype.kind == "i" for part in parts):
        return coords["loop_state"]
    return np.concatenate([part.astype(str) for part in parts])


def _attributes(name: str) -> dict[str, Any]:
    about: dict[str, Any] = {"long_name": FIELDS[name].__doc__ or ""}
    if name == "guard":  # the attributes of flags in the CF conventions
        about["flag_masks"] = [int(decision) for decision in Decision]
        about["flag_meanings"] = " ".join(map(str, Decision))
    return about


def _axis(name: str) -> str:
    one_axis = [field for field, about in FIELDS.items() if len(about.axes) == 1]
    if name not in one_axis:
        raise ArgumentError("names", f"names for components of {', '.join(one_axis)}", f"{name!r}")
    return FIELDS[name].axes[0]


def _checked(name: str, given: Any, size: int) -> np.ndarray:
    texts = [] if isinstance(given, str) else list(given)
    if len(texts) != size or len(set(texts)) != size or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"names[{name!r}]", f"{size} different names", f"{given!r}")
    return np.asarray(texts)

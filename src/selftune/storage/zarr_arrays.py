"""The Zarr dataset of a run: its layout, and functions that create and open it."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.errors import ZarrUserWarning
from zarr.storage import FsspecStore

from ..foundation.errors import ArgumentError
from .files import Folder


@dataclass(frozen=True)
class Variable:
    """An array of the dataset; `text` describes it."""

    dims: tuple[str, ...]
    dtype: str
    text: str = ""


@dataclass(frozen=True)
class Layout:
    """The content of a run: the values along each dimension, and the arrays. Every array has all task dimensions."""

    task_dims: tuple[str, ...]
    coords: Mapping[str, Any]
    variables: Mapping[str, Variable]

    def __post_init__(self) -> None:
        for name, variable in self.variables.items():
            if unknown := [dim for dim in variable.dims if dim not in self.coords]:
                raise ArgumentError("variables", f"dimensions from {list(self.coords)}", f"{unknown} in {name}")
            if missing := [dim for dim in self.task_dims if dim not in variable.dims]:
                raise ArgumentError("variables", f"every task dimension in {name}", f"none of {missing}")

    def coordinate(self, name: str) -> np.ndarray:
        return np.asarray(self.coords[name])

    def empty_task(self) -> dict[str, np.ndarray]:
        """The arrays of one task, filled with NaN or −1, for a task that fills them part by part."""
        arrays = {}
        for name, variable in self.variables.items():
            sizes = [len(self.coords[dim]) for dim in variable.dims if dim not in self.task_dims]
            arrays[name] = np.full(sizes, _fill(variable.dtype), variable.dtype)
        return arrays


def _fill(dtype: str) -> float:
    return np.nan if np.dtype(dtype).kind == "f" else -1


def create(folder: Path, layout: Layout) -> None:
    """Create all arrays, empty, in a local folder."""
    group = zarr.create_group(folder, zarr_format=3)
    for name in layout.coords:
        values = layout.coordinate(name)
        dtype = str if values.dtype.kind == "U" else values.dtype
        group.create_array(name, shape=values.shape, dtype=dtype, dimension_names=(name,))[:] = values
    for name, variable in layout.variables.items():
        shape = tuple(len(layout.coords[dim]) for dim in variable.dims)
        chunks = tuple(1 if dim in layout.task_dims else len(layout.coords[dim]) for dim in variable.dims)
        group.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype=variable.dtype,
            fill_value=_fill(variable.dtype),
            dimension_names=variable.dims,
            attributes={"long_name": variable.text} if variable.text else {},
        )
    with warnings.catch_warnings():
        # Consolidated metadata is not yet part of Zarr v3, and readers may ignore it; with it, xarray needs one read.
        warnings.simplefilter("ignore", ZarrUserWarning)
        zarr.consolidate_metadata(group.store)


def open_group(path: Folder) -> zarr.Group:
    if isinstance(path, Path):
        return zarr.open_group(path, mode="r+", use_consolidated=False)
    store = FsspecStore.from_url(str(path), storage_options=dict(path.storage_options))
    return zarr.open_group(store, mode="r+", zarr_format=3, use_consolidated=True)


def dims(array: zarr.Array) -> tuple[str, ...]:
    return tuple(str(name) for name in array.metadata.dimension_names or ())  # pyright: ignore[reportAttributeAccessIssue]

"""Runs on disk: one folder for each, with a Zarr v3 dataset of named dimensions and a JSON manifest.

    FOLDER/manifest.json   settings, versions, git state, result codes, checksums, "running" or "complete"
    FOLDER/data.zarr/      the arrays, which xarray opens; each task's part is a chunk of its own
    FOLDER/tasks/*.json    one marker for each finished task, with the SHA-256 of its arrays

A task is a point of the task dimensions, such as a seed, or (scenario, tuner, seed) of a sweep. `write` writes its
chunks and then its marker, each by an atomic replacement and on the disk before the next (`fsync`), so a task with a
marker is complete, even if the process dies or the power fails. A task without a marker is computed again, and so is a
task whose marker or chunk is damaged. Tasks share no files, so any number of threads or processes may write different
tasks. The folder has one owner, who decides which tasks run and holds the lock. Only `files` touches files
other than arrays.

FOLDER may be a URL that fsspec supports ("s3://bucket/run"; needs the extra `cluster`, and a driver such as `s3fs`).
The bytes and names are the same. The guarantees are the same with two exceptions: the lock of a killed owner must be
deleted by hand, and `set_aside` copies.
"""

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..foundation import json_values
from ..foundation.errors import ArgumentError, cause
from ..foundation.safe_text import printable
from . import files, zarr_arrays
from . import manifest as manifests
from .files import Folder
from .manifest import Manifest, StoreError
from .zarr_arrays import Layout as Layout
from .zarr_arrays import Variable as Variable

Differing = Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]]
Task = tuple[int, ...]
"""The index along each task dimension."""


class _DamagedError(StoreError):
    """The marker or an array of a task is damaged."""


class RunStore:
    """A run's folder. `RunStore.begin` creates or continues a run; `RunStore(folder)` opens one without owning it."""

    def __init__(self, folder: str | Folder):
        self.folder = files.as_folder(folder)
        self.manifest = read_manifest(self.folder)
        self._lock: Any = None
        self._arrays: dict[str, zarr.Array] = {}
        self._coords: dict[str, np.ndarray] = {}
        data = self.folder / "data.zarr"
        try:
            for name, array in sorted(zarr_arrays.open_group(data).arrays()):
                if zarr_arrays.dims(array) == (name,):
                    self._coords[name] = np.asarray(array[:])
                else:
                    # By default, Zarr omits a chunk that equals the fill value; but NaNs may differ in their bits.
                    self._arrays[name] = array.with_config({"write_empty_chunks": True})
            sizes = [len(self._coords[dim]) for dim in self.manifest.task_dims]
        except Exception as error:
            raise StoreError(f"{data}: cannot be read ({error}){_RESTORE}") from cause(error)
        self.tasks: list[Task] = list(itertools.product(*map(range, sizes)))

    @classmethod
    def begin(
        cls,
        folder: str | Folder,
        *,
        kind: str,
        settings: Mapping[str, Any],
        layout: Layout,
        differing: Differing = manifests.differing,
    ) -> "RunStore":
        """The folder of this run, new or continued, and locked; use it in a `with`.

        A run is continued only if settings, versions, sources, platform and commit are the same as at its start. Only
        then is the result bit-identical to that of an uninterrupted run. Finished tasks are verified first; a damaged
        task is logged and computed again. A complete run with the same settings that other code computed is returned
        unchanged (`complete`); `dataset` verifies it.

        `differing` says in words how the settings in the folder differ from those of this call.
        """
        folder = files.as_folder(folder)
        path, names = folder / "manifest.json", files.names(folder)
        if path.name not in names and not all(map(files.is_leftover, names)):
            raise StoreError(
                f"{folder}: not empty, and not a selftune run (it has no manifest.json); choose another folder"
            )
        asked = Manifest(
            kind=kind,
            state="running",
            settings=json.loads(json_values.text(settings)),
            task_dims=layout.task_dims,
            versions=manifests.versions(),
            platform=manifests.machine(),
            git=manifests.git_state(),
            results={},
            checksums={name: digest(layout.coordinate(name)) for name in sorted(layout.coords)},
        )
        lock = files.lock(folder)
        try:
            files.remove_leftovers(folder, folder / "tasks")
            if files.exists(path):
                _check_same_run(folder, read_manifest(folder), asked, differing)
            else:
                # Written first, so that a folder that we began is always recognized as ours.
                files.write(path, files.as_json(asked))
            data, last = folder / "data.zarr", "zarr.json"
            if not files.is_created(data, last) and not files.names(folder / "tasks"):
                with files.creating(data, last) as local:
                    zarr_arrays.create(local, layout)
            store = cls(folder)
            store._check_layout(layout)
            if not store.complete or not computed_otherwise(store.manifest, asked):
                store._forget_damaged()
            store._lock = lock
        except BaseException:
            lock.close()
            raise
        return store

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def complete(self) -> bool:
        return self.manifest.state == "complete"

    def name(self, task: Task) -> str:
        """The task in words, such as `seed=3`."""
        dims = self.manifest.task_dims
        return ",".join(f"{dim}={self._coords[dim][i]}" for dim, i in zip(dims, task, strict=True))

    def done(self, task: Task) -> bool:
        """Whether a task has a marker. For many tasks, use `pending`."""
        return files.exists(self._marker_path(task))

    def pending(self) -> list[Task]:
        """The tasks without a marker, in order, from one listing."""
        marked = files.names(self.folder / "tasks")
        return [task for task in self.tasks if self._marker_name(task) not in marked]

    def write(self, task: Task, arrays: Mapping[str, Any], *, failed: str | None = None) -> None:
        """Write one task's part of every array, and then its marker. `failed`: the reason, if the task failed."""
        if arrays.keys() != self._arrays.keys():
            raise ArgumentError("arrays", f"{sorted(self._arrays)}", f"{sorted(arrays)}")

        def write_array(name: str) -> tuple[str, str]:
            array, value = self._arrays[name], np.asarray(arrays[name])
            sizes = zip(array.shape, zarr_arrays.dims(array), strict=True)
            expected = tuple(size for size, dim in sizes if dim not in self.manifest.task_dims)
            if value.shape != expected or value.dtype != array.dtype:
                got = f"{value.dtype}{list(value.shape)}"
                raise ArgumentError(name, f"{array.dtype}{list(expected)}", got)
            with files.store_errors(self.folder):
                array[self._region(array, task)] = value
            return name, digest(value)

        checksums = dict(files.map_parallel(self.folder, write_array, sorted(self._arrays)))
        if isinstance(data := self.folder / "data.zarr", Path):
            files.sync_inside(data, [data / self._chunk(array, task) for array in self._arrays.values()])
        marker = {"task": self.name(task), "checksums": checksums} | ({} if failed is None else {"failed": failed})
        files.write(self._marker_path(task), files.as_json(marker))

    def failures(self) -> dict[Task, str]:
        """The tasks that are marked as failed, with the reason."""
        pending = set(self.pending())
        done = [task for task in self.tasks if task not in pending]
        markers = zip(done, files.map_parallel(self.folder, self._marker, done), strict=True)
        return {task: marker["failed"] for task, marker in markers if "failed" in marker}

    def redo(self, *tasks: Task) -> None:
        """Mark tasks as not done, and also damaged tasks. The run is not complete until they are written again."""
        if self.complete:
            self._forget_damaged()
        self._forget(tasks)

    def _forget(self, tasks: Iterable[Task]) -> None:
        self.manifest = self._as_running()
        files.write(self.folder / "manifest.json", files.as_json(self.manifest))
        for task in tasks:
            files.remove(self._marker_path(task))

    def _forget_damaged(self) -> None:
        """Mark finished tasks that fail their checksums as not done, so that they alone are computed again."""
        self._check_coordinates()
        left = self.pending()

        def check(task: Task) -> dict[str, Any] | _DamagedError:
            try:
                return self._check_task(task, {})
            except _DamagedError as error:
                return error

        done = sorted(set(self.tasks) - set(left))
        checked = dict(zip(done, files.map_parallel(self.folder, check, done), strict=True))
        damaged = {task: error for task, error in checked.items() if isinstance(error, _DamagedError)}
        for error in damaged.values():
            _LOGGER.warning("%s; this task is computed again", printable(str(error)))
        if self.complete and not damaged and not left:
            self._check_combined(list(checked.values()))
        elif damaged or self.complete:
            self._forget(damaged)

    def finish(self) -> Manifest:
        """Mark the run as complete, with checksums and result codes (the counts of the array `result_code`)."""
        if left := self.pending():
            first = self.name(left[0])
            raise StoreError(f"{self.folder}: {len(left)} of {len(self.tasks)} tasks are not done, the first {first}")
        # Files of processes that died while Zarr was writing. At this point no other process writes.
        files.remove_leftovers(self.folder / "data.zarr", pattern="**/*.partial")
        codes: dict[str, int] = {}
        if "result_code" in self._arrays:
            values, counts = np.unique(np.asarray(self._arrays["result_code"][...]), return_counts=True)
            pairs = zip(values, counts, strict=True)
            codes = {str(value): int(count) for value, count in pairs if value >= 0}  # -1 means no run
        running = self._as_running()
        markers = list(files.map_parallel(self.folder, self._marker, self.tasks))
        checksums = running.checksums | self._combined_checksums(markers)
        complete = running.model_copy(update={"state": "complete", "results": codes, "checksums": checksums})
        files.write(self.folder / "manifest.json", files.as_json(complete))
        self.manifest = complete
        return complete

    def verify(self, *, keep: bool = False) -> dict[str, np.ndarray]:
        """Check the arrays of all finished tasks, or raise `StoreError`. With `keep`, return every array, in memory."""
        self._check_coordinates()
        read = {}
        if keep:
            read = {name: np.full(array.shape, array.fill_value, array.dtype) for name, array in self._arrays.items()}
        left = self.pending()
        if left and self.complete:
            raise StoreError(f"{self._marker_path(left[0])}: missing in a complete run{_REDO}")

        def check(task: Task) -> dict[str, Any]:
            try:
                return self._check_task(task, read)
            except _DamagedError as error:
                raise StoreError(f"{error}{_REDO}") from error

        markers = list(files.map_parallel(self.folder, check, sorted(set(self.tasks) - set(left))))
        if self.complete:
            self._check_combined(markers)
        return read

    def _check_coordinates(self) -> None:
        for name, values in self._coords.items():
            if digest(values) != self.manifest.checksums.get(name):
                raise StoreError(f"{self.folder}: coordinate {name}: damaged (checksum differs){_RESTORE}")

    def _check_task(self, task: Task, read: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the marker of a finished task, or raise `_DamagedError`.

        The values of arrays that are in `read` are copied there.
        """
        marker = self._marker(task)
        for name, array in self._arrays.items():
            where = f"{self.folder}: task {self.name(task)}, array {name}"
            region = self._region(array, task)
            try:
                value = np.asarray(array[region])
            except Exception as error:
                self._check_access(array, task)
                raise _DamagedError(f"{where}: cannot be read ({error})") from cause(error)
            if digest(value) != marker["checksums"].get(name):
                raise _DamagedError(f"{where}: damaged (checksum differs)")
            if name in read:
                read[name][region] = value
        return marker

    def _check_access(self, array: zarr.Array, task: Task) -> None:
        """Raise an error if a chunk may not be read, or if its store is not reached: the chunk may be undamaged."""
        try:
            files.read(self.folder / "data.zarr" / self._chunk(array, task))
        except PermissionError:
            raise
        except OSError:  # the file is missing, or the disk is damaged there
            pass

    def _check_combined(self, markers: list[dict[str, Any]]) -> None:
        for name, combined in self._combined_checksums(markers).items():
            if combined != self.manifest.checksums.get(name):
                where = f"{self.folder}: array {name}"
                raise StoreError(f"{where}: tasks/ and manifest.json do not belong together{_RESTORE}")

    def dataset(self) -> xr.Dataset:
        """The verified arrays, in memory."""
        read = self.verify(keep=True)
        data = {
            name: (zarr_arrays.dims(self._arrays[name]), values, dict(self._arrays[name].attrs))
            for name, values in read.items()
        }
        return xr.Dataset(data, coords={name: (name, values) for name, values in self._coords.items()})

    def _check_layout(self, layout: Layout) -> None:
        """Raise `StoreError` if the arrays differ: another version may write other arrays for the same settings."""
        there = {name: (zarr_arrays.dims(array), array.dtype.name) for name, array in self._arrays.items()}
        asked = {name: (array.dims, np.dtype(array.dtype).name) for name, array in layout.variables.items()}
        sums = {name: digest(layout.coordinate(name)) for name in layout.coords}
        if there != asked or sums != {name: self.manifest.checksums.get(name) for name in self._coords}:
            changed = sorted(name for name in there.keys() | asked.keys() if there.get(name) != asked.get(name))
            names = f" ({', '.join(changed)})" if changed else ""
            raise StoreError(
                f"{self.folder}: contains a run with the same settings but other arrays or coordinates{names}, "
                "as another version writes them; start again (--fresh, or another folder)"
            )

    def _as_running(self) -> Manifest:
        coordinates = {name: checksum for name, checksum in self.manifest.checksums.items() if name in self._coords}
        return self.manifest.model_copy(update={"state": "running", "results": {}, "checksums": coordinates})

    def _region(self, array: zarr.Array, task: Task) -> tuple[Any, ...]:
        at = dict(zip(self.manifest.task_dims, task, strict=True))
        return tuple(at.get(dim, slice(None)) for dim in zarr_arrays.dims(array))

    def _chunk(self, array: zarr.Array, task: Task) -> str:
        """The path of the chunk that a task fills, in `data.zarr`."""
        at = dict(zip(self.manifest.task_dims, task, strict=True))
        key = array.metadata.encode_chunk_key(tuple(at.get(dim, 0) for dim in zarr_arrays.dims(array)))
        return f"{array.path}/{key}"

    def _marker_name(self, task: Task) -> str:
        return "_".join(f"{dim}-{i}" for dim, i in zip(self.manifest.task_dims, task, strict=True)) + ".json"

    def _marker_path(self, task: Task) -> Folder:
        return self.folder / "tasks" / self._marker_name(task)

    def _marker(self, task: Task) -> dict[str, Any]:
        """The content of a task's marker."""
        path = self._marker_path(task)
        try:
            marker = json.loads(files.read(path))
            if marker["task"] == self.name(task) and isinstance(marker["checksums"], dict):
                return marker
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        raise _DamagedError(f"{path}: not the marker of task {self.name(task)}")

    def _combined_checksums(self, markers: list[dict[str, Any]]) -> dict[str, str]:
        return {
            name: hashlib.sha256("".join(marker["checksums"][name] for marker in markers).encode()).hexdigest()
            for name in self._arrays
        }


def open_run(folder: str | Folder) -> tuple[xr.Dataset, Manifest]:
    """The dataset, in memory, and the manifest of a complete run, after verification."""
    store = RunStore(folder)
    if not store.complete:
        done = f"{len(store.tasks) - len(store.pending())} of {len(store.tasks)} tasks"
        raise StoreError(f"{folder}: the run is not complete ({done}); run it again to resume")
    return store.dataset(), store.manifest


def read_manifest(folder: str | Folder) -> Manifest:
    path = files.as_folder(folder) / "manifest.json"
    try:
        text = files.read(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise StoreError(f"{folder}: not a selftune run (it has no manifest.json)") from None
    return manifests.parse(text, str(path))


def set_aside(folder: str | Folder) -> Folder | None:
    """Rename a run's folder, so that its name is free; nothing is deleted. Return None if there is no folder."""
    folder = files.as_folder(folder)
    if not files.exists(folder):
        return None
    if not files.exists(folder / "manifest.json"):
        raise StoreError(f"{folder}: not a selftune run (it has no manifest.json); choose another folder")
    with closing(files.lock(folder)):
        names = (folder.with_name(f"{folder.name}.old-{n}") for n in itertools.count(1))
        aside = next(path for path in names if not files.exists(path))
        files.rename(folder, aside, "manifest.json")
    return aside


def digest(values: np.ndarray) -> str:
    """SHA-256 of an array's dtype, shape and bytes, little-endian and in C order."""
    if values.dtype.kind not in "biuf":
        return hashlib.sha256(json.dumps(values.tolist()).encode()).hexdigest()
    plain = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return hashlib.sha256(f"{plain.dtype.str}{list(values.shape)}".encode() + plain.tobytes()).hexdigest()


_RESTORE = "; restore the folder, or start again (--fresh, or another folder)"
_REDO = (
    "; the command that made the run, with the same version of selftune, computes this task again; or restore the "
    "folder, or start again (--fresh, or another folder)"
)
_LOGGER = logging.getLogger("selftune")


def _check_same_run(folder: Folder, there: Manifest, asked: Manifest, differing: Differing) -> None:
    if there.kind != asked.kind:
        raise StoreError(f"{folder}: contains a run of another kind: {there.kind!r} there, {asked.kind!r} now")
    if texts := differing(there.settings, asked.settings):
        raise StoreError(f"{folder}: contains a run with other settings: {'; '.join(texts)}; choose another folder")
    if there.state == "complete":
        return
    if texts := computed_otherwise(there, asked):
        raise StoreError(
            f"{folder}: begun by other code, so the result would mix two versions: "
            f"{'; '.join(texts)}; start again (--fresh, or another folder)"
        )


def computed_otherwise(there: Manifest, now: Manifest | None = None) -> list[str]:
    """The differences, in words, between the code that computed a run and the code that is installed now."""
    versions, platform, git = (
        (manifests.versions(), manifests.machine(), manifests.git_state())
        if now is None
        else (now.versions, now.platform, now.git)
    )
    commits = [{} if state is None else {"commit": state.commit} for state in (there.git, git)]
    return [
        text
        for ours, theirs in ((there.versions, versions), (there.platform, platform), (commits[0], commits[1]))
        for text in manifests.differing(ours, theirs)
    ]

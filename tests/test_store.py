"""Stored runs: whole or refused, and the same bytes however often they were interrupted."""

import json
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from selftune.storage import manifest as manifests
from selftune.storage.manifest import Manifest, StoreError
from selftune.storage.store import Layout, RunStore, Variable, computed_otherwise, open_run, read_manifest, set_aside
from tests import snapshots

LAYOUT = Layout(
    task_dims=("noise", "seed"),
    coords={"noise": ("outside", "inside"), "seed": np.arange(3), "time": np.arange(0, 50, 10)},
    variables={
        "x": Variable(("noise", "seed", "time"), "float32", "the state"),
        "cost": Variable(("seed", "noise"), "float64"),
        "result_code": Variable(("noise", "seed"), "int32"),
    },
)
SETTINGS = {"steps": 50, "gains": (0.5, 1.0)}


def arrays(task):
    drawn = np.random.default_rng(task)
    return {
        "x": drawn.normal(size=5).astype(np.float32),
        "cost": np.float64(drawn.normal()),
        "result_code": np.int32(task == (1, 1)),
    }


def begin(folder, **changes):
    return RunStore.begin(folder, **(dict(kind="test", settings=SETTINGS, layout=LAYOUT) | changes))


def redo(folder):
    with begin(folder) as store:
        store.redo((0, 0))


def run(folder, tasks=None):
    with begin(folder) as store:
        for task in store.tasks if tasks is None else tasks:
            if not store.done(task):
                store.write(task, arrays(task))
        if tasks is None:
            store.finish()
    return folder


def contents(folder):
    """Every byte of a run; the lock is not part of it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def complete(tmp_path):
    return run(tmp_path / "run")


def test_what_is_written_is_what_is_read(complete):
    dataset, manifest = open_run(complete)
    assert manifest.state == "complete"
    assert manifest.settings == {"steps": 50, "gains": [0.5, 1.0]}
    assert manifest.results == {"0": 5, "1": 1}
    assert dataset.x.dims == ("noise", "seed", "time")
    assert dataset.x.dtype == np.float32
    np.testing.assert_array_equal(dataset.x.sel(noise="inside", seed=2), arrays((1, 2))["x"])
    np.testing.assert_array_equal(dataset.cost.sel(noise="outside", seed=1), arrays((0, 1))["cost"])
    # Any reader of Zarr sees the same.
    with xr.open_zarr(complete / "data.zarr") as other:
        xr.testing.assert_identical(other.load(), dataset)


def test_any_bits_come_back(tmp_path):
    """Also those of a NaN that is not the one that stands for what was not written."""
    odd = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    with begin(tmp_path) as store:
        store.write((0, 0), arrays((0, 0)) | {"cost": odd})
        assert store.verify(keep=True)["cost"][0, 0].view(np.uint64) == 0xFFF8000000000001


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, complete):
    other = run(tmp_path / "other", tasks=[(1, 0), (0, 2)])
    with pytest.raises(StoreError, match=r"not complete \(2 of 6 tasks\)"):
        open_run(other)
    # What a killed process may leave behind.
    (other / ".manifest.json.1.tmp").write_text("{")
    (other / "tasks" / ".noise-0_seed-0.json.1.tmp").write_text("{")
    (other / "data.zarr" / "x" / "c" / "0" / "2" / "0.partial").write_text("?")
    run(other)
    assert contents(other) == contents(complete)


def test_a_task_is_its_own_chunk_and_can_be_redone_alone(complete):
    before = contents(complete)
    assert len([name for name in before if name.startswith("data.zarr/x/c/")]) == 6
    with begin(complete) as store:
        store.redo((1, 2))
        assert not store.complete
        with pytest.raises(StoreError, match="1 of 6 tasks are not done, the first noise=inside,seed=2"):
            store.finish()
        store.write((1, 2), arrays((1, 2)))
        store.finish()
    assert contents(complete) == before


def test_tasks_may_be_written_side_by_side(tmp_path, complete):
    with begin(tmp_path / "other") as owner, ThreadPoolExecutor(6) as pool:
        attached = [RunStore(owner.folder) for _ in owner.tasks]
        list(pool.map(lambda store, task: store.write(task, arrays(task)), attached, owner.tasks))
        owner.finish()
    assert contents(tmp_path / "other") == contents(complete)


def test_a_folder_has_one_owner(tmp_path):
    with begin(tmp_path), pytest.raises(StoreError, match="in use by another process"):
        begin(tmp_path)
    with begin(tmp_path):
        pass


def _foreign(folder):
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")


def _a_file(folder):
    folder.write_text("mine")


@pytest.mark.parametrize(
    ("make", "message"),
    [(_foreign, "not empty, and not a selftune run"), (_a_file, "expected a folder, got a file")],
)
def test_what_is_not_ours_is_left_alone(tmp_path, make, message):
    make(tmp_path / "out")
    with pytest.raises(StoreError, match=message):
        begin(tmp_path / "out")
    with pytest.raises(StoreError, match="not a selftune run"):
        open_run(tmp_path / "out")
    with pytest.raises(StoreError, match="not a selftune run"):
        set_aside(tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(settings=SETTINGS | {"steps": 60}), "other settings: steps 50 there, 60 now"),
        (dict(settings=SETTINGS | {"seeds": 3}), "other settings: seeds missing there, 3 now"),
        (dict(kind="paper"), "another kind: 'test' there, 'paper' now"),
    ],
)
def test_another_run_is_refused(complete, changes, message):
    with pytest.raises(StoreError, match=message):
        begin(complete, **changes)


def test_other_arrays_are_another_version(complete):
    fewer = {name: variable for name, variable in LAYOUT.variables.items() if name != "cost"}
    with pytest.raises(StoreError, match=r"other arrays or coordinates \(cost\), as another version writes them"):
        begin(complete, layout=Layout(LAYOUT.task_dims, LAYOUT.coords, fewer))
    with pytest.raises(StoreError, match="other arrays or coordinates, as another version"):
        begin(complete, layout=Layout(LAYOUT.task_dims, {**LAYOUT.coords, "time": np.arange(5)}, LAYOUT.variables))


def test_only_a_complete_run_may_be_of_other_code(tmp_path, complete, monkeypatch):
    begun = run(tmp_path / "begun", tasks=[(0, 0)])
    monkeypatch.setattr(manifests, "versions", lambda: {"jax": "99"})
    with begin(complete) as store:
        assert store.complete
    with pytest.raises(StoreError, match=r"begun by other code.*jax '.*' there, '99' now"):
        begin(begun)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": ', r"manifest\.json: not readable as JSON"),
        ("[]", "not the manifest of a selftune run"),
        ('{"format": "other"}', "not the manifest of a selftune run"),
        ('{"format": "selftune run", "schema_version": 7}', "schema version 7 is unknown here"),
        ('{"format": "selftune run", "schema_version": 1}', "kind: Field required"),
    ],
)
def test_a_bad_manifest_is_refused(complete, text, message):
    (complete / "manifest.json").write_text(text)
    for use in (begin, open_run):
        with pytest.raises(StoreError, match=message):
            use(complete)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def remove(path):
    path.unlink()


def swap(path):
    path.write_bytes(path.with_name("noise-0_seed-1.json").read_bytes())


HARM_OF_A_TASK = [
    ("data.zarr/x/c/1/2/0", truncate, "task noise=inside,seed=2, array x: "),
    ("data.zarr/x/c/1/2/0", flip, "task noise=inside,seed=2, array x: "),
    ("data.zarr/x/c/0/1/0", remove, r"task noise=outside,seed=1, array x: damaged \(checksum"),
    ("data.zarr/cost/c/1/0", truncate, "task noise=outside,seed=1, array cost: "),
    ("tasks/noise-0_seed-2.json", remove, r"noise-0_seed-2\.json: missing in a complete run"),
    ("tasks/noise-0_seed-2.json", truncate, r"not the marker of task noise=outside,seed=2"),
    ("tasks/noise-0_seed-2.json", swap, r"not the marker of task noise=outside,seed=2"),
]


@pytest.mark.parametrize(
    ("file", "harm", "message"),
    [
        ("data.zarr/seed/c/0", remove, "coordinate seed: damaged"),
        ("data.zarr/x/zarr.json", truncate, r"data\.zarr: cannot be read"),
        ("data.zarr/seed/zarr.json", remove, r"data\.zarr: cannot be read"),
        ("data.zarr/zarr.json", remove, r"data\.zarr: cannot be read"),
    ],
)
def test_harm_of_the_whole_run_is_found_and_named(complete, file, harm, message):
    harm(complete / file)
    for use in (redo, open_run):
        with pytest.raises(StoreError, match=message):
            use(complete)


@pytest.mark.parametrize(("file", "harm", "message"), HARM_OF_A_TASK)
def test_harm_of_one_task_is_named_and_costs_this_task_alone(complete, file, harm, message):
    before = contents(complete)
    harm(complete / file)
    with pytest.raises(StoreError, match=f"{message}.*computes this task again"):
        open_run(complete)
    with begin(complete) as store:
        assert not store.complete
        assert len(store.pending()) == 1
    run(complete)
    assert contents(complete) == before


@pytest.mark.parametrize(("file", "harm", "message"), HARM_OF_A_TASK)
def test_redo_does_not_fail_because_of_the_task_that_it_repeats(complete, file, harm, message):
    before = contents(complete)
    with begin(complete) as store:
        harm(complete / file)
        store.redo((1, 0))
        assert len(store.pending()) == 2
        for task in store.pending():
            store.write(task, arrays(task))
        store.finish()
    assert contents(complete) == before


def test_a_marker_of_another_run_is_found(complete):
    path = complete / "tasks" / "noise-0_seed-2.json"
    store = RunStore(complete)
    other = arrays((0, 2)) | {"cost": np.float64(0)}
    store.write((0, 2), other)  # consistent in itself, but not what was completed
    assert json.loads(path.read_text())["task"] == "noise=outside,seed=2"
    with pytest.raises(StoreError, match=r"array cost: tasks/ and manifest\.json do not belong together"):
        open_run(complete)


def test_harm_of_a_complete_run_of_other_code_is_only_named(complete, monkeypatch):
    """Its tasks cannot be computed again: the run would mix two versions."""
    flip(complete / "data.zarr/x/c/0/1/0")
    monkeypatch.setattr(manifests, "versions", lambda: {"jax": "99"})
    with begin(complete) as store:
        assert store.complete
    with pytest.raises(StoreError, match="with the same version of selftune, computes this task again"):
        open_run(complete)


def test_harm_is_found_before_a_run_is_continued(tmp_path, complete, caplog):
    folder = run(tmp_path / "begun", tasks=[(0, 0), (0, 1)])
    flip(folder / "data.zarr/x/c/0/1/0")
    with begin(folder) as store:
        assert [store.done(task) for task in ((0, 0), (0, 1))] == [True, False]
    assert "task noise=outside,seed=1, array x" in caplog.text
    assert "this task is computed again" in caplog.text
    run(folder)
    assert contents(folder) == contents(complete)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("x"), r"arrays: expected \['cost', 'result_code', 'x'\], got"),
        (lambda a: a.update(x=np.zeros(5)), r"x: expected float32\[5\], got float64\[5\]"),
        (lambda a: a.update(x=np.zeros(4, np.float32)), r"x: expected float32\[5\], got float32\[4\]"),
    ],
)
def test_what_does_not_fit_is_not_written(tmp_path, change, message):
    with begin(tmp_path) as store:
        given = arrays((0, 0))
        change(given)
        with pytest.raises(ValueError, match=message):
            store.write((0, 0), given)
        assert not store.done((0, 0))


def test_layouts_are_checked():
    with pytest.raises(ValueError, match=r"got \['place'\] in x"):
        Layout(("seed",), {"seed": [0]}, {"x": Variable(("seed", "place"), "float64")})
    with pytest.raises(ValueError, match=r"expected every task dimension in x"):
        Layout(("seed",), {"seed": [0], "time": [0]}, {"x": Variable(("time",), "float64")})


def test_set_aside_deletes_nothing(complete):
    before = contents(complete)
    first = set_aside(complete)
    assert first is not None
    assert first.name == "run.old-1"
    assert set_aside(complete) is None
    run(complete)
    second = set_aside(complete)
    assert second is not None
    assert second.name == "run.old-2"
    assert contents(first) == contents(second) == before


def test_sources_are_told_apart_committed_or_not(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, text in ((first, "y = 1"), (second, "y = 2")):
        (folder / "part").mkdir(parents=True)
        (folder / "x.py").write_text("x = 1")
        (folder / "part" / "y.py").write_text(text)
    digests = {manifests.digest_of_sources(folder) for folder in (first, second)}
    assert len(digests) == 2
    begun = run(tmp_path / "begun", tasks=[(0, 0)])
    monkeypatch.setattr(manifests, "digest_of_sources", lambda folder: "other")
    with pytest.raises(StoreError, match=r"begun by other code.*source '[0-9a-f]{64}' there, 'other' now"):
        begin(begun)
    assert len(computed_otherwise(read_manifest(begun))) == 1


def test_the_manifest_says_where_it_comes_from(complete):
    git = open_run(complete)[1].git
    inside = (Path(__file__).parent.parent / ".git").exists()
    assert (git is not None and len(git.commit) == 40) == inside


def test_the_schema_of_the_manifest():
    snapshots.check("manifest.schema.json", json.dumps(Manifest.model_json_schema(), indent=2, ensure_ascii=False))


WRITER = """
import sys, time
from tests.test_store import begin, arrays
with begin(sys.argv[1]) as store:
    for task in store.tasks:
        if not store.done(task):
            print("next", flush=True)
            store.write(task, arrays(task))
            time.sleep(0.02)
    store.finish()
"""


def test_killed_at_any_moment(tmp_path, complete):
    """The lean one; `tests/experiments/test_paper.py` kills whole reproductions."""
    root, folder = Path(__file__).parent.parent, tmp_path / "killed"
    chance = random.Random(0)
    for begun in (1, 2, None):  # how many tasks this writer begins before it is killed
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], cwd=root, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if begun is None:
            assert process.wait() == 0
        else:
            assert [process.stdout.readline() for _ in range(begun)] == ["next\n"] * begun
            time.sleep(chance.uniform(0.0, 0.02))
            process.kill()
            assert process.wait() == -signal.SIGKILL  # it was alive
            with pytest.raises(StoreError, match="the run is not complete"):
                open_run(folder)
        process.stdout.close()
    assert contents(folder) == contents(complete)

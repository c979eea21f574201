"""Runs on an object store: against an S3 server on this machine, the same bytes as in a local folder."""

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr
from aiobotocore.client import AioBaseClient
from fsspec.asyn import sync as fsspec_sync
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem
from upath import UPath
from zarr.core.sync import sync as zarr_sync
from zarr.storage import FsspecStore

from selftune.storage import object_store
from selftune.storage.manifest import StoreError
from selftune.storage.store import Layout, RunStore, Variable, open_run, read_manifest, set_aside
from tests.test_store import arrays, begin, contents, flip, redo, remove, run, truncate


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch:
        server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        server.start()
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("runs")
        yield
        for fs in S3FileSystem._cache.values():  # else their open connections are a warning, and so an error
            if fs._s3 is not None:
                zarr_sync(fs._s3.close()) if fs.asynchronous else fsspec_sync(fs.loop, fs._s3.close)
        S3FileSystem.clear_instance_cache()
        server.stop()


@pytest.fixture
def url(server, request):
    return f"s3://runs/{request.node.name}/run"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return run(tmp_path_factory.mktemp("local") / "run")


@pytest.fixture(scope="module")
def complete(server):
    return run("s3://runs/complete/run")


def stored(url):
    """Every byte of a run, as another machine sees it; the lock is not part of it."""
    fs, root = fsspec.url_to_fs(url)
    fs.invalidate_cache()
    paths = [path for path in fs.find(root) if not path.endswith("/.lock")]
    return {path.removeprefix(f"{root}/"): data for path, data in (fs.cat(paths).items() if paths else ())}


def test_the_same_bytes_as_in_a_local_folder(complete, local):
    assert stored(complete) == contents(local)
    dataset, manifest = open_run(complete)
    assert manifest == read_manifest(local)
    xr.testing.assert_identical(dataset, open_run(local)[0])
    # Any reader of Zarr sees the same, by consolidated metadata: any warning is an error here.
    with xr.open_zarr(f"{complete}/data.zarr") as other:
        xr.testing.assert_identical(other.load(), dataset)
    with begin(complete) as store:
        assert store.complete


def test_any_url_that_fsspec_knows(tmp_path, local):
    xr.testing.assert_identical(open_run(run(f"memory:/{tmp_path}"))[0], open_run(local)[0])
    assert stored(f"memory:/{tmp_path}") == contents(local)
    # A folder on this machine is one, however it was given.
    for folder in (f"file://{local}", UPath(f"file://{local}")):
        assert RunStore(folder).folder == local


def test_an_interrupted_run_ends_as_an_uninterrupted_one(url, local):
    run(url, tasks=[(1, 0), (0, 2)])
    with pytest.raises(StoreError, match=r"not complete \(2 of 6 tasks\)"):
        open_run(url)
    with begin(url) as store:
        with pytest.raises(StoreError, match="4 of 6 tasks are not done, the first noise=outside,seed=0"):
            store.finish()
        store.write((0, 0), arrays((0, 0)))
        store.redo((1, 0))
        assert [store.done(task) for task in store.tasks] == [True, False, True, False, False, False]
        assert store.pending() == [(0, 1), (1, 0), (1, 1), (1, 2)]
    run(url)
    assert stored(url) == contents(local)


def test_what_other_machines_write_is_seen(url):
    """fsspec remembers listings; the store must not."""
    with begin(url) as store:
        store.write((0, 0), arrays((0, 0)))
        elsewhere = fsspec.filesystem("s3")
        assert elsewhere is not store.folder.fs
        assert store.pending() == store.tasks[1:]
        elsewhere.pipe_file(store._marker_path((0, 1)).path, b"{}")
        assert store.pending() == store.tasks[2:]
        elsewhere.pipe_file(store._marker_path((0, 2)).path, b"{}")
        assert store.done((0, 2))


def test_a_task_is_one_request_an_array_and_one_for_its_marker(complete, monkeypatch):
    requests, call = Counter(), AioBaseClient._make_api_call

    def counting(self, operation, parameters):
        requests[operation] += 1
        return call(self, operation, parameters)

    monkeypatch.setattr(AioBaseClient, "_make_api_call", counting)
    store = RunStore(complete)
    assert requests == {"GetObject": 5}  # the manifest, the metadata of all arrays, and three coordinates
    requests.clear()
    store.write((0, 0), arrays((0, 0)))
    assert requests == {"PutObject": 4}
    requests.clear()
    store.verify()
    assert requests == {"ListObjectsV2": 1, "GetObject": 6 * 4}


WRITER = """
import sys
from tests.test_store import begin, arrays
with begin(sys.argv[1]) as store:
    for task in store.tasks:
        store.write(task, arrays(task))
        print("wrote", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_killed_owner_leaves_its_lock_and_what_it_wrote(url, local):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, url],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # As this process computes, else it is "begun by other code".
        env=os.environ | {"JAX_ENABLE_X64": "1"},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "wrote\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL  # it was alive
    with pytest.raises(
        StoreError, match=r"in use by another process \(owner [0-9a-f]{32}\).*delete s3://.*/run/\.lock"
    ):
        begin(url)
    with pytest.raises(StoreError, match="in use by another process"):
        set_aside(url)
    (UPath(url) / ".lock").unlink()
    with begin(url) as store:
        assert store.pending() == store.tasks[1:]
    run(url)
    assert stored(url) == contents(local)


def test_a_folder_has_one_owner(url):
    with begin(url):
        with pytest.raises(StoreError, match="in use by another process"):
            begin(url)
        assert UPath(url, ".lock").exists()
        # Deleted by hand, and taken by another: the first must not delete that one's.
        UPath(url, ".lock").write_bytes(b"another")
    assert UPath(url, ".lock").read_bytes() == b"another"


def test_two_that_begin_at_once(url, monkeypatch):
    """Neither sees a lock: the store itself lets one create it."""
    held = begin(url)
    monkeypatch.setattr(object_store, "exists", lambda path: False)
    with pytest.raises(StoreError, match="in use by another process"):
        object_store.Lock(UPath(url))
    monkeypatch.undo()
    held.__exit__()
    assert not UPath(url, ".lock").exists()


def test_a_store_without_conditions(url, monkeypatch):
    call = S3FileSystem._call_s3

    async def without(self, method, *arguments, **options):
        if "IfNoneMatch" in options:
            raise OSError(errno.ENOSYS, "A header you provided implies functionality that is not implemented")
        return await call(self, method, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", without)
    with begin(url), pytest.raises(StoreError, match="in use by another process"):
        begin(url)


@pytest.mark.parametrize("cut", ["manifest.json", "data.zarr/x/zarr.json", "data.zarr/zarr.json"])
def test_half_made_arrays_are_made_again(tmp_path, local, monkeypatch, cut):
    url, put = f"memory:/{tmp_path}", MemoryFileSystem.pipe_file

    def failing(self, path, data, **options):
        if path == f"{tmp_path}/{cut}":
            raise PermissionError("Access Denied")
        return put(self, path, data, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", failing)
    with pytest.raises(StoreError, match=r"memory://.*\(PermissionError: Access Denied\)"):
        begin(url)
    monkeypatch.undo()
    assert cut not in stored(url)
    run(url)
    assert stored(url) == contents(local)


@pytest.mark.parametrize(
    ("file", "harm", "message"),
    [
        ("data.zarr/x/c/1/2/0", flip, "task noise=inside,seed=2, array x: "),
        ("data.zarr/x/c/0/1/0", remove, r"task noise=outside,seed=1, array x: damaged \(checksum"),
        ("data.zarr/seed/c/0", remove, "coordinate seed: damaged"),
        ("data.zarr/zarr.json", remove, r"data\.zarr: cannot be read"),
        ("data.zarr/zarr.json", truncate, r"data\.zarr: cannot be read"),
        ("tasks/noise-0_seed-2.json", remove, r"noise-0_seed-2\.json: missing in a complete run"),
        ("tasks/noise-0_seed-2.json", truncate, r"not the marker of task noise=outside,seed=2"),
        ("manifest.json", truncate, r"manifest\.json: not readable as JSON"),
    ],
)
def test_harm_is_found_and_named(tmp_path, file, harm, message):
    url = f"memory:/{tmp_path}"
    before = stored(run(url))
    harm(UPath(url, file))
    with pytest.raises(StoreError, match=message):
        open_run(url)
    if "seed=2" in message or "seed=1" in message or "seed-2" in message:
        run(url)  # only the damaged task is computed again
        assert stored(url) == before
    else:
        with pytest.raises(StoreError, match=message):
            redo(url)
    assert ".lock" not in {path.name for path in UPath(url).iterdir()}


def test_harm_is_found_on_s3(complete):
    path = UPath(complete, "data.zarr", "x", "c", "1", "2", "0")
    good = path.read_bytes()
    flip(path)
    with pytest.raises(StoreError, match="task noise=inside,seed=2, array x: "):
        open_run(complete)
    run(complete)
    assert path.read_bytes() == good
    open_run(complete)


def test_a_store_that_is_not_reached_does_not_count_as_damage(tmp_path, monkeypatch):
    url = f"memory:/{tmp_path}"
    before = stored(run(url))
    fs = UPath(url).fs
    cat, cat_async = type(fs).cat_file, FsspecStore.get

    async def no_chunk(store, key, *arguments, **options):
        if key == "x/c/1/2/0":
            raise ConnectionResetError("no answer")
        return await cat_async(store, key, *arguments, **options)

    def no_file(fs, path, *arguments, **options):
        if path.endswith("x/c/1/2/0"):
            raise ConnectionResetError("no answer")
        return cat(fs, path, *arguments, **options)

    monkeypatch.setattr(FsspecStore, "get", no_chunk)
    monkeypatch.setattr(type(fs), "cat_file", no_file)
    with pytest.raises(StoreError, match="was not reached"):
        begin(url)
    monkeypatch.undo()
    assert stored(url) == before


def test_what_is_not_ours_is_left_alone(url):
    UPath(url, "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match="not empty, and not a selftune run"):
        begin(url)
    for use in (open_run, set_aside):
        with pytest.raises(StoreError, match="not a selftune run"):
            use(url)
    with pytest.raises(StoreError, match="expected a folder, got a file"):
        begin(f"{url}/thesis.tex")
    assert stored(url) == {"thesis.tex": b"mine"}
    # What the web pages of object stores make of an empty folder.
    fsspec.filesystem("s3").pipe_file("runs/empty/", b"")
    with begin("s3://runs/empty/") as store:
        assert store.pending() == store.tasks


def test_set_aside_loses_nothing(url):
    assert set_aside(url) is None
    before = stored(run(url, tasks=[(0, 1)]))
    UPath(f"{url}.old-1", "mine").write_bytes(b"")
    assert str(set_aside(url)) == f"{url}.old-2"
    assert not stored(url)
    assert stored(f"{url}.old-2") == before


@pytest.mark.parametrize(
    ("folder", "missing", "error", "message"),
    [
        (
            "nowhere://bucket/run",
            None,
            ValueError,
            "folder: expected a path, or a URL that fsspec supports, got 'nowhere:",
        ),
        (Path("s3://bucket/run"), None, ValueError, "folder: expected a URL as a str, got PosixPath.'s3:/bucket/run'"),
        ("s3://bucket", None, ValueError, "expected a folder in a bucket, got the bucket itself, 's3://bucket'"),
        ("s3://nobody/run", None, StoreError, "s3://nobody/run.*FileNotFoundError: The specified bucket does not"),
        ("gs://bucket/run", "gcsfs", StoreError, "gs://bucket/run: its driver is not installed: .*install gcsfs"),
        ("s3://bucket/run", "upath", StoreError, r"s3://bucket/run: .*pip install 'selftune\[cluster\]'"),
    ],
)
def test_a_folder_that_cannot_be(server, monkeypatch, folder, missing, error, message):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(error, match=message):
        begin(folder)


def test_any_bits_come_back(url):
    """Also of a chunk that equals the fill value, which Zarr would leave out."""
    layout = Layout(("seed",), {"seed": np.arange(2)}, {"x": Variable(("seed",), "float64")})
    with begin(url, layout=layout) as store:
        store.write((0,), {"x": np.float64(np.nan)})
        assert np.isnan(store.verify(keep=True)["x"]).all()
    assert "data.zarr/x/c/0" in stored(url)

"""Stored runs after a loss of power: a disk keeps only the data that were written to it by fsync."""

import os
import stat
from pathlib import Path

import pytest

from selftune.storage import files
from selftune.storage.store import open_run
from tests.test_store import arrays, begin, contents, run


class Disk:
    """A model of a disk that loses everything that fsync has not written: the content of a file, and the names in a
    folder, are those of its last fsync."""

    def __init__(self, monkeypatch):
        self.content: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.kept: list[int] = []
        self.count = 0
        self.fails_after: int | None = None
        monkeypatch.setattr(os, "fsync", self.record)

    def record(self, descriptor):
        if self.count == self.fails_after:
            raise PowerLossError
        self.count += 1
        self.kept.append(os.dup(descriptor))  # an open file keeps its number, so that no other file gets it
        about = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if stat.S_ISDIR(about.st_mode):
            self.names[about.st_ino] = {name.name: name.inode() for name in os.scandir(path)}
        else:
            self.content[about.st_ino] = path.read_bytes()

    def after_power_loss(self, folder, to):
        """Write what is left of a folder to another place."""
        self._restore(folder.stat().st_ino, to)
        return to

    def _restore(self, number, to):
        if number in self.content:
            to.write_bytes(self.content[number])
            return
        names = self.names.get(number)
        if names is None:  # a file or a folder whose content never came to the disk
            to.write_bytes(b"")
            return
        to.mkdir()
        for name, inner in names.items():
            self._restore(inner, to / name)

    def close(self):
        for descriptor in self.kept:
            os.close(descriptor)


class PowerLossError(BaseException):
    """The power fails; nothing more is written."""


@pytest.fixture
def disk(monkeypatch):
    made = Disk(monkeypatch)
    yield made
    made.close()


pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the model of a disk needs Linux's /proc")


def test_a_complete_run_is_on_the_disk(tmp_path, disk):
    folder = run(tmp_path / "run")
    left = disk.after_power_loss(tmp_path, tmp_path / "after") / "run"
    assert contents(left) == contents(folder)
    assert open_run(left)[1].state == "complete"


def test_every_finished_task_is_kept_whenever_the_power_fails(tmp_path, disk):
    whole = contents(run(tmp_path / "whole"))
    total = disk.count
    for cut in (*range(0, total, 17), total):
        place = tmp_path / str(cut)
        place.mkdir()
        disk.count, disk.fails_after = 0, cut
        finished = []
        try:
            with begin(place / "run") as store:
                for task in store.tasks:
                    store.write(task, arrays(task))
                    finished.append(task)
                store.finish()
        except PowerLossError:
            pass
        disk.fails_after = None
        if place.stat().st_ino not in disk.names:  # not even the name of the run's folder came to the disk
            assert not finished
            continue
        left = disk.after_power_loss(place, tmp_path / f"after-{cut}") / "run"
        with begin(left) as store:
            assert set(finished).isdisjoint(store.pending())
        assert contents(run(left)) == whole


def test_a_file_that_was_written_is_on_the_disk(tmp_path, disk):
    files.write(tmp_path / "new" / "folder" / "file", b"content")
    left = disk.after_power_loss(tmp_path, tmp_path / "after")
    assert (left / "new" / "folder" / "file").read_bytes() == b"content"

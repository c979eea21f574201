"""The answers of the C compiler that later processes read: a wrong one would choose a wrong program or a wrong flag."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from selftune.native.c import compilation, stored

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="answers are kept on Linux only")

FAKE = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **given) {
  for (int i = 1; i < count; i++)
    if (!strcmp(given[i], "--version")) return puts(VERSION) < 0;
  given[0] = GCC;
  return execv(GCC, given);
}
"""
"""A compiler with a version of its own, which is a program and no script."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path / "cache"))
    for name in stored.REDIRECTING:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags : fpu sse2\n\nprocessor : 1\nflags : fpu sse2\n")
    monkeypatch.setattr(stored, "CPU_INFO", tmp_path / "cpuinfo")
    forget()
    yield tmp_path / "cache"
    forget()


def forget():
    """Forget what this process has asked, as if the next call were in another process."""
    compilation._identity.cache_clear()
    compilation._accepts.cache_clear()


def install(folder, version, name="gcc"):
    folder.mkdir(exist_ok=True)
    (folder / "fake.c").write_text(FAKE)
    made = folder / f"new-{name}"
    defined = [f'-DVERSION="{version}"', f'-DGCC="{shutil.which("gcc")}"']
    subprocess.run(["gcc", *defined, str(folder / "fake.c"), "-o", str(made)], check=True)
    made.replace(folder / name)
    return str(folder / name)


@pytest.fixture
def gcc(tmp_path):
    return install(tmp_path / "bin", "fake 1.1")


def identity(command):
    """Return the identity of a compiler as a new process gets it, and how often it started the compiler."""
    forget()
    starts, run = [], subprocess.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *given, **options: starts.append(given) or run(*given, **options))
        return compilation._identity((command,) if isinstance(command, str) else tuple(command)), len(starts)


def answers(cache):
    return sorted(cache.glob("*.answer"))


def test_a_second_process_does_not_start_the_compiler(cache, gcc, monkeypatch):
    first, starts = identity(gcc)
    assert starts == 2
    assert identity(gcc) == (first, 0)
    assert compilation._accepts((gcc,), "-fno-tree-pre")
    forget()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("started the compiler"))
    assert compilation._accepts((gcc,), "-fno-tree-pre")
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in answers(cache))


def test_an_upgraded_compiler_is_asked_again(gcc, tmp_path):
    first, _ = identity(gcc)
    before = os.stat(gcc)
    install(tmp_path / "bin", "fake 1.2")  # as many bytes as before
    os.utime(gcc, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(gcc).st_size == before.st_size
    second, starts = identity(gcc)
    assert second != first
    assert starts == 2


def test_a_compiler_that_is_written_over_is_asked_again(gcc, tmp_path):
    first, _ = identity(gcc)
    other = install(tmp_path / "other", "fake 1.2")
    before = os.stat(gcc)
    with open(gcc, "r+b") as file, open(other, "rb") as content:  # the same inode
        file.write(content.read())
    os.utime(gcc, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (os.stat(gcc).st_ino, os.stat(gcc).st_size) == (before.st_ino, before.st_size)
    assert identity(gcc)[0] != first


def test_another_compiler_of_the_same_name_is_asked(tmp_path, monkeypatch):
    path, found = os.environ["PATH"], []
    for version in ("1.1", "1.2"):
        install(tmp_path / version, version)
        monkeypatch.setenv("PATH", f"{tmp_path / version}:{path}")
        found.append(identity("gcc"))
    assert found[0][0] != found[1][0]
    assert found[1][1] == 2


def test_another_target_of_a_link_is_asked(tmp_path, cache):
    link, found = tmp_path / "cc", []
    for version in ("1.1", "1.2"):
        link.unlink(missing_ok=True)
        link.symlink_to(install(tmp_path / version, version))
        found.append(identity(str(link))[0])
    assert found[0] != found[1]
    assert len(answers(cache)) == 2


@pytest.mark.parametrize("kind", ["script", "ccache"])
def test_a_wrapper_is_always_asked(tmp_path, cache, kind):
    """Its own file stays the same when the compiler behind it is replaced."""
    if kind == "script":
        wrapper = tmp_path / "gcc"
        wrapper.write_text('#!/bin/sh\nexec gcc "$@"\n')
        wrapper.chmod(0o755)
    else:
        wrapper = tmp_path / "gcc"
        wrapper.symlink_to(install(tmp_path / "bin", "1.1", "ccache"))
    assert [identity(str(wrapper))[1] for _ in range(2)] == [2, 2]
    assert identity([sys.executable, "-c", ""])[1] == 2
    assert not answers(cache)


@pytest.mark.parametrize("option", ["@options", "-specs=mine", "-B/tmp", "-fplugin=mine.so", "-include", "ccache"])
def test_an_option_that_names_a_file_is_always_asked(gcc, cache, option):
    identity([gcc, option])
    assert not answers(cache)
    assert [identity([gcc, "-m64", "-march=native", "-O2"])[1] for _ in range(2)] == [2, 0]


def test_the_environment_of_the_compiler(gcc, cache, monkeypatch):
    identity(gcc)
    monkeypatch.setenv("CPATH", "/somewhere")
    assert identity(gcc)[1] == 2
    monkeypatch.setenv("COMPILER_PATH", "/somewhere")
    assert [identity(gcc)[1] for _ in range(2)] == [2, 2]
    assert len(answers(cache)) == 2


def test_an_environment_that_is_not_text(gcc, monkeypatch):
    monkeypatch.setenv("CPATH", os.fsdecode(b"/caf\xe9"))
    assert [identity(gcc)[1] for _ in range(2)] == [2, 0]


def test_a_user_without_a_home_folder(gcc, monkeypatch):
    def refuse():
        raise RuntimeError("Could not determine home directory.")

    for name in ("SELFTUNE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    assert identity(gcc)[1] == 2
    assert compilation._trusted_folder() is None


def test_another_processor_is_asked(gcc, tmp_path, monkeypatch):
    identity(gcc)
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags : fpu sse2 avx2\n\n")
    assert identity(gcc)[1] == 2
    assert identity(gcc)[1] == 0
    (tmp_path / "cpuinfo").write_text("something else\n")
    assert [identity(gcc)[1] for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("harm", ["empty", "truncated", "changed", "binary", "of another question"])
def test_a_damaged_answer_is_not_read(gcc, cache, harm):
    right, _ = identity(gcc)
    (path,) = answers(cache)
    good = path.read_bytes()
    if harm == "of another question":
        assert compilation._accepts((gcc,), "-O1")
        (other,) = set(answers(cache)) - {path}
        bad = other.read_bytes()
    else:
        changed = good.replace(right.encode(), b"0" * len(right))
        bad = {"empty": b"", "truncated": good[:80], "changed": changed, "binary": b"\xff\n\xfe"}[harm]
    path.write_bytes(bad)
    assert identity(gcc) == (right, 2)
    assert path.read_bytes() == good
    assert identity(gcc) == (right, 0)


@pytest.mark.parametrize("harm", [0o620, 0o602, "owner"])
def test_an_answer_that_others_could_have_written_is_not_read(gcc, cache, harm):
    right, _ = identity(gcc)
    (path,) = answers(cache)
    if harm == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(path, 12345, -1)
    else:
        path.chmod(harm)
    assert identity(gcc) == (right, 2)
    assert path.stat().st_uid == os.geteuid()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_can_write_to_is_not_read(gcc, cache):
    identity(gcc)
    cache.chmod(0o777)
    assert [identity(gcc)[1] for _ in range(2)] == [2, 2]


def test_a_no_is_not_kept(gcc, cache, monkeypatch):
    """A full disk, or too little memory, is another reason why the compiler can fail."""
    assert not compilation._accepts((gcc,), "-no-such-option")
    monkeypatch.setattr(shutil, "which", lambda name: gcc)
    identity("false")
    assert not answers(cache)


def test_a_folder_that_cannot_be_written_to(gcc, cache, monkeypatch):
    def refuse(*given, **options):
        raise PermissionError

    monkeypatch.setattr(stored.files, "write", refuse)
    assert [identity(gcc)[1] for _ in range(2)] == [2, 2]
    monkeypatch.setenv("SELFTUNE_CACHE", "/proc/cache")
    assert identity(gcc)[1] == 2


def test_many_at_the_same_time(gcc, cache):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: compilation._identity.__wrapped__((gcc,)), range(32)))
    assert set(found) == {identity(gcc)[0]}
    assert [path.suffix for path in cache.iterdir()] == [".answer"]

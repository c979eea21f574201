"""The C compiler and the cache of what it made."""

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selftune.native.c import compilation


class TestBuild:
    SOURCE = "int answer(void);\nint answer(void) { return 42; }\n"

    def test_once_for_each_source(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
        assert compilation.build(self.SOURCE).answer() == 42
        (made,) = tmp_path.glob("*.so")
        monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("compiled again"))
        assert compilation.build(self.SOURCE).answer() == 42
        assert list(tmp_path.glob("*.so")) == [made]

    def test_a_refusal_of_the_compiler_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
        with pytest.raises(compilation.CompilerError, match=r"(?s)rejected a program:\n.*error"):
            compilation.build("int answer(void) { return ; nonsense }")
        assert [path for path in tmp_path.iterdir() if path.suffix != ".answer"] == []  # nothing half-made

    def test_a_cache_that_cannot_be_written_to(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path / "file" / "cache"))
        assert compilation.build(self.SOURCE.replace("42", "43")).answer() == 43

    def test_the_compiler_that_is_named(self, monkeypatch):
        monkeypatch.setenv("CC", "gcc -m64")
        assert compilation.compiler() == ["gcc", "-m64"]
        for bad in ("gccc", '"gcc'):
            monkeypatch.setenv("CC", bad)
            with pytest.raises(
                compilation.CompilerError, match=f"CC: expected the command of a C compiler, got '{bad}'"
            ):
                compilation.compiler()


class TestCache:
    """A library of the cache runs in this process, so it must be whole, and nobody else may have written it."""

    SOURCE = "int forty_two(void);\nint forty_two(void) { return 42; }\n"
    PLANTED = "int forty_two(void);\nint forty_two(void) { return 13; }\n"

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr(compilation, "_load", compilation._load.__wrapped__)
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def library(self, cache):
        (library,) = cache.glob("*.so")
        return library

    @pytest.mark.parametrize("harm", ["truncated", "empty", "flipped", "other"])
    def test_a_damaged_library_is_compiled_again(self, cache, harm):
        compilation.build(self.SOURCE)
        library = self.library(cache)
        good = library.read_bytes()
        library.unlink()  # what is loaded stays as it is
        bad = {"truncated": good[:4096], "empty": b"", "flipped": good.replace(b"\x2a", b"\x0d"), "other": b"damaged"}
        library.write_bytes(bad[harm])
        assert compilation.build(self.SOURCE).forty_two() == 42
        assert self.library(cache).read_bytes() == good

    def test_a_library_that_was_put_there_is_not_loaded(self, cache, tmp_path, monkeypatch):
        compilation.build(self.SOURCE)
        library = self.library(cache)
        library.unlink()
        compilation.build(self.PLANTED)
        self.library(cache).rename(library)
        shutil.copytree(cache, tmp_path / "copy")  # the system does not load a second file from the same place
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path / "copy"))
        assert compilation.build(self.SOURCE).forty_two() == 42

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_a_library_of_another_user_is_not_loaded(self, cache, monkeypatch):
        compilation.build(self.SOURCE)
        library = self.library(cache)
        os.chown(library, 12345, -1)
        calls, run = [], subprocess.run
        monkeypatch.setattr(subprocess, "run", lambda *given, **options: calls.append(given) or run(*given, **options))
        compilation.build(self.SOURCE)
        assert len(calls) == 1
        assert self.library(cache).stat().st_uid == 0

    @pytest.mark.parametrize("mode", [0o620, 0o602])
    def test_a_library_that_others_can_write_to_is_not_loaded(self, cache, mode):
        compilation.build(self.SOURCE)
        self.library(cache).chmod(mode)
        assert compilation.build(self.SOURCE).forty_two() == 42
        assert self.library(cache).stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
    def test_a_folder_that_others_can_write_to_is_not_used(self, cache, mode):
        compilation.build(self.SOURCE)
        before = self.library(cache).stat().st_mtime_ns
        cache.chmod(mode)
        with pytest.warns(RuntimeWarning, match=r"this folder is writable for other users.*chmod go-w"):
            assert compilation.build(self.SOURCE).forty_two() == 42
        assert self.library(cache).stat().st_mtime_ns == before

    def test_a_folder_of_another_user_is_not_used(self, cache, monkeypatch):
        compilation.build(self.SOURCE)
        if os.geteuid() == 0:
            os.chown(cache, 12345, -1)
        else:
            owner = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.warns(RuntimeWarning, match="this folder belongs to another user"):
            assert compilation.build(self.SOURCE).forty_two() == 42

    def test_the_umask_does_not_open_the_cache(self, cache):
        before = os.umask(0o000)
        try:
            compilation.build(self.SOURCE)
        finally:
            os.umask(before)
        assert cache.stat().st_mode & 0o777 == 0o700
        assert self.library(cache).stat().st_mode & 0o777 == 0o600

    def test_a_library_is_on_the_disk_before_it_has_its_name(self, cache, monkeypatch):
        order = []
        fsync, replace = os.fsync, Path.replace
        monkeypatch.setattr(os, "fsync", lambda file: order.append(kind(file)) or fsync(file))
        monkeypatch.setattr(Path, "replace", lambda path, to: order.append("replace") or replace(path, to))
        compilation.build(self.SOURCE)
        assert order[-3:] == ["file", "replace", "folder"]

    def test_the_cpu_is_part_of_the_key(self, cache, tmp_path, monkeypatch):
        """A compiler with -march=native makes other programs on another CPU; here, a script plays both CPUs."""
        script = tmp_path / "compiler"
        script.write_text('#!/bin/sh\nexec gcc $CPU "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CC", f"{script} -march=native")
        for cpu in ("-DAVX=1", "-DAVX=2"):
            monkeypatch.setenv("CPU", cpu)
            compilation._identity.cache_clear()
            compilation.build(self.SOURCE)
        assert len({path.name.partition("-")[0] for path in cache.glob("*.so")}) == 2
        compilation._identity.cache_clear()

    def test_builds_of_killed_processes_are_removed(self, cache):
        cache.mkdir(mode=0o700)
        for name, age in {"old": 2 * compilation.OLD, "new": 0}.items():
            work = cache / f"{compilation.BUILD}{name}"
            work.mkdir()
            (work / "program.c").write_text("")
            os.utime(work, (time.time() - age, time.time() - age))
        compilation.build(self.SOURCE)
        assert [path.name for path in cache.glob(".*")] == [f"{compilation.BUILD}new"]

    def test_a_library_that_cannot_be_loaded_is_told(self, monkeypatch):
        def refuse(path):
            raise OSError("failed to map segment")

        monkeypatch.setattr(compilation, "_load", refuse)
        with pytest.raises(compilation.CompilerError, match=r"cannot be loaded.*set SELFTUNE_CACHE to another folder"):
            compilation.build(self.SOURCE)


def kind(descriptor):
    return "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"


class TestZig:
    """The extra `compiler` brings a C compiler, which is used where there is no other."""

    @pytest.fixture(autouse=True)
    def _no_other(self, monkeypatch):
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(compilation.shutil, "which", lambda name: None)

    def test_it_is_found_by_itself(self, monkeypatch):
        monkeypatch.setattr(compilation, "has_zig", lambda: True)
        assert compilation.compiler() == [sys.executable, "-m", "ziglang", "cc"]

    def test_the_error_names_the_extra(self, monkeypatch):
        monkeypatch.setattr(compilation, "has_zig", lambda: False)
        with pytest.raises(compilation.CompilerError, match=r"pip install 'selftune\[compiler\]'"):
            compilation.compiler()

    @pytest.mark.slow
    @pytest.mark.skipif(not compilation.has_zig(), reason="ziglang is not installed")
    def test_it_compiles(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path / "cache"))
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        compilation._accepts.cache_clear()
        source = "double root(double x);\n#include <math.h>\ndouble root(double x) { return sqrt(x); }\n"
        for flags in (compilation.FLAGS, compilation.vector_flags()):
            root = compilation.build(source, flags=flags).root
            root.restype, root.argtypes = ctypes.c_double, [ctypes.c_double]
            assert root(2.25) == 1.5
        assert not list((tmp_path / "here").iterdir())  # the user's folder stays as it is

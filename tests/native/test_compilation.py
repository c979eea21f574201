"""The C compiler and the cache of what it made."""

import ctypes
import sys

import pytest

from selftune.native.c import compilation


class TestBuild:
    SOURCE = "int answer(void);\nint answer(void) { return 42; }\n"

    def test_once_for_each_source(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
        assert compilation.build(self.SOURCE).answer() == 42
        (made,) = tmp_path.iterdir()
        monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("compiled again"))
        assert compilation.build(self.SOURCE).answer() == 42
        assert list(tmp_path.iterdir()) == [made]

    def test_a_refusal_of_the_compiler_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
        with pytest.raises(compilation.CompilerError, match=r"(?s)rejected a program:\n.*error"):
            compilation.build("int answer(void) { return ; nonsense }")
        assert list(tmp_path.iterdir()) == []  # nothing half-made

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


class TestZig:
    """The extra `compiler` brings a C compiler, which is used where there is no other."""

    @pytest.fixture(autouse=True)
    def _no_other(self, monkeypatch):
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(compilation.shutil, "which", lambda name: None)

    def test_it_is_found_by_itself(self, monkeypatch):
        monkeypatch.setattr(compilation, "_has_zig", lambda: True)
        assert compilation.compiler() == [sys.executable, "-m", "ziglang", "cc"]

    def test_the_error_names_the_extra(self, monkeypatch):
        monkeypatch.setattr(compilation, "_has_zig", lambda: False)
        with pytest.raises(compilation.CompilerError, match=r"pip install 'selftune\[compiler\]'"):
            compilation.compiler()

    @pytest.mark.skipif(not compilation._has_zig(), reason="ziglang is not installed")
    def test_it_compiles(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
        source = "double root(double x);\n#include <math.h>\ndouble root(double x) { return sqrt(x); }\n"
        for flags in (compilation.FLAGS, compilation.vector_flags()):
            root = compilation.build(source, flags=flags).root
            root.restype, root.argtypes = ctypes.c_double, [ctypes.c_double]
            assert root(2.25) == 1.5


def test_a_damaged_cache_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
    text = "int forty_two(void);\nint forty_two(void) { return 42; }\n"
    monkeypatch.setattr(compilation, "_load", compilation._load.__wrapped__)
    assert compilation.build(text).forty_two() == 42
    (library,) = tmp_path.glob("*.so")
    library.unlink()  # what is loaded stays as it is
    library.write_bytes(b"damaged")
    assert compilation.build(text).forty_two() == 42

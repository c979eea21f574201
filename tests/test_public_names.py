"""Public names: imported when they are used, and declared in the same way for Python and for type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import selftune as st


def declared():
    """The names that type checkers see, with their modules."""
    tree = ast.parse(Path(st.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname: statement.module or ""
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def test_type_checkers_and_python_see_the_same_names():
    assert declared() == st._HOMES
    assert set(st._HOMES) <= set(dir(st))


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'Simulate'"):
        _ = st.Simulate


@pytest.mark.parametrize("command", [["-c", "import selftune"], ["-m", "selftune", "--help"]])
def test_neither_the_import_nor_the_help_loads_jax(command):
    done = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "selftune" in loaded or "selftune.foundation" in loaded
    assert not loaded & {"jax", "equinox", "scipy", "zarr", "matplotlib", "plotly"}

"""The installed JAX computes right, and one that is known not to is called by name."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from selftune.foundation import jax_releases
from selftune.foundation.jax_releases import KNOWN_BAD

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.versions


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A new Python, with XLA as it comes."""
    environment = os.environ | {"XLA_FLAGS": "", "JAX_ENABLE_X64": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_xla_computes_what_numpy_does():
    done = run("-m", "tests.canary")
    assert done.returncode == 0, done.stderr


def test_the_known_bad_releases_are_excluded_by_name():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (jax,) = (text for text in dependencies if re.match(r"jax\b", text))
    assert jax == "jax>=0.9," + ",".join(f"!={bad}" for bad in KNOWN_BAD)
    pinned = re.findall(r"^jax(?:lib)?==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(pinned) >= 2
    assert not set(pinned) & set(KNOWN_BAD)


FAKE = """
from importlib import metadata
version = metadata.version
metadata.version = lambda name: {bad!r} if name == "jaxlib" else version(name)
"""


@pytest.mark.parametrize("bad", ["0.10.2", "0.11.1"])
def test_the_import_warns_once(bad):
    done = run(
        "-c",
        FAKE.format(bad=bad) + "import selftune\nimport selftune.realtime.agent, selftune.native.lowering.from_jaxpr",
    )
    assert done.returncode == 0, done.stderr
    (warning,) = re.findall(r"<string>:\d+: RuntimeWarning: (.*)", done.stderr)
    fault = KNOWN_BAD[bad]
    assert warning.startswith(f"jaxlib {bad} {fault.what} ({fault.issue}). Install another release: pip install")


def test_info_warns():
    command = "import sys\nfrom selftune.__main__ import main\nsys.argv = ['selftune', 'info', '--json']\nmain()"
    done = run("-W", "ignore", "-c", FAKE.format(bad="0.10.2") + command)
    assert json.loads(done.stdout)["warning"].startswith("jaxlib 0.10.2 computes wrong numbers")


def test_without_a_known_fault_nothing_is_said(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.12.0.1")
    assert jax_releases.complaint() == ""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.10.2+cuda12")
    assert (
        "pip install --upgrade 'jax>=0.9,!=0.9.1,!=0.9.2,!=0.10.0,!=0.10.1,!=0.10.2,!=0.11.1'"
        in jax_releases.complaint()
    )

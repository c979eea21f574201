"""What a release needs agrees: version, tag, Pythons, workflows, citation, and the files in the package."""

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from selftune.cli.new_command import FILES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def commands(workflow):
    return [step["run"] for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"] if "run" in step]


def version(*arguments):
    return subprocess.run([ROOT / ".ci" / "version", *arguments], capture_output=True, text=True)


def test_one_version():
    assert version().stdout == f"{PROJECT['version']}\n"
    assert metadata.version("selftune") == PROJECT["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == PROJECT["version"]


def test_a_tag_of_another_version_is_refused():
    assert version(f"v{PROJECT['version']}").returncode == 0
    for tag in (PROJECT["version"], f"v{PROJECT['version']}.1", "v", ""):
        refused = version(tag)
        assert refused.returncode == 1
        assert refused.stderr == f"tag {tag}: expected v{PROJECT['version']}, the version in pyproject.toml\n"
    assert commands("release")[0] == '.ci/version "$GITHUB_REF_NAME"'


def test_the_tested_pythons_are_the_promised_ones():
    promised = [
        name.rpartition(" ")[2]
        for name in PROJECT["classifiers"]
        if name.startswith("Programming Language :: Python :: 3.")
    ]
    assert WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("workflow", ["test", "release"])
def test_the_workflows_run_our_own_commands(workflow):
    targets = (ROOT / "Makefile").read_text().split(".PHONY: ")[1].splitlines()[0].split()
    called = [command.split()[1] for command in commands(workflow) if command.startswith("make ")]
    assert called == ["check", "test", "wheel"]
    assert set(called) <= set(targets)
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}


def test_the_example_is_one_copy():
    for name in FILES:
        assert (ROOT / "examples" / name).resolve() == ROOT / "src" / "selftune" / "cli" / "example" / name


def test_the_citation_names_the_paper():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"][0]
    assert (paper["title"], paper["year"]) == ("Online Policy Optimization in Unknown Nonlinear Systems", 2024)
    names = ", ".join(author["family-names"] for author in paper["authors"])
    assert names in " ".join((ROOT / "README.md").read_text().split())

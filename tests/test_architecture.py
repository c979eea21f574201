"""The rules of the layout that import-linter does not check: docs/architecture.md states them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "selftune"
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path):
    """Every module, or name of a module, of selftune that the file imports: dotted, without "selftune"."""
    package = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
        elif (node.module or "").split(".")[0] == "selftune":
            base = (node.module or "").split(".")[1:]
        else:
            continue
        for alias in node.names:
            yield [part for part in (*base, alias.name) if part]


def test_the_root_has_packages_and_nothing_loose():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "py.typed"}


def test_private_modules_are_imported_by_their_own_package_alone():
    foreign = [
        f"{path.relative_to(PACKAGE)} imports {'.'.join(name)}"
        for path in MODULES
        for name in imports(path)
        if any(part.startswith("_") and part != "__version__" for part in name)
        and path.relative_to(PACKAGE).parts[:1] != tuple(name[:1])
    ]
    assert foreign == []


def test_no_module_has_the_name_of_a_function_that_it_defines():
    same = []
    for path in MODULES:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        if path.stem in {node.name for node in body if isinstance(node, ast.FunctionDef)}:
            same.append(str(path.relative_to(PACKAGE)))
    assert same == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_file_says_what_it_holds(path):
    """In its own docstring, or in that of its one class or function: the page has no list of files."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    parts = [node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert any(ast.get_docstring(node) for node in (module, *parts))


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_page_names_every_package(page):
    listed = set(re.findall(r"`(\w+)`", page.partition("## The packages")[2].partition("### The files")[0]))
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages - listed == set()


def test_the_files_that_the_page_names_exist(page):
    for name in re.findall(r"`([\w/]+/[\w]+\.py)`", page):
        if name.startswith("tests/"):
            assert (ROOT / name).is_file(), name
        elif "NAME" not in name:
            assert (PACKAGE / name).is_file(), name

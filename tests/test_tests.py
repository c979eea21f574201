"""The tests themselves: each one is collected, can be reached and checks something."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FILES = {str(path.relative_to(FOLDER)): ast.parse(path.read_text()) for path in sorted(FOLDER.rglob("*.py"))}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def scopes(tree: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """Every list of statements in a program, and whose it is."""
    for node in ast.walk(tree):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield node, block


def collected(tree: ast.Module) -> Iterator[Function]:
    """What pytest takes for a test: functions of a module, and methods of its classes Test… that have no __init__."""
    blocks = [tree.body]
    while blocks:
        for node in blocks.pop():
            if isinstance(node, FUNCTIONS) and node.name.startswith("test"):
                yield node
            elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                made = any(isinstance(one, FUNCTIONS) and one.name == "__init__" for one in node.body)
                blocks += [] if made else [node.body]


def not_collected(name: str, tree: ast.Module) -> list[str]:
    tests = set(collected(tree)) if Path(name).name.startswith("test_") else set()
    return [
        f"{name}:{node.lineno}: {node.name} is not collected"
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_") and node not in tests
    ]


def shadowed(name: str, tree: ast.Module) -> list[str]:
    """Two definitions of one name side by side: the first is never run. Overloads and setters are decorated."""
    found = []
    for _, block in scopes(tree):
        seen = set()
        for node in block:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                if node.name in seen and node.name.startswith(("test", "Test")):
                    found.append(f"{name}:{node.lineno}: {node.name} replaces another of its name")
                seen.add(node.name)
    return found


def unreachable(name: str, tree: ast.Module) -> list[str]:
    ends = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    return [
        f"{name}:{after.lineno}: nothing after this {type(node).__name__.lower()} is reached"
        for _, block in scopes(tree)
        for node, after in itertools.pairwise(block)
        if isinstance(node, ends)
    ]


def several(name: str, tree: ast.Module) -> list[str]:
    """`pytest.raises` around more than one statement: any of them may be what raises."""
    return [
        f"{name}:{node.lineno}: expected one statement inside pytest.raises, got {len(node.body)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and len(node.body) > 1
        if any(ast.unparse(item.context_expr).startswith("pytest.raises") for item in node.items)
    ]


HELPERS: dict[str, list[Function]] = {}
for _tree in FILES.values():
    for _node in ast.walk(_tree):
        if isinstance(_node, FUNCTIONS):
            HELPERS.setdefault(_node.name, []).append(_node)


def is_contract(called: ast.expr) -> bool:
    """Whether this is a function of `selftune.testing`, which asserts."""
    return ast.unparse(called).startswith("testing.check_")


def checks(function: Function, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a function asserts something, itself or by a function of the tests that it calls."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("raises", "warns", "fail") or called.startswith("assert_") or is_contract(node.func):
                return True
            if any(word.arg == "check" and ast.unparse(word.value) == "True" for word in node.keywords):
                return True  # of a process that must end well
            if called not in seen and any(checks(one, seen | {called}) for one in HELPERS.get(called, ())):
                return True
    return False


def idle(name: str, tree: ast.Module) -> list[str]:
    return [f"{name}:{node.lineno}: {node.name} checks nothing" for node in collected(tree) if not checks(node)]


RULES = (not_collected, shadowed, unreachable, several, idle)


@pytest.mark.parametrize("rule", RULES)
def test_every_test_is_one(rule):
    assert [fault for name, tree in FILES.items() for fault in rule(name, tree)] == []


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (not_collected, "test_x.py", "def helper():\n    def test_inside(): assert True"),
        (not_collected, "test_x.py", "class Case:\n    def test_of_a_case(self): assert True"),
        (not_collected, "test_x.py", "class TestX:\n    def __init__(self): ...\n    def test_it(self): assert True"),
        (not_collected, "helpers.py", "def test_it(): assert True"),
        (shadowed, "test_x.py", "def test_a(): assert True\ndef test_a(): assert 1 == 1"),
        (shadowed, "test_x.py", "class TestX: ...\nclass TestX: ..."),
        (unreachable, "test_x.py", "def test_a():\n    return\n    assert False"),
        (several, "test_x.py", "with pytest.raises(ValueError):\n    make()\n    use()"),
        (idle, "test_x.py", "def test_a(): print(1)"),
    ],
)
def test_a_fault_is_found(rule, name, source):
    assert len(rule(name, ast.parse(source))) == 1


def test_what_is_no_fault_is_not_found():
    source = """
class TestX:
    class TestInside:
        def test_a(self, x): assert x
    def test_a(self):
        with pytest.raises(ValueError, match="x"):
            make()
def test_b(): np.testing.assert_allclose(a, b)
def test_c(): subprocess.run(["make"], check=True)
"""
    assert [fault for rule in RULES for fault in rule("test_x.py", ast.parse(source))] == []

"""The cost of a step of exported C: the number of operations, and flash and stack from a compiler."""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ..lowering.from_jaxpr import Program
from .compilation import CompilerError, compiler

CORTEX_M4F = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-fno-math-errno", "-ffunction-sections")
FUNCTIONS = ("act", "observe", "observe_state")
KINDS = ("additions", "products", "divisions", "roots", "elementary functions", "choices")

_KINDS = {
    "add": "additions",
    "sub": "additions",
    "neg": "additions",
    "mul": "products",
    "div": "divisions",
    "sqrt": "roots",
}
_CHOICES = {"select", "max", "min", "abs", "sign", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "is_finite"}
_FREE = {"input", "constant", "element", "convert", "turn_input", "carry", "loop", "table"}
_FREE |= {"array_input", "moving_element", "carry_array", "rows", "last_array"}


def operations(program: Program) -> Counter[str]:
    """Return how many operations of each kind one call makes, counted in the program."""
    counts: Counter[str] = Counter()
    graph = program.graph
    for node in program.live():
        op, turns = graph.ops[node], graph.turns(node)
        if op == "matrix_product":
            rows, inner, columns = graph.values[node]
            counts["products"] += turns * rows * inner * columns
            counts["additions"] += turns * rows * (inner - 1) * columns
        elif op in ("qr", "qr_q"):
            _, n, ends = graph.values[node]
            terms = sum((end - j) * (n - j - 1 if op == "qr" else n) for j, end in enumerate(ends))
            counts["products"] += 2 * turns * terms
            counts["additions"] += 2 * turns * terms
            counts["divisions"] += 2 * turns * n
            counts["roots"] += turns * n
        elif op not in _FREE:
            counts[_KINDS.get(op) or ("choices" if op in _CHOICES else "elementary functions")] += turns
    return counts


class Footprint(NamedTuple):
    """The result of one compiler: total bytes of code and constants, and the stack of each function."""

    compiler: str
    flash: int
    stack: dict[str, int]


def measure(name: str, files: dict[str, str]) -> Footprint | None:
    """Compile `NAME.c` and return its footprint; None if the tools are missing.

    The target is a Cortex-M4F if its compiler is installed, otherwise this machine.
    """
    if shutil.which("arm-none-eabi-gcc"):
        command, target, prefix = ["arm-none-eabi-gcc"], CORTEX_M4F, "arm-none-eabi-"
    else:
        try:
            command, target, prefix = compiler(), (), ""
        except CompilerError:
            return None
    if not shutil.which(f"{prefix}size"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        for path in (f"{name}.h", f"{name}.c"):
            (Path(folder) / path).write_text(files[path])

        def run(*arguments: str) -> str:
            return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=True).stdout

        try:
            run(*command, *FLAGS, *target, "-fstack-usage", "-c", f"{name}.c", "-o", f"{name}.o")
            sections = run(f"{prefix}size", "-A", f"{name}.o")
            usage = (Path(folder) / f"{name}.su").read_text()
        except (subprocess.CalledProcessError, OSError):
            return None
    flash = sum(int(size) for kind, size in re.findall(r"^\.(text|rodata)\S*\s+(\d+)", sections, re.M))
    stack = {function: int(size) for function, size in re.findall(rf"{name}_(\w+)\s+(\d+)", usage)}
    description = "arm-none-eabi-gcc, Cortex-M4F" if prefix else "the compiler of the machine that exported it"
    return Footprint(description, flash, stack)

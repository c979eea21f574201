"""Loops written by hand in C: compiled when asked for, and called on a problem's own scenario."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import selftune as st

from ._problems import Problem

RECORD = ("x", "theta", "a_hat", "cost")
"""What a loop writes, in the order of its arguments."""
BY_HAND = ("scalar", "pendulum")


def hand_written(problem: Problem, scenario: st.Scenario) -> tuple[Callable[[], None], dict[str, np.ndarray]]:
    """The problem's loop, compiled with -O3 now, and the arrays that a call of it has filled; float64.

    Each call writes to new arrays, as one that gives its results away must.
    """
    function = _compiled(f"{problem.name}_loop")
    steps = len(scenario)
    start = np.concatenate([_doubles(part) for part in (scenario.x0, problem.theta, problem.a_hat)])
    shapes = {"x": scenario.x0.shape, "theta": problem.theta.shape, "a_hat": problem.a_hat.shape, "cost": ()}
    outputs: dict[str, np.ndarray] = {}

    tuner: Any = problem.controller.tuner
    estimator: Any = problem.controller.estimator
    rates = [ctypes.c_double(float(part.learning_rate)) for part in (tuner, estimator)]
    nature = [_doubles(part) for part in (scenario.a_star, scenario.w, scenario.v) if part is not None]
    P = np.asarray(estimator.preconditioner)  # a diagonal matrix is kept as its diagonal
    matrices = [_doubles(np.diag(P) if P.ndim == 1 else P)] if P.ndim else []

    def run() -> None:
        outputs.update({name: np.empty((steps, *shapes[name])) for name in RECORD})
        ending = [*matrices, start, *outputs.values()]
        function(ctypes.c_long(steps), *map(_pointer, nature), *rates, *map(_pointer, ending))

    return run, outputs


def _compiled(name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / f"{name}.so"
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"], check=True)
        return getattr(ctypes.CDLL(str(library)), name)


def _doubles(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, np.float64)


def _pointer(array: np.ndarray) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_double))

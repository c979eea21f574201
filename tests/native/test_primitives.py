"""What the native engine compiles computes what JAX computes: values, tangents and Jacobians, in both precisions.

On finite numbers, and on infinities, NaN, signed zeros, and the largest and smallest numbers. There, three things are
XLA's own and not compared: the sign of a zero; numbers below the normal ones, which XLA takes for zero; and Jacobians,
of whose known zeros XLA makes masks, so that what they leave out is zero even where it was NaN.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from . import functions, functions_arrays, functions_control, functions_linear
from .cases import Case, difference
from .compiled import Written, compiled_all, write

pytestmark = pytest.mark.versions

GROUPS = {
    "maths": functions.MATHS,
    "special": functions.SPECIAL,
    "rounding": functions.ROUNDING,
    "choices": functions.CHOICES,
    "whole": functions.WHOLE,
    "reductions": functions.REDUCTIONS,
    "shapes": functions_arrays.SHAPES,
    "indices": functions_arrays.INDICES,
    "products": functions_linear.PRODUCTS,
    "solves": functions_linear.SOLVES,
    "factors": functions_linear.FACTORS,
    "control": functions_control.CONTROL,
    "random": functions_control.RANDOM,
    "rotations": functions_control.ROTATIONS,
}
EACH = {"maths", "special", "rounding", "choices", "whole"}
"""Groups in which every number of a result has its own size; in the others, it is that of the largest one."""
VALUES_ONLY = {"reductions", "shapes", "indices", "solves", "factors", "control"}
"""Groups without derivatives in single precision."""
FINITE, NASTY = 6, 24
# A quarter of the time to compile. Later releases have no such option.
HAS_EMITTERS = jax.__version__.startswith(("0.9.", "0.10."))
FAST: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": False} if HAS_EMITTERS else {}


class Programs(NamedTuple):
    """A group's functions as scalar programs: with the sparsity of known zeros, and with IEEE's arithmetic."""

    sparse: dict[str, Written]
    dense: dict[str, Written]


def derived(case: Case, group: str, dtype: str) -> Callable[..., Any]:
    """Jacobians cost time: in double precision only, forward of functions of each number, and else in reverse."""
    double = dtype == "float64"
    if not double and group in VALUES_ONLY:
        return lambda *args: {"value": case.function(*args)}
    forward = double and (group in EACH or group in ("products", "rotations"))
    return partial(case.derived, forward=forward, reverse=double and group not in EACH)


def plain(case: Case, group: str, dtype: str) -> Callable[..., Any]:
    """That without Jacobians."""
    return derived(case, group, dtype) if dtype == "float32" else case.derived


@cache
def programs(group: str, dtype: str) -> Programs:
    rng = np.random.default_rng(0)
    examples = {case.name: case.arguments(dtype, rng) for case in GROUPS[group]}
    sparse = [case for case in GROUPS[group] if dtype == "float64" or not case.nasty]
    return Programs(
        {case.name: write(derived(case, group, dtype), *examples[case.name]) for case in sparse},
        {
            f"{case.name}_ieee": write(plain(case, group, dtype), *examples[case.name], sparse=False)
            for case in GROUPS[group]
            if case.nasty
        },
    )


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("group", GROUPS)
def test_functions_agree_with_jax(group, dtype):
    cases = GROUPS[group]
    sparse, dense = programs(group, dtype)
    native = compiled_all(sparse | dense)
    oracle = jax.jit(
        lambda inputs: {case.name: derived(case, group, dtype)(*inputs[case.name]) for case in cases},
        compiler_options=FAST,
    )
    rng = np.random.default_rng(1)
    wrong = []
    for trial in range(FINITE + NASTY):
        nasty = trial >= FINITE
        inputs = {case.name: case.arguments(dtype, rng, nasty=nasty and case.nasty) for case in cases}
        expected = oracle(inputs)
        for case in cases:
            given, want = inputs[case.name], expected[case.name]
            if case.name in sparse and not (nasty and case.nasty):
                wrong += _differences(case, group, native[case.name](*given), want, sparse=True)
            if case.nasty:
                wrong += _differences(case, group, native[f"{case.name}_ieee"](*given), want, sparse=False)
    assert not wrong, "\n".join(wrong[:10])


def _differences(case: Case, group: str, got: dict, want: dict, *, sparse: bool) -> list[str]:
    return [
        f"{case.name}, {what}: {why}"
        for what, made in got.items()
        for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(want[what]), strict=True)
        if (why := difference(one, other, case.ulps, each=group in EACH, sparse=sparse))
    ]


def test_functions_have_names_of_their_own():
    names = [case.name for cases in GROUPS.values() for case in cases]
    assert len(set(names)) == len(names) >= 80

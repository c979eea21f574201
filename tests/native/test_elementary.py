"""The elementary functions of generated C: accuracy, special numbers, and the same bits in every kind of code.

mpmath is the oracle in double precision, and the functions in double precision are the oracle of those in single
precision. Errors are in units of the last place of the exact result.
"""

import math
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import mp, mpf

from selftune.native.c import elementary

from . import compiled, make_polynomials
from .vector_math import DTYPES, OF_TWO, SCALAR, VECTOR, Functions, float_error

OTHER_COMPILERS = [name for name in ("clang",) if shutil.which(name)]
EXACT = {
    "logistic": lambda x: 1 / (1 + mp.exp(-x)),
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "exp2": lambda x: mpf(2) ** x,
    "pow": lambda x, y: x**y,
    "rint": lambda x: mpf(float(np.rint(float(x)))),
    "round": lambda x: mp.sign(x) * mp.floor(abs(x) + mpf(1) / 2),
}
# Largest errors that are allowed: a little more than the largest that were measured (docs/native.md).
DOUBLE = {"erfc": 6.0, "asinh": 2.0, "acosh": 2.5, "atanh": 2.0, "rint": 0.0, "floor": 0.0, "ceil": 0.0, "round": 0.0}
FLOAT = DOUBLE
HARD = {
    # The double that is nearest to a multiple of pi/2, multiples of pi/2, and the largest double.
    "sin": [5.319372648326541e255, np.pi, 1e22, 1.5e6, 1.5e6 + 1, 2.0**60, 1.7976931348623157e308],
    "cos": [5.319372648326541e255, np.pi / 2, 1e22, 11 * np.pi / 2, 2.0**60, 1.7976931348623157e308],
    "tan": [5.319372648326541e255, np.pi / 2, np.pi / 4, 1e22, 1.5e6, 2.0**60, 1.7976931348623157e308],
    "exp": [709.782712893384, -708.4, -745.1, -740.0, 1e-300, 0.5 * np.log(2)],
    "expm1": [709.7, -36.0, 1e-17, 0.34657359027997264, 0.34657359027997275, -0.35],
    "log": [5e-324, 2.0**-1022, 0.7071067811865475, 0.7071067811865477, 1 - 2**-53, 1 + 2**-52, 1.7976931348623157e308],
    "log1p": [-1 + 2**-53, 5e-324, 0.41421356237309515, 1.7976931348623157e308, -0.29289321881345254],
    "tanh": [19.06, 1e-9, 5e-324, 0.17328679513998632, 0.5499999999999999, 0.55],
    "cosh": [710.47, 1e-9],
    "sinh": [710.47, 1.0, 1 - 2**-53, 5e-324],
    "erf": [0.75, 1.25, 5.9, 1e-300],
    "asin": [0.5, 0.5000000000000001, 1 - 2**-53, 1.0],
    "acos": [0.5, 0.5000000000000001, 1 - 2**-53, -1.0, 1e-300],
    "atan": [0.41421356237309503, 0.4142135623730951, 1.0, 1e300, 5e-324, 2.0**-28],
    "cbrt": [5e-324, 2.0**-1022, 1.7976931348623157e308, 27.0],
    "logistic": [-40.0, -40.00001, -745.0, 36.0, 1e-300],
}


def numbers(name: str, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return arguments of a function: ordinary ones, and ones of every size for which the result is finite."""
    ordinary, sizes = rng.uniform(-3, 3, count), np.exp2(rng.uniform(-1070, 1020, count)) * rng.choice([-1, 1], count)
    if name == "pow":
        x = np.concatenate([rng.uniform(0, 4, count), abs(sizes), 1 + 1e-5 * rng.standard_normal(count)])
        return x, rng.uniform(-1, 1, x.size) * 700 / np.maximum(abs(np.log(x)), 1e-13)
    if name == "atan2":
        return np.concatenate([ordinary, sizes]), np.concatenate([rng.uniform(-3, 3, count), rng.permutation(sizes)])
    if name in ("asin", "acos", "atanh"):
        near_one = 1 - np.exp2(rng.uniform(-52, -1, count))
        return np.concatenate([ordinary / 3, near_one, np.exp2(rng.uniform(-200, -1, count))]), None
    if name in ("exp", "expm1", "sinh", "cosh", "logistic", "exp2"):
        return np.concatenate([ordinary, rng.uniform(-745, 709, count), np.exp2(rng.uniform(-60, 1, count))]), None
    if name in ("log", "acosh"):
        low = 1.0 if name == "acosh" else 0.0
        return np.concatenate([low + abs(ordinary), low + abs(sizes), 1 + np.exp2(rng.uniform(-50, -1, count))]), None
    if name == "log1p":
        return np.concatenate([ordinary[ordinary > -1], abs(sizes), np.exp2(rng.uniform(-52, 0, count)) - 1]), None
    if name in ("erf", "erfc"):
        return np.concatenate([ordinary, rng.uniform(-7, 26, count), np.exp2(rng.uniform(-80, 1, count))]), None
    angles = rng.uniform(-1e6, 1e6, count) if name in elementary.WITH_LARGE_ANGLES else 10 * ordinary
    return np.concatenate([ordinary, angles, sizes]), None


def exact(name: str, *arguments: float):
    mp.prec = 1200 if name in elementary.WITH_LARGE_ANGLES else 160
    try:
        function = EXACT[name] if name in EXACT else getattr(mp, name)
        return function(*map(mpf, arguments))
    finally:
        mp.prec = 160


def error(got: float, want) -> float:
    """Return the error in units of the last place."""
    if np.isinf(got):
        return 0.0 if abs(want) > mpf(np.finfo(float).max) else np.inf
    if want == 0:
        return abs(got)
    unit = mpf(2) ** max(int(mp.floor(mp.log(abs(want), 2))) - 52, -1074)
    return float(abs(mpf(got) - want) / unit)


@pytest.fixture(scope="module")
def scalar():
    return {dtype: Functions(dtype, SCALAR) for dtype in DTYPES}


@pytest.mark.parametrize("name", elementary.FUNCTIONS)
def test_double_against_mpmath(name, scalar):
    x, y = numbers(name, np.random.default_rng(1), 120)
    x = np.concatenate([x, HARD.get(name, [])]) if y is None else x
    got = scalar["double"](name, x, y)
    given = zip(x, strict=True) if y is None else zip(x, y, strict=True)
    errors = [error(value, exact(name, *map(float, values))) for value, values in zip(got, given, strict=True)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= DOUBLE.get(name, 1.0), f"{errors[worst]:.3f} ulp at {x[worst]!r}: {got[worst]!r}"


@pytest.mark.parametrize("name", [name for name in elementary.FUNCTIONS if name not in OF_TWO])
@pytest.mark.parametrize("step", [8191, pytest.param(1, marks=pytest.mark.slow)])
def test_float_against_double(name, step):
    found = float_error(name, 2**32 // step, step)
    assert found.worst <= FLOAT.get(name, 1.0), f"{found.worst:.3f} ulp at {found.at!r}"
    assert found.oracle <= 2.0**-49  # the errors of the double function and of libm's together


@pytest.mark.parametrize("name", OF_TWO)
def test_float_functions_of_two_numbers_against_double(name, scalar):
    rng = np.random.default_rng(2)
    with np.errstate(over="ignore"):
        x, y = rng.lognormal(0, 3, 200_000).astype(np.float32), (10 * rng.standard_normal(200_000)).astype(np.float32)
    got, want = scalar["float"](name, x, y), scalar["double"](name, x, y)
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
        finite = np.isfinite(rounded)
        unit = np.exp2(np.floor(np.log2(np.maximum(abs(want), np.finfo(np.float32).tiny))) - 23)
    assert np.max(abs(got - want)[finite] / unit[finite]) <= 1.0
    np.testing.assert_array_equal(got[~finite], rounded[~finite])


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, -2.5]
NUMPY = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "pow": np.power}
NUMPY |= {"asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", elementary.FUNCTIONS)
def test_special_numbers_as_in_the_c_library(name, dtype, scalar):
    info = np.finfo(DTYPES[dtype])
    special = np.array([*SPECIAL, info.max, -info.max, info.tiny, -info.tiny, info.smallest_subnormal], info.dtype)
    x, y = special, None
    if name in OF_TWO:
        x, y = (grid.ravel() for grid in np.meshgrid(special, special))
    functions = {
        "logistic": lambda x: 1 / (1 + np.exp(-x)),
        "erf": np.vectorize(math.erf, otypes=[float]),
        "erfc": np.vectorize(math.erfc, otypes=[float]),
        "round": lambda x: np.where(abs(x) == 2.5, np.sign(x) * 3, np.where(abs(x) == 0.5, np.sign(x), np.rint(x))),
    }
    function = functions.get(name) or NUMPY.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        want = np.asarray(function(x) if y is None else function(x, y), x.dtype)
    got = scalar[dtype](name, x, y)
    exact_result = ~np.isfinite(want) | (want == 0) | (want == 1)
    np.testing.assert_array_equal(got[exact_result], want[exact_result])
    signs = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[signs]), np.signbit(want[signs]))
    np.testing.assert_allclose(got, want, rtol=8 * info.eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", elementary.FUNCTIONS)
def test_scalar_and_vector_code_give_the_same_bits(name, dtype, scalar):
    rng = np.random.default_rng(3)
    x, y = numbers(name, rng, 4_000)
    with np.errstate(over="ignore"):
        x = np.concatenate([x, SPECIAL]).astype(DTYPES[dtype])
        y = None if y is None else np.concatenate([y, SPECIAL]).astype(DTYPES[dtype])
    want = scalar[dtype](name, x, y)
    np.testing.assert_array_equal(Functions(dtype, VECTOR)(name, x, y), want)
    for compiler in OTHER_COMPILERS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CC", compiler)
            for flags in (tuple(flag for flag in SCALAR if flag != "-Werror"), VECTOR):
                np.testing.assert_array_equal(Functions(dtype, flags)(name, x, y), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in elementary.FUNCTIONS if name in elementary.BRANCH_FREE])
def test_functions_without_branches_give_the_same_bits(name, dtype, scalar):
    limit = elementary.LARGE_ANGLE[dtype] if name in elementary.WITH_LARGE_ANGLES else np.inf
    rng, edge = np.random.default_rng(4), 88.0 if dtype == "float" else 709.0
    x = [
        rng.uniform(-1, 1, 10_000) * min(limit, 1e6),
        rng.uniform(-edge, edge, 10_000),
        [limit, -limit, 0.0, -0.0, np.nan],
    ]
    lanes, full = scalar[dtype](elementary.BRANCH_FREE[name], np.concatenate(x)), scalar[dtype](name, np.concatenate(x))
    np.testing.assert_array_equal(lanes, full)
    np.testing.assert_array_equal(np.signbit(lanes[:-1]), np.signbit(full[:-1]))  # the sign of NaN means nothing


def test_the_sine_and_the_cosine_of_an_angle_are_computed_together():
    def wave(x):
        return jnp.cos(x) * jnp.sin(x) + jnp.sin(2 * x), jnp.cos(x)

    x = np.array(0.7)
    text = compiled.source({"wave": compiled.write(wave, x).program})
    body = text[text.index("void f_wave") :]
    assert body.count("sin_cos_double(") == 1
    assert len(re.findall(r"(?<!\w)sin_double\(", body)) == 1  # the sine of 2x, whose cosine is not used
    assert "cos_double(" not in body.replace("sin_cos_double(", "")


def test_only_what_is_used_is_written():
    blocks = elementary.needed(["exp_float"])
    assert "exp_end_float" in blocks
    assert "exp_end_double" not in blocks
    assert not any(name.startswith(("sin_", "log_", "reduced", "pow_")) for name in blocks)
    blocks = elementary.needed(f"{name}_double" for name in elementary.FUNCTIONS)
    # Nothing of libm is called but sqrt, and each function is defined before it is called.
    defined: set[str] = set()
    for name, block in blocks.items():
        code = re.sub(r"/\*.*?\*/", "", block, flags=re.S)
        defined.add(name)
        assert set(re.findall(r"\b(\w+)\(", code)) <= defined | {"sqrt", "UINT64_C", "for", "if"}


def test_the_polynomials_are_those_that_the_script_makes():
    assert make_polynomials.FILE.read_text() == make_polynomials.text()

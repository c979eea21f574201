"""`python -m tests.native.make_polynomials`: write the polynomials of the elementary functions as C.

Each polynomial, or ratio of two polynomials, interpolates its function at the Chebyshev points of an interval, with 300
bits by mpmath, and its coefficients are then rounded. That error is at most about twice the smallest possible one. The
degree of each polynomial is the smallest one whose error is far below the rounding of the result.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpmath import mp, mpf

FILE = Path(__file__).parents[2] / "src" / "selftune" / "native" / "templates" / "polynomials.c"
HEAD = """/* Polynomials of the elementary functions: written by tests/native/make_polynomials.py; do not edit. */
"""


class Polynomial(NamedTuple):
    name: str
    says: str
    """What the polynomial p approximates."""
    function: Callable[[Any], Any]
    low: Any
    high: Any
    degrees: dict[str, int]


class Ratio(NamedTuple):
    """Two polynomials p and q with q(0) = 1; their names end with `_above` and `_below`."""

    name: str
    says: str
    """What p / q approximates."""
    function: Callable[[Any], Any]
    high: Any
    degrees: dict[str, tuple[int, int]]


def _tail(function: Callable[[Any], Any], start: Callable[[Any], Any], power: int, series: Any) -> Callable[[Any], Any]:
    """Return (function(r) - start(r)) / r^power as a function of z = r²; `series` is its value at 0."""

    def tail(z: Any) -> Any:
        if z == 0:
            return mpf(series)
        r = mp.sqrt(z)
        return (function(r) - start(r)) / r**power

    return tail


def _exp_end(r: Any) -> Any:
    return mpf(1) / 6 + r / 24 if abs(r) < 1e-40 else (mp.exp(r) - 1 - r - r**2 / 2) / r**3


def _erf_start(z: Any) -> Any:
    return 2 / mp.sqrt(mp.pi) - 1 if z == 0 else mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1


def _erf_middle(r: Any) -> Any:
    if abs(r) < 1e-40:
        return -2 / mp.sqrt(mp.pi) / mp.e
    return (mp.erf(1 + r) - mp.erf(1) - 2 / mp.sqrt(mp.pi) / mp.e * r) / r**2


def _erfcx(v: Any) -> Any:
    x = 3 * (1 + v) / (1 - v)
    return mp.exp(x**2) * mp.erfc(x) * (x + mpf(1) / 2)


def polynomials() -> list[Polynomial]:
    mp.prec = 300
    quarter, half_log = (mp.pi / 4 * mpf("1.001")) ** 2, mp.log(2) / 2 * mpf("1.001")
    s = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
    in_log = (s * mpf("1.001")) ** 2
    return [
        Polynomial(
            "sin_tail",
            "sin r = r + r^3 p(r^2)",
            _tail(mp.sin, lambda r: r, 3, mpf(-1) / 6),
            0,
            quarter,
            {"float": 3, "double": 6},
        ),
        Polynomial(
            "cos_tail",
            "cos r = 1 - r^2/2 + r^4 p(r^2)",
            _tail(mp.cos, lambda r: 1 - r**2 / 2, 4, mpf(1) / 24),
            0,
            quarter,
            {"float": 2, "double": 5},
        ),
        Polynomial(
            "exp_end", "exp r = 1 + r + r^2/2 + r^3 p(r)", _exp_end, -half_log, half_log, {"float": 4, "double": 9}
        ),
        Polynomial(
            "log_tail",
            "2 atanh s = 2 s + s^3 p(s^2)",
            _tail(lambda r: 2 * mp.atanh(r), lambda r: 2 * r, 3, mpf(2) / 3),
            0,
            in_log,
            {"float": 2, "double": 6},
        ),
        Polynomial(
            "log_end",
            "2 atanh s = 2 s + 2/3 s^3 + s^5 p(s^2)",
            _tail(lambda r: 2 * mp.atanh(r), lambda r: 2 * r + 2 * r**3 / 3, 5, mpf(2) / 5),
            0,
            in_log,
            {"float": 2, "double": 7},
        ),
        Polynomial(
            "atan_tail",
            "atan r = r + r^3 p(r^2)",
            _tail(mp.atan, lambda r: r, 3, mpf(-1) / 3),
            0,
            mpf("0.4143") ** 2,
            {"float": 4, "double": 11},
        ),
        Polynomial(
            "asin_tail",
            "asin r = r + r^3 p(r^2)",
            _tail(mp.asin, lambda r: r, 3, mpf(1) / 6),
            0,
            mpf("0.2501"),
            {"float": 5, "double": 12},
        ),
        Polynomial(
            "sinh_tail",
            "sinh r = r + r^3 p(r^2)",
            _tail(mp.sinh, lambda r: r, 3, mpf(1) / 6),
            0,
            mpf("1.001"),
            {"float": 3, "double": 6},
        ),
        Polynomial("erf_start", "erf r = r + r p(r^2)", _erf_start, 0, mpf("0.5626"), {"float": 5, "double": 11}),
        Polynomial(
            "erf_middle",
            "erf(1 + r) = erf(1) + erf'(1) r + r^2 p(r)",
            _erf_middle,
            mpf("-0.26"),
            mpf("0.26"),
            {"float": 6, "double": 13},
        ),
        Polynomial(
            "erfc_end",
            "erfc x = exp(-x^2) p((x - 3) / (x + 3)) / (x + 1/2)",
            _erfcx,
            (mpf("0.74") - 3) / mpf("3.74"),
            mpf("24.3") / mpf("30.3"),
            {"float": 9, "double": 22},
        ),
        Polynomial("cbrt_start", "the cube root of r", mp.cbrt, mpf("0.35"), mpf("2.85"), {"float": 4, "double": 4}),
    ]


def ratios() -> list[Ratio]:
    return [
        Ratio(
            "tanh",
            "tanh r = r + r^3 p(r^2) / q(r^2)",
            _tail(mp.tanh, lambda r: r, 3, mpf(-1) / 3),
            (mpf("0.55") * mpf("1.001")) ** 2,
            {"float": (1, 1), "double": (2, 3)},
        )
    ]


def _chebyshev_points(low: Any, high: Any, count: int) -> list[Any]:
    return [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (i + 0.5) / count) for i in range(count)]


def interpolated_ratio(ratio: Ratio, degrees: tuple[int, int]) -> tuple[list[Any], list[Any]]:
    """Return the coefficients of p and q, so that p - function * q is zero at the Chebyshev points."""
    above, below = degrees
    points = _chebyshev_points(mpf(0), mpf(ratio.high), above + below + 1)
    values = [ratio.function(x) for x in points]
    rows = [
        [x**j for j in range(above + 1)] + [-value * x**j for j in range(1, below + 1)]
        for x, value in zip(points, values, strict=True)
    ]
    found = list(mp.lu_solve(mp.matrix(rows), mp.matrix(values)))
    return found[: above + 1], [mpf(1), *found[above + 1 :]]


def interpolated(polynomial: Polynomial, degree: int) -> list[Any]:
    """Return the coefficients of the polynomial through the function's values at the Chebyshev points."""
    points = _chebyshev_points(mpf(polynomial.low), mpf(polynomial.high), degree + 1)
    matrix = mp.matrix([[x**j for j in range(degree + 1)] for x in points])
    return list(mp.lu_solve(matrix, mp.matrix([polynomial.function(x) for x in points])))


def _rounded(coefficients: list[Any], dtype: str) -> list[str]:
    if dtype == "double":
        return [repr(float(c)) for c in coefficients]
    return [np.format_float_scientific(np.float32(float(c)), unique=True, trim="0") + "f" for c in coefficients]


def estrin(terms: list[str], power: int = 1) -> str:
    """Return a polynomial by Estrin's rule: halves that do not wait for each other. `power` is that of the variable."""
    if len(terms) == 1:
        return terms[0]
    pairs = [
        f"({a} + z{power if power > 1 else ''} * {b})" for a, b in zip(terms[::2], terms[1::2], strict=False)
    ] + terms[len(terms) // 2 * 2 :]
    return estrin(pairs, 2 * power)


def as_c(name: str, says: str, coefficients: list[Any], dtype: str) -> str:
    terms = _rounded(coefficients, dtype)
    powers = [2**i for i in range(1, 6) if 2**i < len(terms)]
    squares = [f"    const {dtype} z{p} = z{p // 2 if p > 2 else ''} * z{p // 2 if p > 2 else ''};" for p in powers]
    value = estrin(terms).removeprefix("(").removesuffix(")")
    head = f"static inline {dtype} {name}_{dtype}({dtype} z)"
    return "\n".join([f"/* {says} */", head, "{", *squares, *_broken(f"return {value};"), "}"])


def _broken(text: str, width: int = 112) -> list[str]:
    lines = []
    while len(text) > width:
        cut = text.rfind(" ", 0, width)
        lines.append(text[:cut])
        text = "    " + text[cut + 1 :]
    return [f"    {line}" for line in [*lines, text]]


def text() -> str:
    made = [
        as_c(one.name, f"p of {one.says}", interpolated(one, one.degrees[dtype]), dtype)
        for one in polynomials()
        for dtype in ("float", "double")
    ]
    for ratio in ratios():
        for dtype in ("float", "double"):
            p, q = interpolated_ratio(ratio, ratio.degrees[dtype])
            made += [as_c(f"{ratio.name}_above", f"p of {ratio.says}", p, dtype)]
            made += [as_c(f"{ratio.name}_below", f"q of {ratio.says}", q, dtype)]
    return "\n\n".join([HEAD.strip(), *made]) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())

"""The elementary functions of generated C, compiled as scalar and as vector code, and called on NumPy arrays."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from selftune.native.c import elementary
from selftune.native.c.compilation import build

SCALAR = (
    "-std=c99",
    "-O2",
    "-ffp-contract=off",
    "-fno-tree-vectorize",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
)
VECTOR = (
    *("-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-march=native"),
    *("-fPIC", "-shared"),
)
OF_TWO = ("pow", "atan2")
DTYPES = {"float": np.float32, "double": np.float64}
HEAD = "#define _GNU_SOURCE\n#include <math.h>\n#include <stdint.h>"
# The error of float functions, in units of the last place. The oracle is the double function, or libm's for angles that
# are too large for it. At every 4096th number the oracle is compared with libm's function.
ERRORS = """
static float next_number(uint64_t *state, int any)
{
    const uint64_t random = *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const uint32_t bits = (uint32_t)(random >> 32);
    /* any bits, or a number between 2^-8 and 2^8 */
    return with_bits_float(any ? bits : (bits & 0x807fffffu) | ((119u + bits % 16u) << 23));
}

void errors_NAME(uint32_t begin, int64_t count, uint32_t step, double *worst, float *at, double *oracle);
void errors_NAME(uint32_t begin, int64_t count, uint32_t step, double *worst, float *at, double *oracle)
{
    enum { BLOCK = 4096 };
    static float x[BLOCK], y[BLOCK], got[BLOCK];
    static double want[BLOCK], error[BLOCK];
    uint64_t random = begin;
    for (int64_t first = 0; first < count; first += BLOCK) {
        const int n = count - first < BLOCK ? (int)(count - first) : BLOCK;
        if (OF_TWO)
            for (int i = 0; i < n; i++) x[i] = next_number(&random, i % 2), y[i] = next_number(&random, i % 2);
        else
            for (int i = 0; i < n; i++) x[i] = with_bits_float(begin + (uint32_t)(first + i) * step);
        for (int i = 0; i < n; i++) got[i] = QUICK_float(x[i] SECOND);
        for (int i = 0; i < n; i++) want[i] = QUICK_double((double)x[i] SECOND);
        for (int i = 0; LIMITED && i < n; i++) {
            if (!(fabsf(x[i]) <= LIMIT_FLOATf)) got[i] = NAME_float(x[i] SECOND);
            if (!(fabsf(x[i]) <= LIMIT_DOUBLEf)) want[i] = LIBM((double)x[i] SECOND);
        }
        for (int i = 0; i < n; i++) {
            const double size = abs_double(want[i]);
            const double least = size < 1.1754943508222875e-38 ? 1.1754943508222875e-38 : size;
            const double unit = with_bits_double(bits_of_double(least) & UINT64_C(0x7ff0000000000000)) / 8388608.0;
            const float rounded = (float)want[i];
            const int same = (got[i] == rounded) | ((got[i] != got[i]) & (want[i] != want[i]));
            const double apart = abs_double((double)got[i] - want[i]) / unit;
            error[i] = size < 3.4028235677973366e38 ? apart : same ? 0.0 : 1e30;
        }
        double largest = 0.0;
        for (int i = 0; i < n; i++) largest = error[i] > largest ? error[i] : largest;
        if (largest > *worst)
            for (int i = 0; i < n; i++)
                if (error[i] == largest) *worst = largest, *at = x[i];
        const double other = LIBM((double)x[0] SECOND_OF_FIRST);
        const double apart = abs_double(other - want[0]) / abs_double(other);
        if (apart > *oracle && abs_double(other) < 1e300 && abs_double(other) > 1e-300) *oracle = apart;
    }
}
"""
LIBM = {"logistic": "logistic_by_libm"}


def _texts(names: Sequence[str]) -> list[str]:
    return [HEAD, *elementary.needed(names).values()]


def source(dtype: str) -> str:
    """One function of arrays for each elementary function, and for the branch-free ones that lanes call."""
    names = [
        *elementary.FUNCTIONS,
        *(elementary.BRANCH_FREE[name] for name in elementary.FUNCTIONS if name in elementary.BRANCH_FREE),
    ]
    lines = _texts([f"{name}_{dtype}" for name in names])
    for name in names:
        inputs = f"const {dtype} *restrict x, const {dtype} *restrict y, {dtype} *restrict out, int64_t n"
        second = ", y[i]" if name in OF_TWO else ""
        head = f"void all_{name}({inputs})"
        loop = f"for (int64_t i = 0; i < n; i++) out[i] = {name}_{dtype}(x[i]{second});"
        lines += [f"{head};", head, "{", *([] if second else ["    (void)y;"]), f"    {loop}", "}"]
    return "\n".join(lines) + "\n"


class Functions:
    """The functions in one precision, as the compiler makes them with the given flags."""

    def __init__(self, dtype: str, flags: Sequence[str] = SCALAR):
        self.dtype = DTYPES[dtype]
        self.library = build(source(dtype), flags=tuple(flags))

    def __call__(self, name: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        x = np.ascontiguousarray(x, self.dtype)
        y = x if y is None else np.ascontiguousarray(y, self.dtype)
        out = np.empty_like(x)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (x, y, out))
        getattr(self.library, f"all_{name}")(*pointers, ctypes.c_int64(x.size))
        return out


class FloatError(NamedTuple):
    """The largest error of a float function, and where it is; and the largest relative difference of the double
    function from libm's, which shows that the oracle is right."""

    worst: float
    at: float
    oracle: float


def float_error(name: str, count: int, step: int, begin: int = 0) -> FloatError:
    """Return the largest error of a float function over so many floats, every `step`-th from the bits `begin` on. Of a
    function of two numbers, over so many random pairs."""
    quick = elementary.BRANCH_FREE.get(name, name)
    uses = ("with_bits_float", "with_bits_double", "bits_of_double", "abs_double")
    limits = elementary.LARGE_ANGLE
    words = {
        "SECOND_OF_FIRST": ", y[0]" if name in OF_TWO else "",
        "SECOND": ", y[i]" if name in OF_TWO else "",
        "OF_TWO": str(int(name in OF_TWO)),
        "LIMITED": str(int(name in elementary.WITH_LARGE_ANGLES)),
        "LIMIT_FLOATf": f"{limits['float']}f",
        "LIMIT_DOUBLEf": f"{limits['double']}f",
        "LIBM": LIBM.get(name, name),
        "QUICK": quick,
        "NAME": name,
    }
    driver = ERRORS
    for word, meaning in words.items():
        driver = driver.replace(word, meaning)
    logistic = (
        "static double logistic_by_libm(double x) { return 1.0 / (1.0 + exp(-x)); }" if name == "logistic" else ""
    )
    functions = {f"{one}_{dtype}" for one in (name, quick) for dtype in DTYPES}
    library = build("\n".join([*_texts([*functions, *uses]), logistic, driver]), flags=VECTOR)
    worst, at, oracle = ctypes.c_double(0.0), ctypes.c_float(0.0), ctypes.c_double(0.0)
    getattr(library, f"errors_{name}")(
        *(ctypes.c_uint32(begin), ctypes.c_int64(count), ctypes.c_uint32(step)),
        *map(ctypes.byref, (worst, at, oracle)),
    )
    return FloatError(worst.value, at.value, oracle.value)

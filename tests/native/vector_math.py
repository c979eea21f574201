"""The elementary functions of generated C, compiled as scalar and as vector code, and called on NumPy arrays."""

import ctypes
from collections.abc import Sequence

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
HEAD = "#include <math.h>\n#include <stdint.h>"
# The error of every step-th float from a given one on, in units of the last place; the double function is the oracle.
ERRORS = """
void errors_NAME(uint32_t begin, int64_t count, uint32_t step, double *worst, float *at);
void errors_NAME(uint32_t begin, int64_t count, uint32_t step, double *worst, float *at)
{
    for (int64_t i = 0; i < count; i++) {
        const float x = with_bits_float(begin + (uint32_t)i * step), got = NAME_float(x);
        const double want = NAME_double((double)x), size = abs_double(want);
        const float rounded = (float)want;
        const int finite = size < 3.4028235677973366e38;
        const double least = size < 1.1754943508222875e-38 ? 1.1754943508222875e-38 : size;
        const double unit = with_bits_double(bits_of_double(least) & UINT64_C(0x7ff0000000000000)) / 8388608.0;
        const double error = finite ? abs_double((double)got - want) / unit
            : (got == rounded) | ((got != got) & (want != want)) ? 0.0 : 1e30;
        if (!(error <= *worst)) {
            *worst = error;
            *at = x;
        }
    }
}
"""


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


def float_error(name: str, count: int, step: int) -> tuple[float, float]:
    """Return the largest error of a float function over so many floats, every `step`-th, and where it is."""
    uses = ("with_bits_float", "with_bits_double", "bits_of_double", "abs_double")
    lines = [*_texts([f"{name}_float", f"{name}_double", *uses]), ERRORS.replace("NAME", name)]
    function = getattr(build("\n".join(lines), flags=VECTOR), f"errors_{name}")
    worst, at = ctypes.c_double(0.0), ctypes.c_float(0.0)
    function(ctypes.c_uint32(0), ctypes.c_int64(count), ctypes.c_uint32(step), ctypes.byref(worst), ctypes.byref(at))
    return worst.value, at.value

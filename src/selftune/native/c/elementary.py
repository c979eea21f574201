"""Elementary functions in C: which blocks of the templates a generated file needs, and their constants.

`templates/elementary.c` has the functions, for float and double at once, and `templates/polynomials.c` their
polynomials. The functions have no branches and no tables, call nothing of libm, and follow IEEE 754 in the written
order. So a function gives the same bits as scalar and as vector code, with every compiler and on every processor. The
only exception is sin, cos and tan of an argument beyond `LARGE_ANGLE`, which needs a loop.
"""

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np

TEMPLATES = Path(__file__).parents[1] / "templates"

LARGE_ANGLE = {"float": 800.0, "double": 1.5e6}
"""Up to this size, sin, cos and tan need no branch: `sin_near_double` and so on."""
WITH_LARGE_ANGLES = ("sin", "cos", "tan")
BRANCH_FREE = {"sin_cos": "sin_cos_near", "sin": "sin_near", "cos": "cos_near", "tan": "tan_near", "exp": "exp_wide"}
"""Functions that have a branch as scalar code, and the function without branches that lanes call. The branch gives the
same bits in less time."""
FUNCTIONS = (
    *WITH_LARGE_ANGLES,
    *("exp", "exp2", "expm1", "log", "log1p", "pow", "cbrt", "tanh", "sinh", "cosh", "logistic"),
    *("atan", "atan2", "asin", "acos", "erf", "erfc", "asinh", "acosh", "atanh", "rint", "floor", "ceil", "round"),
)
"""The functions; `sqrt` is the processor's own, and correctly rounded."""

# Digits in base ten of the constants; 2/π as an integer, in units of 2^-1216.
_PI = "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
_LOG_2 = "0.693147180559945309417232121458176568075500134360255254120680009493393621969694715605863326996418687"
_LOG2_E = "1.442695040888963407359924681001892137426645954152985934135449406931109219181185079885526622893506344"
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a7"
    "3ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb"
    "09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6bab",
    16,
)
_ERF = "0.842700792949714869341220635082609259296067"  # of 1
_ERF_SLOPE = "0.415107497420594703340268249441337365368907"  # of 1
_TYPES = {"float": np.float32, "double": np.float64}


def _parts(number: str, bits: int, count: int, dtype: str) -> list[str]:
    """Return a number as a sum: `count` parts of so many bits, from the first bit on, and the rest, rounded."""
    left, parts, unit = Fraction(number), [], Fraction(1)
    while unit > left:
        unit /= 2
    for _ in range(count):
        unit /= 2 ** (bits - 1)
        part = left // unit * unit
        parts.append(float(part))
        left -= part
        unit /= 2
    return [_literal(part, dtype) for part in (*parts, float(_TYPES[dtype](float(left))))]


def _pair(number: Fraction, dtype: str) -> list[str]:
    high = float(_TYPES[dtype](float(number)))
    return [_literal(high, dtype), _literal(float(number - Fraction(high)), dtype)]


def _literal(value: float, dtype: str) -> str:
    number = _TYPES[dtype](value)
    text = np.format_float_scientific(number, unique=True, trim="0", exp_digits=1) + "f" * (dtype == "float")
    return f"({text})" if number < 0 else text


@cache
def _constants(dtype: str) -> dict[str, str]:
    """Return the words in capital letters of the template, in one precision."""
    mantissa, bias, bits = (23, 127, 32) if dtype == "float" else (52, 1023, 64)
    single = dtype == "float"
    half_pi, log_2 = Fraction(_PI) / 2, Fraction(_LOG_2)
    # n has at most 9 or 20 bits in an angle, and 8 or 11 bits in an exponent.
    pi_parts = _parts(str(half_pi), 15 if single else 33, 3, dtype)
    log_parts = _parts(_LOG_2, 16 if single else 42, 2, dtype)
    integer = "UINT32_C({})" if single else "UINT64_C({})"
    # Three zeros in front, because the smallest large angles have fewer bits before the point than a mantissa has.
    digits = ["0"] * 3 + [f"{TWO_OVER_PI >> 1216 - 16 * (i + 1) & 65535:#06x}" for i in range(14 if single else 74)]
    numbers = {
        "ROUND": 1.5 * 2.0**mantissa,
        "TWO_TO_MANTISSA": 2.0**mantissa,
        "TWO_OVER_PI": float(1 / half_pi),
        "LARGE": LARGE_ANGLE[dtype],
        "TINY_ANGLE": 2.0**-13 if single else 2.0**-28,
        "TINY_RATIO": 2.0**-60 if single else 2.0**-500,
        "HUGE_RATIO": 2.0**60 if single else 2.0**500,
        "FAR": 2.0**60 if single else 2.0**500,
        "LOG2_E": float(Fraction(_LOG2_E)),
        "EXP_USUAL": 87.0 if single else 708.0,
        "EXP_LOWEST": -104.0 if single else -746.0,
        "EXP_HIGHEST": 89.0 if single else 710.0,
        "EXP2_HIGHEST": 160.0 if single else 1100.0,
        "EXPM1_LOWEST": -20.0 if single else -40.0,
        "COSH_HIGHEST": 90.0 if single else 711.0,
        "HUGE_POWER": 2.0**32 if single else 2.0**64,
        "SMALLEST": float(np.finfo(_TYPES[dtype]).tiny),
        "LIFT": 24.0 if single else 54.0,
        "TWO_TO_LIFT": 2.0**24 if single else 2.0**54,
        "TAN_PI_8": 0.41421356237309503,
        "ERF_SPLIT": 0.75,
        "ERFC_HIGHEST": 10.5 if single else 27.3,
    }
    pairs = {"HALF_PI": half_pi, "QUARTER_PI": half_pi / 2, "LOG_2": log_2, "TWO_THIRDS": Fraction(2, 3)}
    pairs |= {"ERF_MIDDLE": Fraction(_ERF), "ERF_SLOPE": Fraction(_ERF_SLOPE)}
    sqrt_half = int(np.sqrt(_TYPES[dtype](0.5)).view(np.uint32 if single else np.uint64))
    return {
        **{name: _literal(value, dtype) for name, value in numbers.items()},
        **{f"HALF_PI_{i + 1}": part for i, part in enumerate(pi_parts)},
        **{f"LOG_2_{i + 1}": part for i, part in enumerate(log_parts)},
        **{
            f"{name}_{end}": part
            for name, value in pairs.items()
            for end, part in zip(("HI", "LO"), _pair(value, dtype), strict=True)
        },
        "LOG_2_REST": _parts(_LOG_2, 16 if single else 42, 1, dtype)[1],
        "MANTISSA": str(mantissa),
        "MANTISSA_DIGITS": "2" if single else "4",
        "WINDOW": "8" if single else "14",
        "BIAS": integer.format(bias),
        "SIGN": integer.format(hex(1 << bits - 1)),
        "TO_SIGN": str(bits - 2),
        "FIRST_HALF": integer.format(hex((1 << bits) - (1 << (mantissa + 2) // 2))),
        "HIDDEN": integer.format(hex(1 << mantissa)),
        "SQRT_HALF_BITS": integer.format(hex(sqrt_half)),
        "TWO_OVER_PI_DIGITS": ", ".join(digits),
        "INF": "INFINITY" if single else "HUGE_VAL",
        "QUIET_NAN": "NAN" if single else "(double)NAN",
        "F": dtype,
        "U": f"uint{bits}_t",
    }


@cache
def _blocks(dtype: str) -> dict[str, str]:
    """Return the C text of each block, by its name, in an order in which each block follows those that it uses."""
    words = _constants(dtype)
    text = (TEMPLATES / "elementary.c").read_text(encoding="utf-8")
    _, *blocks = text.strip().split("\n\n")
    _, *polynomials = (TEMPLATES / "polynomials.c").read_text(encoding="utf-8").strip().split("\n\n")
    made = {_name(block, dtype): block for block in polynomials if f"static inline {dtype} " in block}
    for block in blocks:
        block = re.sub(r"sqrt_F\(", "sqrtf(" if dtype == "float" else "sqrt(", block)
        if dtype == "float":  # before the constants, which have their suffix
            block = re.sub(r"(?<![\w.])\d+\.\d+(?![\w.])", r"\g<0>f", block)
        block = re.sub(r"\b([A-Z][A-Z0-9_]*)\b", lambda word: words.get(word[0], word[0]), block)
        block = re.sub(r"_F\b", f"_{dtype}", block)
        made[_name(block, dtype)] = block
    return made


def _name(block: str, dtype: str) -> str:
    """Return the name that a block defines: that of its function, or of its type."""
    code = re.sub(r"/\*.*?\*/", "", block, flags=re.S)
    if found := re.match(r"\s*typedef .*\} (\w+);", code):
        return found[1]
    found = re.match(rf"\s*static [\w ]*?(\w+_{dtype})\(", code)
    assert found is not None, block
    return found[1]


def needed(names: Iterable[str]) -> dict[str, str]:
    """Return the blocks that functions such as `sin_double` need, in the order of the templates."""
    names, found = list(names), {}
    for dtype in ("float", "double"):
        blocks = _blocks(dtype)
        wanted, stack = set(), [name for name in names if name in blocks]
        while stack:
            if (name := stack.pop()) not in wanted:
                wanted.add(name)
                stack += {word for word in re.findall(rf"\w+_{dtype}\b", blocks[name]) if word in blocks} - wanted
        found |= {name: block for name, block in blocks.items() if name in wanted}
    return found

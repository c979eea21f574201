"""The uses of the arrays of a repeated step in C, and their names there."""

from enum import Enum

import numpy as np

from .c.emit import TYPES
from .lowering.from_jaxpr import Leaf

MAX_VARIABLES = 256
"""An array of the state that is larger than this is not copied into local variables."""


class Role(Enum):
    """The use of an input or output array of a step in the C loop."""

    SETTING = "input; read once, before the first step"
    STATE = "input and output; the output of a step is the input of the next step"
    SERIES = "input; one row for each step"
    STEP = "input; the number of the step"
    LIMIT = "input; the bound of |x|, which only the loop uses"
    RECORDED = "output; one row for each recorded step"
    CHECKED = "output; must be finite"


ROLES = {
    "p": Role.SETTING,
    "theta": Role.SETTING,
    "end": Role.SETTING,
    "x": Role.STATE,
    "state": Role.STATE,
    "a_star": Role.SERIES,
    "w": Role.SERIES,
    "v": Role.SERIES,
    "noise": Role.SERIES,
    "t": Role.SERIES,
    "series": Role.SERIES,
    "step": Role.STEP,
    "limit": Role.LIMIT,
    "row": Role.RECORDED,
    "checked": Role.CHECKED,
}
"""The roles of the arguments and the results of a step, by name; all arrays of an argument have its role."""


def stays_in_array(leaf: Leaf) -> bool:
    """Return whether a part of the state, such as a buffer, is too large for local variables of the loop."""
    return ROLES[leaf.group] is Role.STATE and is_large(leaf.ids.size)


def is_large(size: int) -> bool:
    return size > MAX_VARIABLES


def variable(leaf: Leaf, i: int) -> str:
    return "step" if ROLES[leaf.group] is Role.STEP else f"{leaf.name}_at_{i}"


def storage(dtype: np.dtype) -> str:
    """Return the C type of an array's elements; NumPy's booleans are bytes."""
    return "uint8_t" if dtype == np.bool_ else TYPES[dtype.name]


def size_of_checked(real: str, checked: list[str], n: int) -> list[str]:
    """Return the C statement of a number that tells whether a step is well: it is small if the first `n` numbers, those
    of x, are small and the other numbers are finite. A sum that is not finite, times zero, is NaN."""
    absolute = "fabsf" if real == "float" else "fabs"
    size = " + ".join(f"{absolute}({number})" for number in checked[:n])
    rest = f" + ({' + '.join(checked[n:])}) * 0" if checked[n:] else ""
    return [f"const {real} size = {size}{rest};"]

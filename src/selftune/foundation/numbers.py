"""Text for numbers, by significant digits."""

import itertools
import math
from decimal import Decimal


def together(*values: float, digits: int = 4) -> list[str]:
    """Return texts for numbers that are read together, such as a mean and its interval, all to the same decimal place.

    The largest number has `digits` significant digits. It has more if two numbers would look alike, so that the
    smallest difference between two of them has two digits. Numbers below 1e-3 and from 1e9 on are written with powers
    of ten. If one number is more than 1e6 times another, no common decimal place fits, and each number has its own.
    """
    finite = [value for value in values if math.isfinite(value)]
    largest = max(map(abs, finite), default=0.0)
    if largest == 0:
        return [f"{value:g}" for value in values]
    if largest > 1e6 * min(abs(value) for value in finite if value):
        return [together(value, digits=digits)[0] for value in values]
    exponent = _exponent(largest)
    gaps = [gap for a, b in itertools.combinations(finite, 2) if 0 < (gap := abs(a - b)) < math.inf]
    digits = min(max([digits, *(exponent - _exponent(gap) + 2 for gap in gaps)]), 12)
    power = 0 if 1e-3 <= largest < 1e9 else exponent
    decimals = max(digits - 1 - (exponent - power), 0)
    scaled = [Decimal(value).scaleb(-power) for value in finite]
    while decimals and all(f"{value:.{decimals}f}".endswith("0") for value in scaled):
        decimals -= 1
    texts = (f"{value:,.{decimals}f}" + (f"e{power:+03d}" if power else "") for value in scaled)
    return [next(texts) if math.isfinite(value) else f"{value:g}" for value in values]


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])

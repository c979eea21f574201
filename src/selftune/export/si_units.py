"""Units of signals, such as "N·m/(rad/s)", as products of powers of SI's base units."""

import re

BASE: tuple[str, ...] = ("kg", "m", "s", "A", "K", "mol", "cd", "rad")
DERIVED: dict[str, dict[str, int]] = {
    "1": {},
    "N": {"kg": 1, "m": 1, "s": -2},
    "J": {"kg": 1, "m": 2, "s": -2},
    "W": {"kg": 1, "m": 2, "s": -3},
    "V": {"kg": 1, "m": 2, "s": -3, "A": -1},
    "Ω": {"kg": 1, "m": 2, "s": -3, "A": -2},
    "Pa": {"kg": 1, "m": -1, "s": -2},
    "Hz": {"s": -1},
}
SUPERSCRIPTS = str.maketrans("⁻¹²³⁴", "-1234")
TOKENS = re.compile(r"(?P<symbol>[^\W\d_]+|1)\^?(?P<power>-?\d+)?|(?P<mark>[·*./()])|(?P<other>\S)")
PLAIN = {"·": ".", "Ω": "Ohm", "°C": "degC", "°": "deg"}
"""Signs of units, in the plain text that Modelica and other tools expect."""


def plain(unit: str) -> str:
    """Return a unit as Modelica writes it.

    !!! Example

        >>> plain("N·m/(rad/s)"), plain("m/s²"), plain("°C")
        ('N.m/(rad/s)', 'm/s2', 'degC')
    """
    text = unit.translate(SUPERSCRIPTS).replace("^", "")
    for sign, word in PLAIN.items():
        text = text.replace(sign, word)
    return text


def exponents(unit: str) -> dict[str, int] | None:
    """Return the powers of the base units in the order of SI, without zeros; None if the unit is not a product of
    units without prefixes.

    !!! Example

        >>> exponents("N·m/(rad/s)")
        {'kg': 1, 'm': 2, 's': -1, 'rad': -1}
        >>> exponents("furlong") is None
        True
    """
    totals = dict.fromkeys(BASE, 0)
    signs, sign, after = [1], 1, 1
    for token in TOKENS.finditer(unit.translate(SUPERSCRIPTS)):
        symbol, power, mark = token["symbol"], int(token["power"] or 1), token["mark"]
        if mark == "/":
            after = -1
        elif mark == "(":
            signs.append(sign)
            sign, after = sign * after, 1
        elif mark == ")" and len(signs) > 1:
            sign, after = signs.pop(), 1
        elif mark in ("·", "*", "."):
            after = 1
        elif symbol in BASE or symbol in DERIVED:
            for base, exponent in ({symbol: 1} if symbol in BASE else DERIVED[symbol]).items():
                totals[base] += sign * after * power * exponent
            after = 1
        else:
            return None
    return {base: power for base, power in totals.items() if power} if len(signs) == 1 else None

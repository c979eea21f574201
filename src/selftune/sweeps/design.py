"""The settings of a sweep: all combinations of a grid, or points drawn from ranges."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError

FLOAT = "__float__"
"""The key for a number that JSON does not have, such as infinity."""
JOINED = "grids"
"""The kind of a design that joins several grids."""
NO_NUMBER, NO_TEXT = math.nan, "–"
"""The values of a setting that does not apply to a point: one that the point's grid does not have."""
Setting = dict[str, Any]
"""Values by name: numbers, strings, lists of numbers, or tables of these."""


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, for a design that draws. With `log`, the draws are uniform in the logarithm.

    !!! Example

        >>> import selftune as st
        >>> design = st.latin_hypercube({"learning_rate": st.Range(1e-4, 1e-1, log=True)}, points=3, seed=0)
        >>> all(1e-4 <= point["learning_rate"] <= 1e-1 for point in design.points)
        True
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ArgumentError(name, "a finite number", arguments.describe(value))
        if not self.low < self.high:
            raise ArgumentError("low, high", "low < high", f"{self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ArgumentError("low", "a number > 0, because `log` is set", f"{self.low}")

    def at(self, share: float) -> float:
        """The number at this share, 0 to 1, of the range."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max(math.exp(low + share * (high - low)), self.low), self.high)
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True)
class Design:
    """The points of a sweep: the `names` of the settings, and their values at each point.

    !!! Example

        >>> import selftune as st
        >>> design = st.random_design({"noise": st.Range(0.0, 1.0), "tuner": ["MGAPS", "GAPS"]}, points=3, seed=0)
        >>> design.kind, design.names, len(design.points)
        ('random', ('noise', 'tuner'), 3)
    """

    kind: str
    names: tuple[str, ...]
    points: tuple[Setting, ...]

    def column(self, name: str) -> list[Any]:
        return [point[name] for point in self.points]


def grid(settings: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Design:
    """Every combination of the listed values. The last setting changes fastest.

    A list of mappings joins their grids. A setting that one of them does not have does not apply to its points: there
    it is NaN, or "–" if its values are not numbers.
    """
    if isinstance(settings, (list, tuple)):
        return _joined([grid(part) for part in settings])
    columns = {name: _choices(name, values) for name, values in _named(settings).items()}
    points = tuple(dict(zip(columns, values, strict=True)) for values in itertools.product(*columns.values()))
    return Design("grid", tuple(columns), points)


def _joined(grids: list[Design]) -> Design:
    if not grids:
        raise ArgumentError("grid", "at least one mapping from names to lists of values", "an empty list")
    names = tuple(dict.fromkeys(name for part in grids for name in part.names))
    missing = {}
    for name in names:
        values = [value for part in grids if name in part.names for value in part.column(name)]
        missing[name] = NO_NUMBER if all(map(_is_number, values)) else NO_TEXT
    points = tuple({name: point.get(name, missing[name]) for name in names} for part in grids for point in part.points)
    if len({repr(point) for point in points}) < len(points):
        raise ArgumentError("grid", "each point once", "two grids with the same point")
    return Design(JOINED, names, points)


def random_design(settings: Mapping[str, Range | Iterable[Any]], points: int, *, seed: int) -> Design:
    """`points` settings with independent draws: each value comes from its `Range` or from its list.

    !!! Example

        >>> import selftune as st
        >>> design = st.random_design({"noise": st.Range(0.0, 1.0), "tuner": ["MGAPS", "GAPS"]}, points=8, seed=1)
        >>> len(design.points), sorted(design.points[0])
        (8, ['noise', 'tuner'])
    """
    settings, points = _named(settings), arguments.count("points", points)
    draws = np.random.default_rng(arguments.whole("seed", seed)).random((points, len(settings)))
    return _drawn("random", settings, draws)


def latin_hypercube(settings: Mapping[str, Range | Iterable[Any]], points: int, *, seed: int) -> Design:
    """`points` settings with evenly spread draws: one in each of `points` equal parts of every range.

    !!! Example

        >>> import selftune as st
        >>> design = st.latin_hypercube({"noise": st.Range(0.0, 1.0)}, points=4, seed=0)
        >>> sorted(int(4 * point["noise"]) for point in design.points)
        [0, 1, 2, 3]
    """
    from scipy.stats import qmc

    settings, points = _named(settings), arguments.count("points", points)
    sampler = qmc.LatinHypercube(d=len(settings), rng=np.random.default_rng(arguments.whole("seed", seed)))
    return _drawn("latin hypercube", settings, sampler.random(points))


def _drawn(kind: str, settings: Mapping[str, Any], shares: np.ndarray) -> Design:
    columns = {}
    for (name, values), column in zip(settings.items(), shares.T, strict=True):
        if isinstance(values, Range):
            columns[name] = [values.at(float(share)) for share in column]
        else:
            choices = _choices(name, values)
            columns[name] = [choices[int(share * len(choices))] for share in column]
    points = tuple(dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return Design(kind, tuple(columns), points)


def _named(settings: Any) -> dict[str, Any]:
    if not isinstance(settings, Mapping) or not settings or not all(isinstance(name, str) for name in settings):
        raise ArgumentError("grid", "a mapping from names to lists of values", arguments.describe(settings))
    for name in settings:
        if name in ("seed", "part", "point", "time", "key", "parameter"):
            raise ArgumentError("grid", "names of settings", f"{name!r}, which is reserved in a sweep")
    return dict(settings)


def _choices(name: str, values: Any) -> list[Any]:
    if isinstance(values, Range):
        raise ArgumentError(name, "a list of values", "a Range", "use random_design to draw from it")
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__iter__"):
        raise ArgumentError(name, "a list of values", arguments.describe(values))
    plain = [_plain(name, value) for value in values]
    if not plain:
        raise ArgumentError(name, "at least one value", "none")
    # 1 and 1.0 have the same place on an axis.
    if len({repr(float(v)) if _is_number(v) else repr(v) for v in plain}) < len(plain):
        raise ArgumentError(name, "each value once", f"{plain}")
    return plain


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(name: str, value: Any) -> Any:
    """The value with only types that JSON has."""
    if hasattr(value, "tolist"):
        value = np.asarray(value).tolist()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != FLOAT for key in value):
        return {key: _plain(name, item) for key, item in value.items()}
    raise ArgumentError(name, "numbers, strings, or lists or tables of them", arguments.describe(value))

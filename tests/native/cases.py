"""What the tables of functions are made of: a function, the shapes it takes, and numbers to try it on."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Case(NamedTuple):
    name: str
    function: Callable[..., Any]
    shapes: str
    """One word for each argument: f, i, u or b for its kind of numbers, then its shape, as in `f2x3`."""
    ulps: float = 16.0
    """How far from JAX a finite result may be, in units of rounding of its own size or of the largest in its array."""
    derive: bool = True
    """Whether derivatives are compared too."""
    nasty: bool = True
    """Whether infinities, NaN, zeros, and the largest and smallest numbers are tried."""
    below_largest: float = 1.0
    """What the largest numbers are divided by: where 1/x is below the normal numbers, XLA takes 1/x for zero."""

    def arguments(self, dtype: Any, rng: np.random.Generator, *, nasty: bool = False) -> list[np.ndarray]:
        return [_numbers(word, np.dtype(dtype), rng, nasty, self.below_largest) for word in self.shapes.split()]

    def derived(self, *args: Any, forward: bool = False, reverse: bool = False) -> dict[str, Any]:
        """The value; a tangent that is not known beforehand, pushed through the linearization; and the Jacobians."""
        made = {"value": self.function(*args)}
        if not self.derive:
            return made
        of_floats, floats = self._of_floats(args)
        argnums = tuple(range(len(floats)))
        _, push = jax.linearize(of_floats, *floats)
        made["pushed"] = push(*(i + 0.7 - x for i, x in enumerate(floats)))
        if forward:
            made["forward"] = jax.jacfwd(of_floats, argnums)(*floats)
        if reverse:
            made["reverse"] = jax.jacrev(of_floats, argnums)(*floats)
        return made

    def _of_floats(self, args: Any) -> tuple[Callable[..., Any], list[Any]]:
        at = [i for i, arg in enumerate(args) if np.dtype(arg.dtype).kind == "f"]

        def of_floats(*floats: Any) -> Any:
            mixed = list(args)
            for i, x in zip(at, floats, strict=True):
                mixed[i] = x
            return self.function(*mixed)

        return of_floats, [args[i] for i in at]


def _numbers(word: str, dtype: np.dtype, rng: np.random.Generator, nasty: bool, below_largest: float) -> np.ndarray:
    kind, shape = word[0], tuple(int(n) for n in word[1:].split("x") if n)
    size = dtype.itemsize
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "f":
        numbers = (1.5 * rng.standard_normal(shape)).astype(dtype)
        info = np.finfo(dtype)
        largest = info.max / below_largest
        odd = [np.inf, -np.inf, np.nan, 0.0, -0.0, largest, -largest / 3, info.tiny * 4, -info.tiny * 9, 1, -1, 0.5]
        odd += [-2.5, 1e5, -1e9, 3e9]
    else:
        dtype = np.dtype(f"{'int' if kind == 'i' else 'uint'}{8 * size}")
        numbers = rng.integers(-7 if kind == "i" else 0, 8, shape).astype(dtype)
        limits = np.iinfo(dtype)
        odd = [limits.max, limits.min, limits.max - 1, limits.min + 1, 0, 0, 1, 31, 32, 63, 64, limits.max // 2]
        odd += [-1, -1, -2] if kind == "i" else []
    if nasty:
        chosen = np.array([odd[i] for i in rng.integers(0, len(odd), max(1, numbers.size))], dtype)[: numbers.size]
        numbers = np.where(rng.random(shape) < 0.5, chosen.reshape(shape), numbers)
    return np.asarray(numbers, dtype)


def difference(got: Any, want: Any, ulps: float, *, each: bool, sparse: bool) -> str:
    """What is wrong with a result, or nothing. `each`: a number's rounding is of its own size.

    `sparse`: a zero that was known when it was compiled stays zero, where IEEE's zero times NaN is NaN.
    """
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.shape} {got.dtype}, not {want.shape} {want.dtype}"
    if want.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{got}, not {want}"
    if sparse:
        want = np.where((got == 0) & np.isnan(want), got, want)
    finite = np.isfinite(want)
    if not np.array_equal(np.isfinite(got), finite) or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return f"{got}, not {want}"
    if not finite.any():
        return ""
    info = np.finfo(want.dtype)
    sizes = np.abs(want[finite]) if each else np.abs(want[finite]).max()
    # Below the normal numbers there is no relative accuracy.
    with np.errstate(over="ignore"):
        error = np.abs(got[finite] - want[finite]) / np.maximum(info.eps * sizes, info.tiny)
    return f"{got}, not {want}: {error.max():.1f} ulp" if error.max() > ulps else ""

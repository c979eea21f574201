"""F_t(θ_t) by interpolation between rollouts with constant θ, for a θ of one number.

At each t, F_t is a function of one number, and it is smooth if the closed loop is. A panel is an interval of θ, with
Chebyshev points as nodes. One rollout for each node, with the node's θ at every step, gives F_t and its gradient at the
node for every t. The polynomials through the nodes give both at θ_t. A panel on which their estimated error is too
large is cut into two, and the rollouts of each part end at the last step whose θ_t is there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..native.lanes import LANES
from ._lockstep import Lanes

NODES = LANES - 1
"""The number of nodes of a panel. The last lane has another θ, at which the polynomial is compared with a rollout."""

DEGREES = 2
"""So many coefficients of the highest degrees, and the same number of the next lower ones, show how fast the
coefficients of the polynomial decrease. One coefficient alone may be small by chance."""

SAFETY = 4.0
"""The safety factor on the error estimate: the coefficients beyond the last one are not known."""

SLOWEST = 0.9
"""The slowest decrease to assume: the sum of the coefficients of the highest degrees, relative to the sum of those of
the next lower degrees. It is nearly 1 if both are rounding errors, and if F_t is not smooth; then both are large."""

NEAR = 256
"""So many successive steps share an estimate, the largest of them: at a single step it may be small by chance."""

ROUNDING = 1_000
"""So many rounding errors of the largest value are a generous estimate for a rollout and the interpolation."""

MOST_LARGER = 100
"""How much larger than at θ_t the values at the nodes may be, if their rounding errors exceed the tolerance."""

MOST_BAD = 0.1
"""If the estimated error is too large at more than this share of the steps so far, the rollouts of a panel stop."""

BLOCK = 16_384
"""The rollouts of a panel advance by at most so many steps at a time: their rows fit in the cache."""

DEPTH = 12
"""How often a panel may be cut. If F_t is not smooth on one part in 2¹² of the range, smaller parts do not help."""

MOST_PANELS = 16
"""So many panels over the whole run take about as long as windows."""
LEAST_STEPS = 160
"""If the scenario has fewer steps than this for each panel, exact rollouts take less time."""


class Values(NamedTuple):
    """F_t(θ_t) and its gradient, with the errors of interpolation and rounding together."""

    value: Float[np.ndarray, " T"]
    gradient: Float[np.ndarray, " T"]
    value_error: Float[np.ndarray, " T"]
    gradient_error: Float[np.ndarray, " T"]


Record = Callable[[Float[np.ndarray, " lanes"], int], Iterator[Lanes]]
"""A function of the constant θ of each lane, and of a number of steps. It yields the rows of the rollouts from step 0,
so many steps at a time, with the lanes first: `value` (lanes, steps) and `gradient` (lanes, steps, 1)."""
Report = Callable[[int, int], None]
"""A function that is called with the number of lane-steps that were made, and of those that the panel still needs."""


def interpolated(theta: Float[np.ndarray, " T"], tolerance: float, record: Record, report: Report) -> Values | None:
    """The values at all steps; None if they would need too many panels, for example because F_t is not smooth."""
    steps = len(theta)
    room = LANES * steps * min(MOST_PANELS, steps // LEAST_STEPS)
    found = Values(*np.zeros((4, steps), theta.dtype))
    panels = [(np.arange(steps), 0)]
    while panels:
        wanted, depth = panels.pop()
        if depth > DEPTH or LANES * int(wanted[-1]) >= room:
            return None
        panel = _Panel(theta, wanted)
        stop, later, bad = 0, wanted, []
        for block in record(panel.lanes, _block(int(wanted[-1]) + 1)):
            rows = np.asarray(block.value), np.asarray(block.gradient)[..., 0]
            begin, stop = stop, stop + rows[0].shape[1]
            report(LANES * (stop - begin), LANES * max(0, int(wanted[-1]) + 1 - stop))
            now, later = np.split(later, [np.searchsorted(later, stop)])
            if len(now):
                bad.append(panel.write(found, now, begin, rows, tolerance))
            if not len(later) or sum(map(len, bad)) > MOST_BAD * (len(wanted) - len(later)):
                break
        room -= LANES * stop
        left = np.concatenate([*bad, later])
        if len(left):
            low, high = theta[left].min(), theta[left].max()
            is_low = theta[left] < low + (high - low) / 2
            panels += [(part, depth + 1) for part in (left[is_low], left[~is_low]) if len(part)]
    return found


def _block(steps: int) -> int:
    """The number of steps to make at a time: one of few sizes, because XLA compiles a program for each."""
    return min(BLOCK, NEAR * 2 ** (-(-steps // NEAR) - 1).bit_length())


class _Panel:
    """The smallest interval that contains the θ of the wanted steps."""

    def __init__(self, theta: np.ndarray, wanted: np.ndarray):
        self.theta, own = theta, theta[wanted]
        self.low, self.high = own.min(), own.max()
        # The other lane is halfway between two nodes, near the median.
        share = (np.median(own) - self.low) / max(self.high - self.low, np.finfo(theta.dtype).tiny)
        gap = np.clip(np.floor(np.arccos(1 - 2 * share) * (NODES - 1) / np.pi), 0, NODES - 2)
        angles = np.append(np.arange(NODES), gap + 0.5) * np.pi / (NODES - 1)
        lanes = self.low + (self.high - self.low) * (1 - np.cos(angles)) / 2
        self.lanes = np.clip(lanes.astype(theta.dtype), self.low, self.high)

    def write(
        self, found: Values, steps: np.ndarray, begin: int, rows: Sequence[np.ndarray], tolerance: float
    ) -> np.ndarray:
        """Write the values of these steps, whose rows begin at step `begin`; return the steps whose errors are too
        large. `rows` are those of the values and those of the gradients."""
        if self.low == self.high:  # all lanes are the same rollout, the exact one
            found.value[steps], found.gradient[steps] = (part[0, steps - begin] for part in rows)
            found.value_error[steps] = found.gradient_error[steps] = 0
            return steps[:0]
        weights, near = self._weights(self.theta[steps]), (steps - begin) // NEAR
        too_large = np.zeros(len(steps), bool)
        targets = ((found.value, found.value_error), (found.gradient, found.gradient_error))
        for part, (values, errors) in zip(rows, targets, strict=True):
            nodes = part[:NODES] if len(steps) == part.shape[1] else part[:NODES, steps - begin]
            with np.errstate(all="ignore"):  # the rollout of a node may diverge
                values[steps] = np.einsum("kt,kt->t", weights, nodes)
                error, rounding = self._errors(part)
            errors[steps] = (error + rounding)[near]
            too_large |= error[near] > tolerance
            # A panel on which some rollouts are much larger than those at θ_t is cut, too.
            own = ROUNDING * np.finfo(part.dtype).eps * np.abs(values[steps]).max()
            too_large |= rounding[near] > max(tolerance, MOST_LARGER * own)
        return steps[too_large]

    def _weights(self, theta: np.ndarray) -> np.ndarray:
        """The values at each θ of the polynomials that are 1 at one node and 0 at all others: (nodes, θ)."""
        place = ((theta - self.low) - (self.high - theta)) / (self.high - self.low)
        apart = place - _PLACES[:, None].astype(theta.dtype)
        weights, above = np.ones_like(apart), np.ones_like(place)
        for k in range(1, NODES):
            np.multiply(weights[k - 1], apart[k - 1], out=weights[k])
        for k in reversed(range(NODES)):
            weights[k] *= above * _SCALES[k]
            above *= apart[k]
        return weights

    def _errors(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The estimated errors of interpolation and of rounding, for each part of `NEAR` steps."""
        rounding = ROUNDING * np.finfo(rows.dtype).eps * _largest(np.maximum(rows.max(axis=0), -rows.min(axis=0)))
        # No matrix product: its threads would disturb those of the rollouts.
        highest = np.abs(np.einsum("ik,kt->it", _TRANSFORM[-2 * DEGREES :].astype(rows.dtype), rows[:NODES]))
        before, last = (_largest(part.sum(axis=0)) for part in (highest[:DEGREES], highest[DEGREES:]))
        # The coefficients beyond the last ones, if they decrease in the same way: a geometric series.
        beyond = last / (1 - np.clip(last / np.where(before > 0, before, 1), 0, SLOWEST))
        # The distance of the polynomial from the rollout that is not a node.
        there = np.einsum("k,kt->t", self._weights(self.lanes[NODES:])[:, 0], rows[:NODES])
        missed = _largest(np.abs(there - rows[NODES]))
        error = SAFETY * sum(np.where(part <= rounding, 0, part) for part in (beyond, missed))
        return np.where(np.isfinite(error) & np.isfinite(rounding), error, np.inf), rounding


def _largest(values: np.ndarray) -> np.ndarray:
    """The largest value of each part of `NEAR` steps, of which the last may be shorter."""
    return np.maximum.reduceat(values, np.arange(0, len(values), NEAR))


_ANGLES = np.pi * np.arange(NODES) / (NODES - 1)
_PLACES = -np.cos(_ANGLES)
"""The nodes of the interval from −1 to 1."""
_SCALES = np.array([1 / np.prod(place - np.delete(_PLACES, k)) for k, place in enumerate(_PLACES)])
_HALVES = np.where(np.isin(np.arange(NODES), (0, NODES - 1)), 0.5, 1.0)
_TRANSFORM = 2 / (NODES - 1) * _HALVES[:, None] * _HALVES * np.cos(np.outer(np.arange(NODES), np.pi - _ANGLES))
"""The matrix that turns the values at the nodes into the coefficients of Chebyshev polynomials."""

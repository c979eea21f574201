"""Stability margins of a control loop, from its linearization at rest."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..foundation.errors import ArgumentError
from ..problem.constraints import AbstractConstraint
from ..problem.system import AbstractSystem

POINTS = 2000
"""Frequencies of the grid on which crossings are looked for, before bisection."""
LEAST = 1e-4
"""A gain that may fall below this share counts as one that may fall to 0: rounding hides how slow such a loop is."""
STEP = 0.2
"""The length of a step of `backed_off`. If θ has the logarithm of a gain, one step changes the gain by a fifth."""
MOST_STEPS = 200
"""The largest number of steps of `backed_off`."""


class Linear(NamedTuple):
    """The open loop as $z_{t+1} = A z_t + B v_t$, $u_t = C z_t$: z is x and the memory, v is the plant's input, and u
    is the control that the policy computes. The loop is closed by v = u."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    dt: float


class Margins(NamedTuple):
    """How far a loop is from instability; for several controls, the worst over one control at a time.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> plant = models.FirstOrder(gain=1.0, time_constant=1.0, dt=0.1)
        >>> print(st.Loop(plant, policies.PID(kp=1.0)).margins())
        gain ×20 up, ×0 down; delay inf s; phase inf°
    """

    gain_margin: float
    """The factor by which the gain may rise until the loop is unstable; infinity if no factor makes it unstable."""
    gain_reduction: float
    """The factor, below 1, to which the gain may fall; 0 if the loop stays stable without control."""
    phase_margin: float
    """In degrees; infinity if the open loop never has the gain 1."""
    delay_margin: float
    """The additional delay, in seconds, at which the loop becomes unstable."""
    spectral_radius: float
    """The largest absolute eigenvalue of the closed loop; below 1 the loop is stable."""

    @property
    def is_stable(self) -> bool:
        return self.spectral_radius < 1

    def __str__(self) -> str:
        if not self.is_stable:
            return f"UNSTABLE: spectral radius {self.spectral_radius:.4g}"
        return (
            f"gain ×{self.gain_margin:.3g} up, ×{self.gain_reduction:.3g} down; "
            f"delay {self.delay_margin:.3g} s; phase {self.phase_margin:.3g}°"
        )


def linear_loop(system: AbstractSystem, x: Array, theta: PyTree, a: PyTree, t: Any, dt: float) -> Linear:
    """Return the open loop, linearized with JAX where the closed loop is at rest."""
    _, A, B, C = _rest(system, x, theta, a, t)
    return Linear(A, B, C, float(dt))


def _rest(
    system: AbstractSystem, x: Array, theta: PyTree, a: PyTree, t: Any
) -> tuple[Array, np.ndarray, np.ndarray, np.ndarray]:
    """Return the loop state at which the closed loop stays, by Newton's method, and A, B and C there.

    The loop need not be stable there. If there is no such state, as with a ramp, return the best one found.
    """
    # A few steps of the policy at the first state, so that a derivative has its last value.
    z = system.first(x)
    for _ in range(3):
        z = system.join(x, system.split(_open_loop(system, z, theta, a, t)[0])[1])
    best, least = (z, np.empty(0), np.empty(0), np.empty(0)), math.inf
    for _ in range(30):
        after, *jacobians = _open_loop(system, z, theta, a, t)
        A, B, C = (np.asarray(part, float) for part in jacobians)
        change = np.asarray(after - z, float)
        size = float(np.linalg.norm(change))
        if best[1].size and not size < least:
            break
        best, previous, least = (z, A, B, C), least, size
        if not size < 0.5 * previous:  # only rounding errors are left, or there is no rest
            break
        step = np.linalg.lstsq(A + B @ C - np.eye(len(change)), -change, rcond=1e-12)[0]
        z = z + jnp.asarray(step, z.dtype)
    return best


# Compiled once for all θ and states, with XLA's optimizations: `back_off` asks for the margins of many θ, and without
# optimizations an arm with six joints takes two seconds each time. The closed loop has the Jacobian A + B C.
@eqx.filter_jit
def _open_loop(system: AbstractSystem, z: Array, theta: PyTree, a: PyTree, t: Any) -> tuple[Array, ...]:
    """Return the next state of the closed loop, and the Jacobians of the open loop."""

    def open_loop(loop_state: Array, v: Array | None) -> tuple[Array, Array]:
        x, memory = system.split(loop_state)
        u, memory, _ = system._act(x, memory, theta, a, t)
        v = u if v is None else v
        return system.join(system.dynamics(x, v, system.residual(x, a, t), t), memory), u

    after, u = open_loop(z, None)
    (A, B), (C, _) = jax.jacfwd(open_loop, argnums=(0, 1))(z, u)
    return after, A, B, C


def margins_of(loop: Linear) -> Margins:
    """Return the margins of a linear loop, with one control at a time cut and the others closed."""
    loop = _without_constants(loop)
    closed = loop.A + loop.B @ loop.C
    radius = float(np.max(np.abs(np.linalg.eigvals(closed))))
    if not radius < 1:
        return Margins(1.0, 1.0, 0.0, 0.0, radius)
    parts = [_one_control(*cut, loop.dt) for cut in _cut(loop)]
    up, down, phase, delay = (np.array(part) for part in zip(*parts, strict=True))
    return Margins(float(up.min()), float(down.max()), float(phase.min()), float(delay.min()), radius)


def growth_time(A: np.ndarray) -> float:
    """Return the number of steps in which the fastest mode of $x_{t+1} = A x_t$ grows by a factor e; infinity if no
    mode grows."""
    radius = float(np.max(np.abs(np.linalg.eigvals(A)), initial=0.0))
    return 1 / math.log(radius) if radius > 1 else math.inf


def _without_constants(loop: Linear) -> Linear:
    """Return the loop without the sums of states that never change, whatever the control is.

    Such a sum is redundant: the angles of motor and load, for example, always differ by the twist of the shaft. It
    would count as an eigenvalue 1 of the closed loop, although the loop may be stable.
    """
    fixed = scipy.linalg.null_space(np.hstack([loop.A - np.eye(len(loop.A)), loop.B]).T, rcond=1e-12)
    if not fixed.shape[1]:
        return loop
    rest = scipy.linalg.null_space(fixed.T)
    return Linear(rest.T @ loop.A @ rest, rest.T @ loop.B, loop.C @ rest, loop.dt)


def _cut(loop: Linear) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield A, b and c of the loop with one control cut, for each control; the others are closed."""
    for j in range(loop.B.shape[1]):
        others = [i for i in range(loop.B.shape[1]) if i != j]
        yield loop.A + loop.B[:, others] @ loop.C[others], loop.B[:, j], loop.C[j]


def _has_gain_margin(loop: Linear, wanted: float) -> bool:
    """Return whether the loop is stable, and stays so while the gain of any control rises by the wanted factor."""
    loop = _without_constants(loop)
    factors = np.geomspace(1.0, wanted, 1 + math.ceil(20 * math.log2(wanted)))
    return all(np.all(_radii(A, b, c, factors) < 1) for A, b, c in _cut(loop))


def _radii(A: np.ndarray, b: np.ndarray, c: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the spectral radius of the closed loop for each factor on the gain."""
    return np.max(np.abs(np.linalg.eigvals(A + factors[:, None, None] * np.outer(b, c))), axis=1)


def _one_control(A: np.ndarray, b: np.ndarray, c: np.ndarray, dt: float) -> tuple[float, float, float, float]:
    """Return gain margins up and down, phase margin in degrees and delay margin in seconds of L = −c (zI − A)⁻¹ b."""
    return *_gain_range(A, b, c), *_phase_and_delay(A, b, c, dt)


def _phase_and_delay(A: np.ndarray, b: np.ndarray, c: np.ndarray, dt: float) -> tuple[float, float]:
    """Return the phase margin in degrees and the delay margin in seconds."""
    frequencies = np.unique(np.concatenate([np.geomspace(1e-6, 1.0, POINTS) * math.pi, _near_crossings(A, b, c)]))
    response = _response(A, b, c)
    excess = np.abs(response(frequencies)) - 1
    phase, delay = math.inf, math.inf
    for i in np.flatnonzero(np.sign(excess[1:]) != np.sign(excess[:-1])):
        crossing = _bisect(lambda w: abs(response(np.array([w]))[0]) - 1, frequencies[i], frequencies[i + 1])
        value = response(np.array([crossing]))[0]
        # The loop is unstable if L reaches −1: that far may the phase fall.
        lag = np.mod(np.angle(-value), 2 * math.pi)
        phase = min(phase, math.degrees(min(lag, 2 * math.pi - lag)))
        delay = min(delay, lag / crossing * dt)
    return phase, delay


def _near_crossings(A: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return frequencies close to all those at which |L| = 1, and one between each two of them: the peak of a
    resonance may be narrower than any grid.

    |L| = 1 on the unit circle means $L(z) L(1/z) = 1$, whose solutions are the eigenvalues of a pencil of matrices.
    """
    n = len(A)
    left = np.block([[A, np.outer(b, b)], [np.zeros((n, n)), np.eye(n)]])
    right = np.block([[np.eye(n), np.zeros((n, n))], [np.outer(c, c), A.T]])
    found = scipy.linalg.eigvals(left, right)
    found = found[np.isfinite(found)]
    angles = np.sort(np.abs(np.angle(found[np.abs(np.abs(found) - 1) < 0.1])))
    angles = angles[(angles > 0) & (angles < math.pi)]
    return np.concatenate([angles, 0.5 * (angles[1:] + angles[:-1])])


def _response(A: np.ndarray, b: np.ndarray, c: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from frequencies, in radians per sample, to L.

    With the Schur form A = Q T Qᴴ, the equations of all frequencies are triangular and are solved together.
    """
    T, Q = scipy.linalg.schur(A, output="complex")[:2]
    b, c = Q.conj().T @ b, c @ Q

    def response(w: np.ndarray) -> np.ndarray:
        z = np.exp(1j * w)
        y = np.zeros((len(T), len(w)), complex)
        with np.errstate(all="ignore"):  # a pole on the unit circle, such as an integrator at frequency zero
            for i in reversed(range(len(T))):
                y[i] = (b[i] + T[i, i + 1 :] @ y[i + 1 :]) / (z - T[i, i])
            L = -(c @ y)
        return np.where(np.isfinite(L), L, np.inf)

    return response


def _gain_range(A: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[float, float]:
    """Return the factors on the gain, around 1, between which the loop is stable."""

    def edge(factors: np.ndarray, limit: float) -> float:
        unstable = np.flatnonzero(_radii(A, b, c, factors) >= 1)
        if not unstable.size:
            return limit
        i = int(unstable[0])
        last = float(factors[i - 1]) if i else 1.0
        return _bisect(lambda factor: _radii(A, b, c, np.array([factor]))[0] - 1, last, float(factors[i]))

    return edge(np.geomspace(1.01, 1e6, 400), math.inf), edge(np.geomspace(0.99, LEAST, 300), 0.0)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Return a zero between two points at which the function has different signs."""
    sign = math.copysign(1, function(low))
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if math.copysign(1, function(middle)) == sign else (low, middle)
    return 0.5 * (low + high)


def backed_off(
    linearized: Callable[[PyTree], Linear],
    constraint: AbstractConstraint,
    theta: PyTree,
    growth: tuple[int, ...],
    wanted: Margins,
    *,
    known: Sequence[PyTree] = (),
) -> PyTree:
    """Return the nearest θ that was found with the wanted margins.

    Two ways lead there. Gains are lowered step by step: each step lowers one gain, all gains but one, or all gains,
    whichever makes the loop most robust: it brings down the largest eigenvalue while the loop is unstable, and the peak
    of the sensitivity 1 / (1 + L) later. Or θ goes toward `known`, other values of θ, as far as the margins need;
    then each number that need not have changed returns.
    """
    flat, unravel = ravel_pytree(theta)
    ways = _downward(growth)

    def projected(place: Any) -> Array:
        return ravel_pytree(constraint.project(unravel(jnp.asarray(place, flat.dtype))))[0]

    def loop_at(place: Array) -> Linear:
        return linearized(unravel(place))

    def is_enough(place: Array) -> bool:
        return _has_margins(loop_at(place), wanted)

    def distance(place: Array) -> float:
        return float(jnp.linalg.norm(place - flat))

    place, loop = flat, loop_at(flat)
    if _has_margins(loop, wanted):
        return theta
    found = [_toward(flat, ravel_pytree(one)[0], projected, is_enough) for one in known]
    found = sorted((one for one in found if one is not None), key=distance)
    limit = distance(found[0]) if found else math.inf
    least = _closeness(loop)
    for _ in range(MOST_STEPS):
        if not distance(place) < limit:
            break
        places = [projected(place + STEP * way) for way in ways]
        loops = [loop_at(one) for one in places]
        closeness, best = min(((_closeness(one), i) for i, one in enumerate(loops)), default=(least, 0))
        if not closeness < least:
            break
        if _has_margins(loops[best], wanted):
            low, high = 0.0, STEP
            for _ in range(12):
                middle = 0.5 * (low + high)
                low, high = (low, middle) if is_enough(projected(place + middle * ways[best])) else (middle, high)
            found.append(projected(place + high * ways[best]))
            break
        place, loop, least = places[best], loops[best], closeness
    if found:
        return unravel(min(found, key=distance))
    names = "gain_margin, phase_margin, delay_margin"
    raise ArgumentError(names, "margins that lower gains can give", f"at best: {margins_of(loop)}")


def _toward(
    start: Array, other: Array, projected: Callable[[Any], Array], is_enough: Callable[[Array], bool]
) -> Array | None:
    """Return a place between `start` and `other` that is enough; None if `other` is not.

    At the least share of the way that is enough, each number tries to return to the start, those that changed most
    first.
    """
    other = projected(other)
    if not is_enough(other):
        return None
    low, high = 0.0, 1.0
    for share in np.linspace(0.0, 1.0, 11)[1:]:  # not only bisection: a place in between may be enough, and others not
        if is_enough(projected(start + share * (other - start))):
            high = float(share)
            break
        low = float(share)
    for _ in range(4):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_enough(projected(start + middle * (other - start))) else (middle, high)
    place = projected(start + high * (other - start))
    for _ in range(2):
        for i in np.argsort(-np.abs(np.asarray(place - start))):
            for share in (1.0, 0.5, 0.25):
                back = place.at[i].add(share * (start[i] - place[i]))
                if abs(float(back[i] - place[i])) > 1e-3 * STEP and is_enough(back := projected(back)):
                    place = back
                    break
    return place


def _downward(growth: tuple[int, ...]) -> list[np.ndarray]:
    """Return the directions of `backed_off`, of length 1: one gain falls, all gains but one fall, or all gains fall."""
    gains = np.flatnonzero(growth)
    one = np.eye(len(growth))[gains]
    every = one.sum(axis=0)
    falling = {tuple(way) for way in (*one, *(every - one), every) if way.any()}
    return [-np.asarray(growth) * np.asarray(way) / np.linalg.norm(way) for way in sorted(falling)]


def _closeness(loop: Linear) -> tuple[bool, float]:
    """Return how close a loop is to instability. Unstable loops are ordered by their spectral radius; stable loops come
    after them, ordered by the largest peak of their sensitivities."""
    loop = _without_constants(loop)
    radius = float(np.max(np.abs(np.linalg.eigvals(loop.A + loop.B @ loop.C))))
    if not radius < 1:
        return True, radius
    peaks = []
    for A, b, c in _cut(loop):
        frequencies = np.concatenate([np.geomspace(1e-5, 1.0, 300) * math.pi, _near_crossings(A, b, c)])
        peaks.append(float(np.max(1 / np.abs(1 + _response(A, b, c)(frequencies)))))
    return False, max(peaks)


def _has_margins(loop: Linear, wanted: Margins) -> bool:
    """Return whether a loop has at least the wanted upper gain margin, phase margin and delay margin."""
    if not _has_gain_margin(loop, wanted.gain_margin):
        return False
    if not wanted.phase_margin and not wanted.delay_margin:
        return True
    parts = [_phase_and_delay(*cut, loop.dt) for cut in _cut(_without_constants(loop))]
    return all(phase >= wanted.phase_margin and delay >= wanted.delay_margin for phase, delay in parts)

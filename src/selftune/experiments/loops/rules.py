r"""Textbook rules that give the gains of a PID: Ziegler–Nichols, SIMC, AMIGO and relay feedback.

- Ziegler and Nichols, "Optimum settings for automatic controllers", Trans. ASME 64 (1942): the ultimate-gain rule.
- Skogestad, "Simple analytic rules for model reduction and PID controller tuning", J. Process Control 13 (2003): SIMC,
  with the closed-loop time constant equal to the dead time, and the half rule.
- Åström and Hägglund, "Revisiting the Ziegler–Nichols step response method for PID control", J. Process Control 14
  (2004): AMIGO.
- Åström and Hägglund, "Automatic tuning of simple regulators with specifications on phase and amplitude margins",
  Automatica 20 (1984): the relay experiment; Tyreus and Luyben, "Tuning PI controllers for integrator/dead time
  processes", Ind. Eng. Chem. Res. 31 (1992): the gains from its result.

The first three rules use the model. The relay experiment runs on the true plant.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from selftune import models

from ...problem.loop_context import LoopContext


class Process(NamedTuple):
    """A plant as its gain, its lags and its dead time. An integrating plant has the gain of its integral."""

    gain: float
    is_integrating: bool
    lags: tuple[float, ...]
    """The time constants in seconds, the longest first, without oscillating modes, which the rules do not know."""
    dead_time: float


class Ultimate(NamedTuple):
    """The gain of a proportional controller at which the loop oscillates, and the period of the oscillation."""

    gain: float
    period: float


def process_of(model: models.AbstractModel) -> Process:
    """Return the gain, the lags and the dead time of a model with one control and one output.

    The sample and hold counts as half a sample of dead time.
    """
    A, b, c = _linear(model)
    poles, dt = np.linalg.eigvals(A), model.dt
    integrates = bool(np.any(np.abs(poles - 1) < 1e-9))
    # At z = 1 + ε, an integrating plant has the gain K dt / ε. The other modes change K by a share of ε.
    near = 1e-7 if integrates else 0.0
    gain = float(c @ np.linalg.solve((1 + near) * np.eye(len(A)) - A, b)) * (near / dt if integrates else 1.0)
    is_lag = (np.abs(poles.imag) < 1e-9) & (poles.real > 1e-3) & (poles.real < 1 - 1e-9)
    lags = tuple(sorted((-dt / math.log(pole) for pole in poles.real[is_lag]), reverse=True))
    return Process(gain, integrates, lags, (_dead_samples(model) + 0.5) * dt)


def ultimate_of(model: models.AbstractModel) -> Ultimate:
    """Return the ultimate gain and period of a model, from the eigenvalues of the loop with a proportional gain."""
    A, b, c = _linear(model)
    sign = math.copysign(1.0, process_of(model).gain)
    scale = model.controls[0].scale / model.outputs[0].scale

    def closed(gain: float) -> np.ndarray:
        return np.linalg.eigvals(A - sign * gain * np.outer(b, c))

    grid = scale * np.geomspace(1e-3, 1e5, 4000)
    crossed = next((i for i, gain in enumerate(grid) if np.max(np.abs(closed(gain))) > 1 + 1e-9), None)
    if crossed is None or crossed == 0:
        return Ultimate(math.inf, math.nan)
    low, high = grid[crossed - 1], grid[crossed]
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if np.max(np.abs(closed(middle))) > 1 else (middle, high)
    fastest = max(closed(high), key=abs)
    return Ultimate(sign * high, 2 * math.pi * model.dt / abs(np.angle(fastest)))


def ziegler_nichols(ultimate: Ultimate, *, derivative: bool) -> dict[str, float]:
    """Return the gains of the ultimate-gain rule: kp = 0.6 Ku, Ti = Pu/2, Td = Pu/8; PI: 0.45 Ku, Pu/1.2."""
    gain, period = ultimate
    return _parallel(0.6 * gain, period / 2, period / 8) if derivative else _parallel(0.45 * gain, period / 1.2)


def tyreus_luyben(ultimate: Ultimate, *, derivative: bool) -> dict[str, float]:
    """Return the gains of Tyreus and Luyben: kp = Ku/2.2, Ti = 2.2 Pu, Td = Pu/6.3; PI: Ku/3.2, 2.2 Pu."""
    gain, period = ultimate
    return _parallel(gain / 2.2, 2.2 * period, period / 6.3) if derivative else _parallel(gain / 3.2, 2.2 * period)


def simc(process: Process, *, derivative: bool) -> dict[str, float]:
    """Return the gains of SIMC, whose PID is in the series form; the second lag becomes the derivative time."""
    lags = [math.inf, *process.lags] if process.is_integrating else list(process.lags)
    kept, rest = lags[: 2 if derivative else 1], lags[2 if derivative else 1 :]
    delay = process.dead_time + sum(rest[1:])
    if rest:  # the half rule: half of the next lag becomes dead time, and half prolongs the last lag that is kept
        delay, kept[-1] = delay + rest[0] / 2, kept[-1] + rest[0] / 2
    first = kept[0]
    slope = process.gain if process.is_integrating else process.gain / first
    kp, ti = 1 / (slope * 2 * delay), min(first, 8 * delay)
    if len(kept) < 2:
        # Without a second lag, SIMC is a PI controller. Its derivative time for a small lag is that of Grimholt and
        # Skogestad (2013), a third of the dead time.
        return _from_series(kp, ti, delay / 3) if derivative else _parallel(kp, ti)
    return _from_series(kp, ti, kept[1])


def amigo(process: Process, *, derivative: bool) -> dict[str, float]:
    """Return the gains of AMIGO, from a gain, one lag T and a dead time L; other lags count as dead time."""
    K, lags = process.gain, process.lags
    if process.is_integrating:
        L = process.dead_time + sum(lags)
        return _parallel(0.45 / (K * L), 8 * L, 0.5 * L) if derivative else _parallel(0.35 / (K * L), 13.4 * L)
    T, L = lags[0], process.dead_time + sum(lags[1:])
    if derivative:
        return _parallel((0.2 + 0.45 * T / L) / K, (0.4 * L + 0.8 * T) / (L + 0.1 * T) * L, 0.5 * L * T / (0.3 * L + T))
    kp = 0.15 / K + (0.35 - L * T / (L + T) ** 2) * T / (K * L)
    return _parallel(kp, 0.35 * L + 13 * L * T**2 / (T**2 + 12 * L * T + 7 * L**2))


def relay(
    plant: models.AbstractModel,
    reference: float,
    limits: tuple[float, float],
    noise: float,
    steps: int,
    *,
    a_star: Any = None,
    seed: int = 0,
) -> Ultimate:
    """Return the ultimate gain and period that a relay measures on the plant around a reference.

    The relay has an amplitude d of 20 % of the control's range, around the control that holds the reference on the
    nominal plant, and a hysteresis ε of three standard deviations of the noise. The oscillation of amplitude A in the
    second half of the experiment gives Ku = 4 d / (π √(A² − ε²)).
    """
    low, high = limits
    process = process_of(plant)
    rest = float(plant.output(plant.x0)[0])
    hold = 0.0 if process.is_integrating else (reference - rest) / process.gain
    d = min(0.2 * (high - low), hold - low, high - hold)
    epsilon, sign = 3 * noise, math.copysign(1.0, process.gain)
    a = plant.a_hat if a_star is None else a_star
    noises = noise * jax.random.normal(jax.random.key(seed), (steps,))
    t = LoopContext(jnp.zeros((), jnp.int32), jnp.full(1, reference))

    def step(carry: Any, v: jax.Array) -> Any:
        x, last = carry
        y = plant.measure(x, t)[0]
        error = sign * (reference - y - v)
        side = jnp.asarray(jnp.where(jnp.abs(error) > epsilon, jnp.sign(error), last))
        u = jnp.clip(hold + d * side, low, high)[None]
        return (plant.dynamics(x, u, plant.residual(x, a, t), t), side), (plant.output(x)[0], side)

    _, (y, side) = jax.lax.scan(step, (plant.x0, jnp.ones(())), noises)
    y, side = np.asarray(y)[steps // 2 :], np.asarray(side)[steps // 2 :]
    rises = np.flatnonzero((side[1:] > 0) & (side[:-1] < 0)) + 1
    if rises.size < 3:
        return Ultimate(math.nan, math.nan)
    cycles = [y[i:j] for i, j in itertools.pairwise(rises)]
    amplitude = float(np.mean([np.ptp(cycle) / 2 for cycle in cycles]))
    root = math.sqrt(max(amplitude**2 - epsilon**2, (0.1 * amplitude) ** 2))
    return Ultimate(sign * 4 * d / (math.pi * root), float(np.mean(np.diff(rises))) * plant.dt)


def _linear(model: models.AbstractModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, b and c of the model at rest, a little above a control that cannot be negative."""
    u = jnp.full(1, 1e-3 * model.controls[0].scale)
    t = LoopContext(jnp.zeros((), jnp.int32), jnp.zeros(1))
    f = model.residual(model.x0, model.a_hat, t)
    x = model.x0
    if isinstance(model, models.Delayed):  # the queue of controls is above the limit too
        x = x.at[-model.samples :].set(u[0])
    A, B = jax.jacfwd(model.dynamics, argnums=(0, 1))(x, u, f, t)
    return np.asarray(A), np.asarray(B)[:, 0], np.asarray(jax.jacfwd(model.output)(x))[0]


def _dead_samples(model: models.AbstractModel) -> int:
    """Return the model's delay in samples, besides the one of the sampling itself."""
    return model.samples if isinstance(model, models.Delayed) else 0


def _parallel(kp: float, ti: float, td: float | None = None) -> dict[str, float]:
    gains = {"kp": kp, "ki": kp / ti}
    return gains if td is None else gains | {"kd": kp * td}


def _from_series(kp: float, ti: float, td: float) -> dict[str, float]:
    """Return the gains of the parallel form of kp (1 + 1/(Ti s)) (1 + Td s)."""
    share = 1 + td / ti
    return _parallel(kp * share, ti * share, td / share)

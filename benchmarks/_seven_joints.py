"""An arm of seven joints in space, as a large problem: n = 21, m = 7, d = 14, p = 22.

State x = [q, q̇, τ]: angles, rates, and the torques of the actuators, which follow the command with a lag. The policy is
computed torque by the recursive Newton–Euler algorithm, minus the estimated residual.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

JOINTS = 7
DT, LAG, GRAVITY = 0.002, 0.008, 9.81
LAP = 2_000
"""Steps of one period of the reference: 4 s."""
MASSES = np.array([3.0, 2.8, 2.5, 2.2, 1.8, 1.4, 0.8])
OFFSETS = np.array(
    [[0, 0, 0.33], [0, 0, 0], [0, 0.316, 0], [0.083, 0, 0], [-0.083, 0.384, 0], [0, 0, 0], [0.088, 0, 0.1]]
)
"""The origin of each joint's frame in the frame of the previous one (m); a joint turns about its z axis."""
TURNS = (0, -1, 1, 1, -1, 1, 1)
"""The fixed turn of each frame about its x axis, in quarters of a turn."""
CENTRES = np.array(
    [[0, 0.03, -0.1], [0, -0.1, 0.03], [0.04, 0.02, -0.08], [-0.04, 0.1, 0.02]] + [[0.02, 0.03, 0.04]] * 3
)
INERTIAS = np.array([0.03, 0.03, 0.025, 0.02, 0.015, 0.006, 0.002])
ROTORS = np.array([0.4, 0.4, 0.3, 0.3, 0.1, 0.1, 0.1])
LIMITS = np.array([87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0])
POSE = np.array([0.2, -0.4, 0.3, -1.6, 0.2, 1.6, 0.4])
PAYLOAD = np.array([0.0, 0.0, 0.1])


def _quarter(turn: int) -> np.ndarray:
    c, s = [(1, 0), (0, 1), (-1, 0), (0, -1)][turn % 4]
    return np.array([[1, 0, 0], [0, c, -s], [0, s, c]], float)


def _turn(c: Any, s: Any, v: Any) -> Any:
    """A vector, turned about z."""
    return jnp.stack([c * v[0] - s * v[1], s * v[0] + c * v[1], v[2]])


def torques(q: Any, rate: Any, acceleration: Any, *, gravity: float = GRAVITY, masses: Any = MASSES, tip: float = 0.0):
    """The joint torques of a motion, by the recursive Newton–Euler algorithm; `tip` is a mass at the last link."""
    dtype = q.dtype
    c, s = jnp.cos(q), jnp.sin(q)
    z = np.array([0.0, 0.0, 1.0])
    turns = [jnp.asarray(_quarter(turn), dtype) for turn in TURNS]
    w, dw, a = jnp.zeros(3, dtype), jnp.zeros(3, dtype), jnp.array([0.0, 0.0, gravity], dtype)
    forces = []
    for i in range(JOINTS):
        offset = jnp.asarray(OFFSETS[i], dtype)
        a = a + jnp.cross(dw, offset) + jnp.cross(w, jnp.cross(w, offset))

        def down(v: Any, i: int = i) -> Any:
            return _turn(c[i], -s[i], turns[i].T @ v)

        w, dw, a = down(w), down(dw), down(a)
        spin = rate[i] * z.astype(dtype)
        dw = dw + jnp.cross(w, spin) + acceleration[i] * z.astype(dtype)
        w = w + spin
        parts = [(masses[i], CENTRES[i], INERTIAS[i])]
        if tip and i == JOINTS - 1:
            parts.append((tip, PAYLOAD, 0.0))
        force, moment = jnp.zeros(3, dtype), jnp.zeros(3, dtype)
        for mass, centre, inertia in parts:
            if not mass:
                continue
            centre = jnp.asarray(centre, dtype)
            push = mass * (a + jnp.cross(dw, centre) + jnp.cross(w, jnp.cross(w, centre)))
            force, moment = force + push, moment + jnp.cross(centre, push) + inertia * dw
        forces.append((force, moment))
    out = []
    force, moment = jnp.zeros(3, dtype), jnp.zeros(3, dtype)
    for i in reversed(range(JOINTS)):
        force, moment = force + forces[i][0], moment + forces[i][1]
        out.append(moment[2])
        force, moment = (turns[i] @ _turn(c[i], s[i], v) for v in (force, moment))
        moment = moment + jnp.cross(jnp.asarray(OFFSETS[i], dtype), force)
    return jnp.stack(out[::-1]) + jnp.asarray(ROTORS, dtype) * acceleration * (0.0 if not np.any(masses) else 1.0)


def mass_matrix(q: Any) -> Any:
    zero = jnp.zeros_like(q)
    return jax.vmap(lambda unit: torques(q, zero, unit, gravity=0.0))(jnp.eye(JOINTS, dtype=q.dtype))


def reference(t: Any, dtype: Any) -> tuple[Any, Any, Any]:
    phase = (jnp.asarray(t) % LAP).astype(dtype) * (2 * np.pi / LAP)
    turns = jnp.asarray([1, 2, 1, 2, 1, 2, 1], dtype)
    speed = turns * (2 * np.pi / LAP / DT)
    swing = 0.3 * jnp.cos(turns * phase)
    return jnp.asarray(POSE, dtype) - swing, 0.3 * speed * jnp.sin(turns * phase), speed**2 * swing


def system() -> st.System:
    n = JOINTS

    def dynamics(x, u, f, t):
        q, rate, torque = x[:n], x[n : 2 * n], x[2 * n :]
        free = torque + f - torques(q, rate, jnp.zeros_like(q))
        acceleration = jax.scipy.linalg.solve(mass_matrix(q), free, assume_a="pos")
        rate = rate + DT * acceleration
        share = 1 - np.exp(-DT / LAG)
        return jnp.concatenate([q + DT * rate, rate, torque + share * (u - torque)])

    def residual(x, a, t):
        q, rate = x[:n], x[n : 2 * n]
        _, wanted_rate, acceleration = reference(t, x.dtype)
        payload = torques(q, wanted_rate, acceleration, masses=np.zeros(n), tip=1.0)
        return -(a[:n] * rate + a[n : 2 * n] * jnp.tanh(10 * rate) + a[2 * n : 3 * n] + a[3 * n] * payload)

    def policy(x, theta, f, t):
        q, rate = x[:n], x[n : 2 * n]
        wanted, wanted_rate, acceleration = reference(t, x.dtype)
        gains = jnp.exp(theta)
        pull = acceleration + gains[:n] * (wanted - q) + gains[n:] * (wanted_rate - rate)
        limits = jnp.asarray(LIMITS, x.dtype)
        return jnp.clip(torques(q, rate, pull) - f, -limits, limits)

    def cost(x, u, theta, t):
        q, rate, torque = x[:n], x[n : 2 * n], x[2 * n :]
        wanted, wanted_rate, _ = reference(t, x.dtype)
        return jnp.mean(
            ((q - wanted) / 0.02) ** 2 + ((rate - wanted_rate) / 0.2) ** 2 + ((u - torque) / (0.12 * LIMITS)) ** 2
        )

    return st.System(dynamics, residual, policy, cost)


def start(dtype: Any = jnp.float64) -> dict[str, Any]:
    """x, θ and â before the first step."""
    q, rate, _ = reference(0, dtype)
    x = jnp.concatenate([q, rate, jnp.zeros(JOINTS, dtype)])
    theta = jnp.asarray(np.log([100.0] * JOINTS + [20.0] * JOINTS), dtype)
    return {"x": x, "theta": theta, "a_hat": jnp.zeros(3 * JOINTS + 1, dtype)}

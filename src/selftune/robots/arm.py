"""A planar arm of two or three links in the vertical plane, driven by joint torques. It follows a periodic reference.

State x = [q, q̇, τ]: the joint angles (rad; the first from hanging down, the others relative to the previous link),
their rates, and the actual torques of the actuators, which follow the command u with a lag. The model must contain the
lag: without it, a tuner would not see that high gains are harmful. The policy is computed torque, minus the estimate of
payload, friction and disturbance.
"""

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from ..foundation.errors import ArgumentError
from ..policies import ComputedTorque, Inputs
from ..problem.constraints import Box
from ..problem.noise import Gaussian
from ..problem.scenario import Scenario
from ..problem.system import System
from .base import Plant, Robot

GRAVITY = 9.81
DT = 0.004
LAG = 0.016
LAP = 1000
"""Steps of one period of the reference: 4 s."""
SLIP = 0.1
"""The rate (rad/s) at which Coulomb friction is nearly at its full value."""
SCALES = (0.025, 0.25, 0.12)
"""The values that cost 1 at a joint: an error of the angle (rad), an error of the rate (rad/s), and a difference of
command and torque (the effort of a change), as a share of the torque's limit."""


class Load(NamedTuple):
    """The masses that an arm moves. With ψ the links' angles from hanging down, the kinetic energy is ½ Σ Bᵢⱼ cos(ψᵢ −
    ψⱼ) ψ̇ᵢ ψ̇ⱼ plus ½ Σ rᵢ q̇ᵢ², and the potential energy is −g Σ bᵢ cos ψᵢ."""

    B: np.ndarray
    b: np.ndarray
    r: np.ndarray


@dataclass(frozen=True)
class Arm:
    """The model's parameters of an arm, and its task; one number for each joint."""

    masses: tuple[float, ...]
    """The masses of the links, which are uniform rods (kg)."""
    lengths: tuple[float, ...]
    rotors: tuple[float, ...]
    """The motors' inertias, as seen at the joints after the gears (kg·m²)."""
    limits: tuple[float, ...]
    """The largest torques of the actuators (N·m)."""
    centre: tuple[float, ...]
    size: tuple[float, ...]
    turns: tuple[int, ...]
    """The reference is centre − size · cos(turns · 2π t / LAP), which starts at rest."""

    @property
    def links(self) -> int:
        return len(self.masses)

    @property
    def own(self) -> Load:
        """The load of the arm itself."""
        B, b = np.zeros((self.links, self.links)), np.zeros(self.links)
        for i, (mass, length) in enumerate(zip(self.masses, self.lengths, strict=True)):
            reach = np.array([*self.lengths[:i], length / 2] + [0.0] * (self.links - i - 1))
            B += mass * np.outer(reach, reach)
            B[i, i] += mass * length**2 / 12
            b += mass * reach
        return Load(B, b, np.array(self.rotors))

    @property
    def payload(self) -> Load:
        """The load of one kilogram at the tip."""
        return Load(np.outer(self.lengths, self.lengths), np.array(self.lengths), np.zeros(self.links))

    def reference(self, t: ArrayLike, dtype: Any) -> tuple[Array, Array, Array]:
        """The desired angles, rates and accelerations at step t."""
        # Take the remainder of the integer first, so that the phase in float32 stays exact in long runs.
        phase = (jnp.asarray(t) % LAP).astype(dtype) * (2 * np.pi / LAP)
        centre, size, turns = (jnp.array(v, dtype) for v in (self.centre, self.size, self.turns))
        speed = turns * (2 * np.pi / LAP / DT)
        swing = size * jnp.cos(turns * phase)
        return centre - swing, size * speed * jnp.sin(turns * phase), speed**2 * swing


def torques(load: Load, q: Array, rate: Array, acceleration: Array) -> Array:
    """The joint torques for a motion of the load: inertial, centrifugal and gravitational."""
    B, b, r = (jnp.array(v, q.dtype) for v in load)
    sine, cosine = _pairs(q)
    pull = cosine * jnp.cumsum(acceleration) + sine * jnp.cumsum(rate) ** 2
    on_links = jnp.sum(B * pull, axis=1) + GRAVITY * b * jnp.sin(jnp.cumsum(q))
    on_joints = jnp.cumsum(on_links[::-1])[::-1]
    return on_joints + r * acceleration if np.any(load.r) else on_joints


def accelerations(load: Load, q: Array, rate: Array, torque: Array) -> Array:
    """The joint accelerations under these torques: the inverse of `torques`."""
    free = torque - torques(load, q, rate, jnp.zeros_like(q))
    on_links = free - jnp.append(free[1:], jnp.zeros_like(free[:1]))
    apart = np.eye(q.size) - np.eye(q.size, k=-1)  # q = apart ψ
    rotors = jnp.array(apart.T @ np.diag(load.r) @ apart, q.dtype)
    turning = _solve(jnp.array(load.B, q.dtype) * _pairs(q)[1] + rotors, on_links)
    return turning - jnp.append(jnp.zeros_like(turning[:1]), turning[:-1])


ARMS = {
    2: Arm(
        (1.5, 1.0),
        (0.4, 0.35),
        (0.2, 0.1),
        (20.0, 10.0),
        centre=(0.6, 0.8),
        size=(0.5, 0.7),
        turns=(1, 2),
    ),
    3: Arm(
        (1.5, 1.0, 0.6),
        (0.4, 0.35, 0.25),
        (0.4, 0.2, 0.1),
        (40.0, 20.0, 8.0),
        centre=(0.5, 0.6, 0.5),
        size=(0.4, 0.5, 0.4),
        turns=(1, 2, 3),
    ),
}


def _pairs(q: Array) -> tuple[Array, Array]:
    """The sines and cosines of all differences ψᵢ − ψⱼ."""
    s, c = jnp.sin(jnp.cumsum(q)), jnp.cos(jnp.cumsum(q))
    return s[:, None] * c - c[:, None] * s, c[:, None] * c + s[:, None] * s


def _solve(A: Array, v: Array) -> Array:
    """A⁻¹ v for a small symmetric positive definite A, by an explicit L D Lᵀ factorization."""
    n = v.shape[0]
    L: dict[tuple[int, int], Array] = {}
    inverse: list[Array] = []  # of D
    z: list[Array] = []
    for i in range(n):
        scaled = []
        for j in range(i):
            scaled.append(A[i, j] - sum((scaled[k] * L[j, k] for k in range(j)), jnp.zeros_like(v[0])))
            L[i, j] = scaled[j] * inverse[j]
        inverse.append(1 / (A[i, i] - sum((scaled[k] * L[i, k] for k in range(i)), jnp.zeros_like(v[0]))))
        z.append(v[i] - sum((L[i, k] * z[k] for k in range(i)), jnp.zeros_like(v[0])))
    out: list[Array] = [v[0]] * n
    for i in reversed(range(n)):
        out[i] = z[i] * inverse[i] - sum((L[k, i] * out[k] for k in range(i + 1, n)), jnp.zeros_like(v[0]))
    return jnp.stack(out)


@cache
def computed_torque(links: int, dtype: Any) -> ComputedTorque:
    """The arm's policy, with numbers of this dtype."""
    arm = ARMS[links]
    with jax.ensure_compile_time_eval():  # the policy's settings are numbers, also if JAX is tracing
        frequency, damping, u_max = (jnp.asarray(value, dtype) for value in (25.0, 1.0, arm.limits))
        return ComputedTorque(partial(torques, arm.own), links, frequency=frequency, damping=damping, u_max=u_max)


@cache
def arm_system(links: int = 2) -> System:
    """The arm's four functions.

    θ: the logarithms of the natural frequency (rad/s) of each joint, then of its damping ratio.
    a: a payload at the tip (kg); then viscous friction (N·m·s/rad), Coulomb friction (N·m) and a constant torque (N·m),
    each with one number for each joint.
    """
    arm = ARMS[links]
    own, payload = arm.own, arm.payload

    def dynamics(x, u, f, t):
        q, rate, torque = jnp.split(x, 3)
        next_torque = torque + (1 - math.exp(-DT / LAG)) * (u - torque)
        next_rate = rate + DT * accelerations(own, q, rate, 0.5 * (torque + next_torque) + f)
        return jnp.concatenate([q + 0.5 * DT * (rate + next_rate), next_rate, next_torque])

    def residual(x, a, t):
        q, rate, _ = jnp.split(x, 3)
        viscous, coulomb, constant = jnp.split(a[1:], 3)
        # The desired acceleration replaces the payload's actual one, so that the residual is linear in a. The desired
        # rate replaces the actual one in the friction, so that its compensation does not feed back a late, noisy rate.
        _, wanted_rate, wanted_acceleration = arm.reference(t, x.dtype)
        friction = viscous * wanted_rate + coulomb * jnp.tanh(wanted_rate / SLIP)
        return constant - friction - a[0] * torques(payload, q, rate, wanted_acceleration)

    def policy(x, theta, f, t):
        frequency, damping = jnp.split(theta, 2)
        reference = jnp.concatenate(arm.reference(t, x.dtype))
        inputs = Inputs(x[:links], reference, x, f, jnp.asarray(DT, x.dtype), t)
        return computed_torque(links, x.dtype)(inputs, None, {"log_damping": damping, "log_frequency": frequency})[0]

    def cost(x, u, theta, t):
        q, rate, torque = jnp.split(x, 3)
        wanted, wanted_rate, _ = arm.reference(t, x.dtype)
        angle_scale, rate_scale, torque_scale = SCALES
        chatter = (u - torque) / (torque_scale * jnp.array(arm.limits, x.dtype))
        return jnp.sum(((q - wanted) / angle_scale) ** 2 + ((rate - wanted_rate) / rate_scale) ** 2 + chatter**2)

    return System(dynamics, residual, policy, cost)


def make(links: int = 2) -> Robot:
    """The arm with 2 or 3 links; the same object at each call.

    Halfway through, the payload grows from 0.2 to 0.7 kg ("payload"), or constant torques begin that the model does not
    know ("disturbance"), or nothing happens ("nominal").
    """
    if links not in ARMS:
        raise ArgumentError("links", "2 or 3", f"{links!r}")
    return _make(links)


@cache
def _make(links: int) -> Robot:
    arm = ARMS[links]

    def each(*values):
        return np.concatenate([np.broadcast_to(v, links) for v in values])

    def error(x, t):
        return x[:links] - arm.reference(t, x.dtype)[0]

    def make_plant(condition: str, seed: int, steps: int) -> Plant:
        from .arm_plant import ArmPlant  # here, because MuJoCo is an extra that the model does not need

        return ArmPlant(arm, condition, seed, steps)

    def make_scenario(steps: int, key: jax.Array) -> Scenario:
        kx, ka, kw, kv = jax.random.split(key, 4)
        low, high = each(0.1, 0.1, -0.3), each(0.3, 0.4, 0.3)
        friction = jax.random.uniform(ka, (3 * links,), minval=low, maxval=high)
        payload = jnp.where(2 * jnp.arange(steps) < steps, 0.2, 0.7)
        a_star = jnp.concatenate([payload[:, None], jnp.broadcast_to(friction, (steps, 3 * links))], axis=1)
        x0 = jnp.zeros(3 * links)
        start = arm.reference(0, x0.dtype)[0] + 0.05 * jax.random.normal(kx, (links,))
        w = Gaussian(each(0.0, 5e-3, 0.0)).stream(kw, 3 * links)
        v = Gaussian(0.2).stream(kv, links)
        return Scenario(x0.at[:links].set(start), a_star, w, v, steps=steps)

    theta, limits = np.log(each(25.0, 1.0)), np.array(arm.limits)
    return Robot(
        name=f"arm{links}",
        dt=DT,
        system=arm_system(links),
        gains=tuple(f"log {what} of joint {i + 1}" for what in ("ωn", "ζ") for i in range(links)),
        theta=theta,
        power=each(0.5, 0.5),
        theta_box=Box(np.log(each(4.0, 0.5)), np.log(each(40.0, 1.5))),
        parameters=(
            "payload (kg)",
            *(f"viscous {i + 1} (N·m·s/rad)" for i in range(links)),
            *(f"Coulomb {i + 1} (N·m)" for i in range(links)),
            *(f"torque {i + 1} (N·m)" for i in range(links)),
        ),
        a_hat=np.zeros(1 + 3 * links),
        a_scale=np.append(0.5, each(0.3, 0.6, 0.06 * limits)),
        a_box=Box(np.append(0.0, each(0.0, 0.0, -4.0)), np.append(1.5, each(1.0, 1.5, 4.0))),
        learning_rate=0.01,
        estimator_rate=0.01,
        conditions=("payload", "disturbance", "nominal"),
        make_plant=make_plant,
        make_scenario=make_scenario,
        error=error,
        lap=LAP,
        guard={
            "x_limit": each(2 * np.pi, 40.0, 2 * max(arm.limits)),
            "f_limit": 4 * limits,
            "u_low": -0.9 * limits,  # beyond this, the soft clamp counts as saturated
            "u_high": 0.9 * limits,
            "rate": 0.002,
            "y_limit": 400.0,
            "growth": np.ones(2 * links),
            "stuck": 3,
            "window": LAP,
            "cost_floor": 2.0,  # so that an exchange of the payload does not cause a rollback
        },
    )

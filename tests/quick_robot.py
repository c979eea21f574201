"""A robot for tests: a cart that follows a sinusoid, with a plant in plain NumPy."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.robots.base import Plant, Robot

DT, LAP = 0.02, 100


def reference(t):
    phase = 2 * np.pi / LAP * jnp.asarray(t).astype(float)
    rate = 2 * np.pi / (LAP * DT)
    return jnp.sin(phase), rate * jnp.cos(phase), -(rate**2) * jnp.sin(phase)


def actuation(x, theta, t):
    position, speed, acceleration = reference(t)
    frequency, damping = jnp.exp(theta)
    return jnp.stack([acceleration - frequency**2 * (x[0] - position) - 2 * damping * frequency * (x[1] - speed)])


SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: jnp.stack([x[0] + DT * x[1], x[1] + DT * v[0]]),
    residual=lambda x, a, t: jnp.stack([a[0] - a[1] * x[1]]),
    actuation=actuation,
    cost=lambda x, u, theta, t: 10 * (x[0] - reference(t)[0]) ** 2 + 1e-3 * u[0] ** 2,
)


class Cart(Plant):
    """With wind from halfway on, if there is any, and friction; `brittle` crashes on gains that are too high."""

    def __init__(self, condition: str, seed: int, steps: int):
        self.condition, self.seed, self.half = condition, seed, steps // 2
        self.reset()

    def reset(self):
        self.random = np.random.default_rng(self.seed)
        self.x, self.t, self.hardest = np.array([0.2, 2 * np.pi / (LAP * DT)]), 0, 0.0
        self.wind = self.random.uniform(0.5, 1.5)
        return self.x.copy()

    def step(self, u):
        self.hardest = max(self.hardest, abs(float(u[0])))
        force = u[0] - 0.4 * self.x[1] + (self.wind if self.t >= self.half else 0.0)
        self.x = np.array([self.x[0] + DT * self.x[1], self.x[1] + DT * force])
        self.t += 1
        return self.x + 1e-3 * self.random.standard_normal(2)

    def drop(self):
        pass

    @property
    def truth(self):
        return self.x

    @property
    def crashed(self):
        return self.condition == "brittle" and self.hardest > 60


@cache
def make() -> Robot:
    def scenario(steps: int, key: jax.Array) -> st.Scenario:
        return st.Scenario(jnp.zeros(2), jnp.zeros((steps, 2)), jnp.zeros((steps, 2)))

    return Robot(
        name="cart",
        dt=DT,
        system=SYSTEM,
        gains=("log frequency", "log damping"),
        theta=np.log([4.0, 0.8]),
        power=np.array([0.5, 0.5]),
        theta_box=st.Box(np.log([1.0, 0.2]), np.log([40.0, 2.0])),
        parameters=("wind (m/s²)", "friction (1/s)"),
        a_hat=np.zeros(2),
        a_box=st.Box(-3.0, 3.0),
        learning_rate=0.02,
        estimator_rate=0.05,
        conditions=("wind", "brittle"),
        make_plant=Cart,
        make_scenario=scenario,
        error=lambda x, t: x[:1] - reference(t)[0],
        lap=LAP,
        guard={"rate": 0.02},
    )

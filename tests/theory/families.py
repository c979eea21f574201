"""Random contractive systems whose constants are known by hand.

The numbers of a system travel in its context t, so that one compilation serves a whole family.
"""

from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.theory.matched import fading_sum


@dataclass(frozen=True)
class Case:
    controller: st.Controller
    scenario: st.Scenario
    run: st.Run
    sets: st.Sets
    constants: st.Constants
    contraction: st.Contraction
    variation: float

    def certify(self, **more):
        return st.certify(
            self.controller,
            self.scenario,
            self.run,
            self.sets,
            constants=self.constants,
            contraction=self.contraction,
            variation=self.variation,
            window=None,
            **more,
        )


@cache
def scalar() -> st.MatchedSystem:
    """n = m = d = 1, p = 2: every function bends, and the cost depends on θ."""
    return st.MatchedSystem(
        dynamics=lambda x, v, t: t["c"] * x + t["s"] * jnp.sin(x) + t["b"] * v + t["e"] * jnp.sin(v),
        residual=lambda x, a, t: jnp.stack([a[0] + a[1] * jnp.sin(x[0])]),
        actuation=lambda x, theta, t: -theta * jnp.tanh(x),
        cost=lambda x, u, theta, t: (
            jnp.sum((t["p"] + t["z"] * theta) * x**2) + t["q"] * jnp.sum(u**2) + t["r"] * jnp.sum(theta**2)
        ),
    )


@cache
def planar() -> st.MatchedSystem:
    """n = m = d = p = 2: a triangular closed loop, whose products first grow."""

    def phi(x, v, t):
        return jnp.stack([t["c"] * x[0] + t["k"] * x[1], t["c"] * x[1]]) + t["b"] * v

    return st.MatchedSystem(
        dynamics=phi,
        residual=lambda x, a, t: jnp.stack([a[0] * jnp.sin(x[1]), a[1] * jnp.cos(x[0])]),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: t["p"] * jnp.sum(x**2) + t["q"] * jnp.sum(u**2),
    )


def scalar_case(rng: np.random.Generator, steps: int = 100) -> Case:
    high = rng.uniform(0.2, 1.5)
    c, s, push = rng.dirichlet([1.0, 1.0, 1.0, 0.6])[:3] * rng.uniform(0.5, 1.0)
    share = rng.uniform(0.0, 0.5)
    b, e = push / high * (1 - share), push / high * share
    rho = c + s + (b + e) * high
    c, s = c * rng.choice([-1, 1]), s * rng.choice([-1, 1])
    p, q, r, z = rng.uniform(0.1, 1.0, 4) * [1, 1, rng.integers(2), rng.integers(2)]
    wave = p * (1 + rng.choice([0.0, 0.3]) * np.sin(0.3 * np.arange(steps)))
    size = rng.choice([1e-4, 1e-2, 0.3])
    w = rng.uniform(0.01, 0.3) * rng.uniform(-1, 1, (steps, 1))
    x0 = rng.uniform(-0.2, 0.2, 1)
    R_S = float(fading_sum(rho, 1.0, 0.0, np.abs(w[:, 0])).max())
    spread = (b + e) * 2 * size * np.sqrt(2) / (1 - rho)  # what a wrong model can add
    R = 1.05 * (2 * R_S + abs(x0[0]) + spread) + 0.01
    reach = size * 2  # |f| ≤ |a_0| + |a_1|
    U = high * np.tanh(R) + 2 * reach
    low_p = wave.max()
    constants = st.Constants(
        L_phi_x=abs(c) + abs(s), L_phi_u=b + e, ell_phi_x=abs(s), ell_phi_u=e,
        L_psi_x=high, L_psi_theta=np.tanh(R), ell_psi_x=np.hypot(4 / (3 * np.sqrt(3)) * high, 1), ell_psi_theta=1.0,
        L_f_x=size, L_f_a=np.sqrt(2), ell_f_x=max(size, 1.0), ell_f_a=1.0,
        L_h_x=2 * (low_p + z * high) * R, L_h_u=2 * q * U, L_h_theta=2 * r * high + z * R**2,
        ell_h_x=np.hypot(2 * (low_p + z * high), 2 * z * R), ell_h_u=2 * q, ell_h_theta=np.hypot(2 * z * R, 2 * r),
    )  # fmt: skip
    return _case(
        rng, scalar(), dict(c=c, s=s, b=b, e=e, p=wave, q=q, r=r, z=z), constants,
        st.Contraction(C_bar=1.0, rho=rho, R_S=R_S), x0=x0, w=w, R=R, U=U, high=high, size=size, d=1, p=2,
        variation=float(np.abs(np.diff(wave)).sum() * R**2),
    )  # fmt: skip


def planar_case(rng: np.random.Generator, steps: int = 100) -> Case:
    high, c = rng.uniform(0.2, 1.5), rng.uniform(0.2, 0.8)
    b = rng.uniform(0.1, 1.0, 2) * 2 * c / high  # then |c − bθ| ≤ c
    k = rng.uniform(0.1, 1.0)
    rho = (1 + c) / 2
    j = np.arange(300)
    C_bar = float(np.max((c**j + j * k * c ** np.maximum(j - 1.0, 0)) / rho**j))
    p, q = rng.uniform(0.1, 1.0, 2)
    size = rng.choice([1e-4, 1e-2, 0.3])
    w = rng.uniform(0.01, 0.3) * rng.uniform(-1, 1, (steps, 2))
    x0 = rng.uniform(-0.2, 0.2, 2)
    R_S = float(C_bar * fading_sum(rho, 1.0, 0.0, np.linalg.norm(w, axis=1)).max())
    spread = C_bar * b.max() * 2 * size * np.sqrt(2) / (1 - rho)
    R = 1.05 * (C_bar * (R_S + C_bar * np.linalg.norm(x0) + spread) + R_S) + 0.01
    U = high * R + 2 * size * np.sqrt(2)
    A = np.array([[c, k], [0.0, c]])
    constants = st.Constants(
        L_phi_x=np.linalg.norm(A, 2), L_phi_u=b.max(), ell_phi_x=0, ell_phi_u=0,
        L_psi_x=high, L_psi_theta=R, ell_psi_x=1, ell_psi_theta=1,
        L_f_x=size, L_f_a=1, ell_f_x=max(size, 1.0), ell_f_a=1,
        L_h_x=2 * p * R, L_h_u=2 * q * U, L_h_theta=0, ell_h_x=2 * p, ell_h_u=2 * q, ell_h_theta=0,
    )  # fmt: skip
    return _case(
        rng, planar(), dict(c=c, k=k, b=b, p=p, q=q), constants, st.Contraction(C_bar=C_bar, rho=rho, R_S=R_S),
        x0=x0, w=w, R=R, U=U, high=high, size=size, d=2, p=2, variation=0.0,
    )  # fmt: skip


def _case(rng, system, numbers, constants, contraction, *, x0, w, R, U, high, size, d, p, variation) -> Case:
    steps = len(w)
    step = rng.uniform(0.05, 0.5)
    limit = st.theory.learning_rate_limit(constants, contraction, theta_step=step)
    # Half of the systems keep to the admissible range, the other half goes far past it.
    rate = limit * rng.choice([0.5, 0.99, 30.0, 300.0])
    gains, model = st.Box(0.0, high), st.Box(-size, size)
    controller = st.Controller(
        system,
        st.MGAPS(rate, constraint=gains),
        st.GradientEstimator(rng.uniform(0.01, 0.3), constraint=model),
    )
    a_star = size * rng.uniform(-1, 1, (1 + steps // 40, p)).repeat(40, axis=0)[:steps]
    contexts = {name: jnp.asarray(np.broadcast_to(v, (steps, *np.shape(v)[-1:])) if np.ndim(v) == 1 and len(v) != steps
                else np.broadcast_to(v, (steps,))) for name, v in numbers.items()}  # fmt: skip
    v = rng.choice([0.0, 0.1]) * size * rng.uniform(-1, 1, (steps, len(x0)))
    scenario = st.Scenario(jnp.asarray(x0), a_star=jnp.asarray(a_star), w=jnp.asarray(w), v=jnp.asarray(v), t=contexts)
    theta0, a0 = jnp.asarray(rng.uniform(0, high, d)), jnp.asarray(size * rng.uniform(-1, 1, p))
    run = st.simulate(controller, scenario, theta=theta0, a_hat=a0)
    sets = st.Sets(x_radius=R, u_radius=U, theta=gains, a=model, theta_step=step)
    return Case(controller, scenario, run, sets, constants, contraction, variation)

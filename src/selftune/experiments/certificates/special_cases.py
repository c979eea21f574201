r"""Certificates of two special cases: nothing is unknown, and observations that are inferred from the next state.

- With $f = w = 0$ and $\Theta = \mathbb R^d$ the bound on the regret of M-GAPS is that of Lin et al. (2023) for a known
  model, $O((1 + V_{sys})/\eta + \eta T + \eta^3 T)$ (after Lemma "recover exact regret").
- An observation that is inferred from $x_{t+1}$ contains $w_t$, so Property "perturb the input" fails. If w has a
  memory, such as Ornstein–Uhlenbeck noise, the observation is also biased. The certificate reports both as failed
  hypotheses, and every row that needs them names them.
"""

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

RATE, HIGHEST, SWING = 5e-3, 1.0, 0.05
STABLE = 0.5 * HIGHEST / 0.75
"""R_S of x' = x/4 + θ/2 with θ at most `HIGHEST`."""
RADIUS = 2 * STABLE * (1 + 1e-9)
EXACT_CONSTANTS = st.Constants(
    L_phi_x=1 / 4, L_phi_u=1 / 2, ell_phi_x=0, ell_phi_u=0, L_psi_x=0, L_psi_theta=1, ell_psi_x=0, ell_psi_theta=0,
    L_f_x=0, L_f_a=0, ell_f_x=0, ell_f_a=0, L_h_x=RADIUS + 0.3 + SWING, L_h_u=0.1 * HIGHEST, L_h_theta=0, ell_h_x=1,
    ell_h_u=0.1, ell_h_theta=0,
)  # fmt: skip
EXACT_CONTRACTION = st.Contraction(C_bar=1.0, rho=1 / 4, R_S=STABLE)

_TARGET = st.MatchedSystem(
    dynamics=lambda x, v, t: x / 4 + v / 2,
    residual=lambda x, a, t: 0 * x,
    actuation=lambda x, theta, t: theta,
    cost=lambda x, u, theta, t: 0.5 * jnp.sum((x - t) ** 2) + 0.05 * jnp.sum(u**2),
)
_INFERRED = st.MatchedSystem(
    dynamics=lambda x, v, t: 0.5 * x + 0.1 * v,
    residual=lambda x, a, t: a * jnp.cos(x),
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2) + 0.05 * jnp.sum(u**2),
)


def targets(steps: int) -> np.ndarray:
    """The target of each step: one period of a sine around 0.3."""
    return 0.3 + SWING * np.sin(2 * np.pi * np.arange(steps) / steps)


def exact_variation(steps: int) -> float:
    """V_sys: sup |h_t − h_{t−1}| is at most (R + r_t) |r_t − r_{t−1}|, and nothing else varies."""
    target = targets(steps)
    return float((RADIUS + target.max()) * np.abs(np.diff(target)).sum())


def exact_run(steps: int) -> tuple[st.Controller, st.Scenario, st.Run]:
    """M-GAPS without a constraint on x' = x/4 + θ/2, h_t = (x − r_t)²/2 + 0.05 u²; nothing is unknown or random."""
    controller = st.Controller(_TARGET, st.MGAPS(RATE), st.Frozen())
    nothing = jnp.zeros((steps, 1))
    scenario = st.Scenario(jnp.zeros(1), a_star=nothing, w=nothing, t=jnp.asarray(targets(steps)))
    return controller, scenario, st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))


def nothing_unknown(*, steps: int) -> st.Certificate:
    """The certificate of `exact_run`."""
    # Θ is ℝ^d for the tuner. The constants hold on a bounded part of it, which the run does not leave.
    sets = st.Sets(x_radius=RADIUS, u_radius=HIGHEST, theta=st.Box(0.0, HIGHEST), a=st.Box(-1.0, 1.0), theta_step=0.1)
    return st.certify(
        *exact_run(steps),
        sets,
        constants=EXACT_CONSTANTS,
        contraction=EXACT_CONTRACTION,
        variation=exact_variation(steps),
        window=None,
    )


def observed(w: jax.Array, v: jax.Array) -> st.Certificate:
    """The certificate of a run with the noise `w` and the observations f + `v`, both (T, 1)."""
    gains, model = st.Box(0.0, 1.0), st.Box(-0.1, 0.1)
    controller = st.Controller(
        _INFERRED, st.MGAPS(1e-3, constraint=gains), st.GradientEstimator(0.05, constraint=model)
    )
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.full(w.shape, 0.1), w=w, v=v)
    run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    constants = st.Constants(
        L_phi_x=0.5, L_phi_u=0.1, ell_phi_x=0, ell_phi_u=0, L_psi_x=1, L_psi_theta=2, ell_psi_x=1, ell_psi_theta=1,
        L_f_x=0.1, L_f_a=1, ell_f_x=1, ell_f_a=1, L_h_x=2, L_h_u=1, L_h_theta=0, ell_h_x=1, ell_h_u=0.1, ell_h_theta=0,
    )  # fmt: skip
    return st.certify(
        controller,
        scenario,
        run,
        st.Sets(x_radius=2.0, u_radius=10.0, theta=gains, a=model, theta_step=0.1),
        constants=constants,
        contraction=st.Contraction(C_bar=1, rho=0.5, R_S=1.0),
        noise=st.Noise(bound=0.5, covariance=1e-4),
        variation=0.0,
        window=None,
    )


def inferred_observation(*, steps: int, seed: int) -> st.Certificate:
    """The certificate under Ornstein–Uhlenbeck noise, with f inferred from the next state: v = w / 0.1."""
    w = st.OrnsteinUhlenbeck(decay=0.95, sigma=0.01)(jax.random.key(seed), steps, 1)
    return observed(w, w / 0.1)

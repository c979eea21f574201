r"""Two problems with informative regret bounds: each bound is below $T L_F^2$, which holds for every θ.

The bounds grow as $V_w / \eta$ and as $\eta T$. A problem with a bound below $T L_F^2$ therefore needs noise that is
small against η, an η that is small against the curvature, and a cost that is steep at the edge of the sets. In both
problems the closed loop with the exact model is $x' = c x + b \theta + w$ with θ in $[0, \theta_h]$. It contracts by c
for every sequence of θ, and $R_S = (b \theta_h + \bar\epsilon) / (1 - c)$. Both optima are inside Θ.
"""

import jax
import jax.numpy as jnp

import selftune as st

EARLY = 60_000
LONG = 300_000


def informative_regret(*, seed: int, steps: int = EARLY) -> st.Certificate:
    r"""A problem on which the bound on the regret of M-GAPS is informative.

    $x' = x/4 + v/2 + w$, $\psi = \theta \in [0, 0.6]$, $f = a \sin x$ with $|a| \le 10^{-3}$,
    $h = (x - 0.3)^2 / 2 + 0.05 u^2$, $\bar\epsilon = 2 \cdot 10^{-4}$, $\eta = 2 \cdot 10^{-3}$, $\iota = 0.01$. The
    optimum is θ = 18/49. The bound is below $T L_F^2$ from about 1,500 steps on.

    The noise is too small for Theorem 2 (the estimator's loss is above $\bar\epsilon^3 T$), so the main theorem's rows
    use $T k \beta_e^2$ instead of $R_1$. $\epsilon_\theta$ is chosen just above $L_F \eta$: a larger value would allow
    a larger $\bar\zeta$, and the main theorem's bound grows with $\bar\zeta$.
    """
    noise, highest, model, target = 2e-4, 0.6, 1e-3, 0.3
    stable = (highest / 2 + noise) / 0.75
    radius, control = 2.0 * stable * (1 + 1e-9), highest + model
    constants = st.Constants(
        L_phi_x=1 / 4, L_phi_u=1 / 2, ell_phi_x=0, ell_phi_u=0,
        L_psi_x=0, L_psi_theta=1, ell_psi_x=0, ell_psi_theta=0,
        L_f_x=model, L_f_a=float(jnp.sin(radius)), ell_f_x=1, ell_f_a=1,
        L_h_x=radius + target, L_h_u=0.1 * control, L_h_theta=0, ell_h_x=1, ell_h_u=0.1, ell_h_theta=0,
    )  # fmt: skip
    return _certify(
        _SETPOINT, constants, st.Contraction(C_bar=1.0, rho=1 / 4, R_S=stable), radius=radius, control=control,
        highest=highest, model=model, noise=noise, learning_rate=2e-3, estimator_rate=0.01, theta_step=6.1e-3,
        observation=0.0, periods=4, steps=steps, seed=seed,
    )  # fmt: skip


def informative_main_theorem(*, seed: int, steps: int = LONG) -> st.Certificate:
    r"""A problem on which every hypothesis of the main theorem holds and its regret bound is informative.

    $x' = (x + v)/64 + w$, $\psi = \theta \in [0, 0.03]$, $f = 10^{-3} a x$ with $|a| \le 70$,
    $h = 0.01 - x + 0.45 u^2$, $\bar\epsilon = 1.6 \cdot 10^{-3}$, observation noise up to a tenth of the largest $|f|$,
    one switch of a*, and the ι that minimizes the estimator's bound. The main theorem's bound then uses the lemma on
    the gradient estimator and Theorem 2. Both give smaller bounds than the sets alone.

    The numbers were found by a search over the formulas. Three choices matter:

    - The control moves the state little (b = 1/64), so the cost of the control itself decides the curvature.
    - The contraction's ρ is given as 0.35, although 1/64 is true, because the constants contain powers of 1/ρ.
    - a is in units of 1/1000: $\ell_{f,x}$ also bounds the derivative of $\partial f / \partial a$, and this unit makes
      $\ell_{f,x}$ smaller.
    """
    noise, highest, model, push, effort = 1.6e-3, 0.03, 70.0, 1 / 64, 0.9
    stable = (push * highest + noise) / (1 - push)
    radius = 2.0 * stable * (1 + 1e-9)
    residual = 1e-3 * model * radius
    control = highest + residual
    learning_rate, zeta = 0.05, 6e-3
    constants = st.Constants(
        L_phi_x=push, L_phi_u=push, ell_phi_x=0, ell_phi_u=0, L_psi_x=0, L_psi_theta=1, ell_psi_x=0, ell_psi_theta=0,
        L_f_x=1e-3 * model, L_f_a=1e-3 * radius, ell_f_x=1e-3, ell_f_a=1e-3,
        L_h_x=1, L_h_u=effort * control, L_h_theta=0, ell_h_x=0, ell_h_u=effort, ell_h_theta=0,
    )  # fmt: skip
    contraction = st.Contraction(C_bar=1.0, rho=0.35, R_S=stable)
    rate = st.theory.estimator_learning_rate(
        diameter=2 * model, path_length=2 * model, residual_range=2 * residual, noise=0.1 * residual,
        slope=1e-3 * radius, steps=steps,
    )  # fmt: skip
    limit = st.theory.surrogate_constants(constants, contraction).L
    return _certify(
        _EFFORT, constants, contraction, radius=radius, control=control, highest=highest, model=model, noise=noise,
        learning_rate=learning_rate, estimator_rate=rate, theta_step=limit * learning_rate + zeta,
        observation=0.1 * residual, periods=2, steps=steps, seed=seed,
    )  # fmt: skip


def _certify(
    system: st.MatchedSystem,
    constants: st.Constants,
    contraction: st.Contraction,
    *,
    radius: float,
    control: float,
    highest: float,
    model: float,
    noise: float,
    learning_rate: float,
    estimator_rate: float,
    theta_step: float,
    observation: float,
    periods: int,
    steps: int,
    seed: int,
) -> st.Certificate:
    gains, parameters = st.Box(0.0, highest), st.Box(-model, model)
    controller = st.Controller(
        system,
        st.MGAPS(learning_rate, constraint=gains),
        st.GradientEstimator(estimator_rate, constraint=parameters),
    )
    ka, kw, kv = jax.random.split(jax.random.key(seed), 3)
    scenario = st.Scenario(
        jnp.zeros(1),
        a_star=st.PiecewiseConstant(-(-steps // periods), -model, model)(ka, steps, 1),
        w=st.Uniform(noise)(kw, steps, 1),
        v=st.Uniform(observation)(kv, steps, 1) if observation else None,
    )
    run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    return st.certify(
        controller,
        scenario,
        run,
        st.Sets(x_radius=radius, u_radius=control, theta=gains, a=parameters, theta_step=theta_step),
        constants=constants,
        contraction=contraction,
        noise=st.Noise(bound=noise, covariance=noise**2 / 3),
        variation=0.0,
    )


_SETPOINT = st.MatchedSystem(
    dynamics=lambda x, v, t: x / 4 + v / 2,
    residual=lambda x, a, t: a * jnp.sin(x),
    actuation=lambda x, theta, t: theta,
    cost=lambda x, u, theta, t: 0.5 * jnp.sum((x - 0.3) ** 2) + 0.05 * jnp.sum(u**2),
)

_EFFORT = st.MatchedSystem(
    dynamics=lambda x, v, t: (x + v) / 64,
    residual=lambda x, a, t: 1e-3 * a * x,
    actuation=lambda x, theta, t: theta,
    cost=lambda x, u, theta, t: 0.01 - jnp.sum(x) + 0.45 * jnp.sum(u**2),
)

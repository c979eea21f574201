r"""The theorems on the paper's example, with constants derived by hand.

The closed loop with the exact model is $x' = (1 - \Delta\theta) x + w$, so on $\Theta = [\theta_l, \theta_h]$ it
contracts with $\bar C = 1$ and $\rho = \max_\Theta |1 - \Delta\theta|$ everywhere, and stays within
$R_S = \max_t \sum_\tau \rho^\tau |w_{t-\tau}|$. With $|x| \le R$, $|a_i| \le A = 1/4$ and $U = \theta_h R + 6 A$ the
constants are those of `example_constants`.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from ...theory.matched import fading_sum
from .. import paper
from . import informative, special_cases

LOWEST, HIGHEST = 0.5, 20.0
"""Θ for the theory. The tuner's Θ also contains the gain 0, which does not contract."""
LARGEST = 0.25


def example_constants(radius: float) -> st.Constants:
    r"""The constants of φ = x + Δv, ψ = −θx, f = a_0 + a_1 sin x + a_2 sin 2x and h = x² + 0.1 u², for |x| ≤ R.

    $\|(1, \sin x, \sin 2x)\|^2$ is largest, 41/16, where $\sin^2 x = 5/8$; $\|\partial_x \nabla f\|$ is largest, √5, at
    $x = 0$.
    """
    control = _control(radius)
    return st.Constants(
        L_phi_x=1, L_phi_u=paper.DELTA, ell_phi_x=0, ell_phi_u=0,
        L_psi_x=HIGHEST, L_psi_theta=radius, ell_psi_x=1, ell_psi_theta=1,
        L_f_x=3 * LARGEST, L_f_a=math.sqrt(41) / 4, ell_f_x=math.sqrt(5), ell_f_a=math.sqrt(5),
        L_h_x=2 * radius, L_h_u=0.2 * control, L_h_theta=0, ell_h_x=2, ell_h_u=0.2, ell_h_theta=0,
    )  # fmt: skip


def _control(radius: float) -> float:
    return HIGHEST * radius + 6 * LARGEST


def certify_example(*, noise_inside: bool, steps: int, seed: int, gain: float = 1.0) -> st.Certificate:
    """The certificate of one run of M-GAPS with the gradient estimator on the paper's example."""
    settings = paper.Settings(period=max(steps // 2, 1), periods=2, horizons=(2,))
    scenario = paper.scenario(settings, jax.random.key(seed), "inside" if noise_inside else "outside")
    controller = paper.controllers(settings)["M-GAPS"]
    run = st.simulate(controller, scenario, theta=jnp.full(1, gain), a_hat=jnp.zeros(3))
    w = np.abs(np.asarray(scenario.w[:, 0], float))
    rho = max(abs(1 - paper.DELTA * LOWEST), abs(1 - paper.DELTA * HIGHEST))
    stable = float(fading_sum(rho, 1.0, 0.0, w).max())
    radius = 2.0 * stable * (1 + 1e-9)  # room for a trajectory that starts at a state of another one
    sets = st.Sets(
        x_radius=radius,
        u_radius=_control(radius),
        theta=st.Box(LOWEST, HIGHEST),
        a=st.Box(-LARGEST, LARGEST),
        theta_step=1.0,
    )
    sigma = settings.sigma * (paper.DELTA if noise_inside else 1.0)
    return st.certify(
        controller,
        scenario,
        run,
        sets,
        constants=example_constants(radius),
        contraction=st.Contraction(C_bar=1.0, rho=rho, R_S=stable),
        # The innovations of w are Gaussian and have no bound, so the largest |w| of the run is used as the bound.
        noise=st.Noise(bound=float(w.max()), covariance=min(sigma**2, float(w.max()) ** 2)),
        variation=0.0,
    )


def made_for_it(*, steps: int, seed: int) -> st.Certificate:
    r"""A problem on which every hypothesis about the tuner holds: $x' = x/4 + v/2$, $f = a$, $h = (x^2 + u^2)/2$.

    The closed loop's factor $1/4 - \theta/2$ is within ρ = 1/4 for θ in [0, 1].
    """
    radius, control, model = 0.15, 0.16, 0.001
    system = _MADE_FOR_IT
    gains, parameters = st.Box(0.0, 1.0), st.Box(-model, model)
    controller = st.Controller(
        system, st.MGAPS(1e-3, constraint=gains), st.GradientEstimator(0.05, constraint=parameters)
    )
    ka, kw = jax.random.split(jax.random.key(seed))
    bound = 0.05
    scenario = st.Scenario(
        jnp.zeros(1),
        a_star=st.PiecewiseConstant(max(steps // 4, 1), -model, model)(ka, steps, 1),
        w=st.Uniform(bound)(kw, steps, 1),
    )
    run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))
    constants = st.Constants(
        L_phi_x=1 / 4, L_phi_u=1 / 2, ell_phi_x=0, ell_phi_u=0, L_psi_x=1, L_psi_theta=radius, ell_psi_x=1,
        ell_psi_theta=1, L_f_x=0, L_f_a=1, ell_f_x=0, ell_f_a=0, L_h_x=radius, L_h_u=control, L_h_theta=0, ell_h_x=1,
        ell_h_u=1, ell_h_theta=0,
    )  # fmt: skip
    return st.certify(
        controller,
        scenario,
        run,
        st.Sets(x_radius=radius, u_radius=control, theta=gains, a=parameters, theta_step=0.1),
        constants=constants,
        contraction=st.Contraction(C_bar=1.0, rho=0.25, R_S=bound / 0.75),
        noise=st.Noise(bound=bound, covariance=bound**2 / 3),
        variation=0.0,
    )


_MADE_FOR_IT = st.MatchedSystem(
    dynamics=lambda x, v, t: x / 4 + v / 2,
    residual=lambda x, a, t: a,
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2) + 0.5 * jnp.sum(u**2),
)


SPECIAL_STEPS = 2_000
"""The length of the two special cases. Their regret is computed exactly, in a time that grows as T²."""


def certificates(groups: Sequence[str], *, steps: int, seed: int) -> dict[str, Callable[[], st.Certificate]]:
    """Functions that make certificates, by the name of the problem.

    "certificates": the paper's example, for both ways the noise may enter, a problem on which every hypothesis about
    the tuner holds, and two special cases, over `steps` steps (the special cases over at most `SPECIAL_STEPS`).
    "bounds": the problems of `INFORMATIVE`, on which the regret bounds are not vacuous.
    """
    short = min(steps, SPECIAL_STEPS)
    every = {
        "certificates": {
            "the paper's example, noise outside Δ(…)": lambda: certify_example(
                noise_inside=False, steps=steps, seed=seed
            ),
            "the paper's example, noise inside Δ(…)": lambda: certify_example(
                noise_inside=True, steps=steps, seed=seed
            ),
            "a problem made for the theory": lambda: made_for_it(steps=steps, seed=seed),
            "nothing unknown, no noise, no constraint": lambda: special_cases.nothing_unknown(steps=short),
            "observations inferred from the next state": lambda: special_cases.inferred_observation(
                steps=short, seed=seed
            ),
        },
        "bounds": {name: lambda make=make: make(seed=seed) for name, (make, _) in INFORMATIVE.items()},
    }
    return {name: make for group in groups for name, make in every[group].items()}


INFORMATIVE = {
    "a problem whose regret bound is informative": (informative.informative_regret, "regret of M-GAPS"),
    "a problem whose main theorem is informative": (informative.informative_main_theorem, "main theorem: regret"),
}
"""The problems of the group "bounds": the maker of the certificate, and the row whose bound must not be vacuous."""


def faults(certificates: Mapping[str, st.Certificate]) -> list[str]:
    """Return the violated rows, and the rows of `INFORMATIVE` whose bounds are vacuous, as sentences."""
    found = [f"{name}: {row.name} is violated" for name, one in certificates.items() for row in one.violated]
    for name, (_, promised) in INFORMATIVE.items():
        if name in certificates and (row := certificates[name].row(promised)).verdict != "holds":
            found.append(f"{name}: expected an informative bound that holds for {promised}, got {row.verdict}")
    return found

r"""How tight Theorem 1 is: an estimator that may have a mismatch ε uses it against the tuner.

The theorem allows any sequence of $\hat a_t$ in 𝒜. The adversary knows a*, the companion and the tuner. At every step
it tries many directions of the parameter space. In each direction it goes as far as $\varepsilon_t \le \epsilon$ and
$\varepsilon_t' \le \epsilon$ allow. It takes the $\hat a_t$ that maximizes

$$p \|\zeta_t\| + g \|(x_{t+1}, y_{t+1}) - (\tilde x_{t+1}, \tilde y_{t+1})\|$$

The choice is greedy, so the result is a lower estimate of the worst sequence. `certify` then checks the run.

The problem: $x' = x/4 + v/2 + w$, $\psi = \theta_0 - \theta_1 x$ with Θ = [0, 0.6] × [0, 0.5], $f = a_0 + a_1 \sin x$
with $|a_i| \le 1$, $a^* = 0$, $h = (x - 0.3)^2/2 + 0.05 u^2$. The closed loop's factor $1/4 - \theta_1/2$ is within
ρ = 1/4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

import selftune as st

from ...estimators.base import EstimatorInfo
from ...reporting.statistics import Interval
from .finding import FIRST_SEED, Finding, judged

EPSILONS = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)
DIRECTIONS_SEED = 0
"""The adversary tries the same directions at every step and in every run; only the noise depends on the run's seed."""
NOISE, RATE, THETA_STEP = 0.01, 2e-3, 0.05
GAINS = st.Box(jnp.zeros(2), jnp.array([0.6, 0.5]))
MODEL = st.Box(-1.0, 1.0)
TUNER = st.MGAPS(RATE, constraint=GAINS)


class Replay(st.AbstractEstimator):
    r"""An estimator that replays given estimates: $\hat a_{t+1}$ is row t + 1 of `rows`; at the end, the last row."""

    rows: Float[Array, "T p"]

    def init(self, system: st.AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> Array:
        return jnp.zeros((), jnp.int32)

    def update(
        self, system: st.AbstractSystem, x: Array, f_obs: Array, a_hat: PyTree, t: Any, state: Array
    ) -> tuple[PyTree, Array, EstimatorInfo]:
        following = jnp.minimum(state + 1, self.rows.shape[0] - 1)
        return self.rows[following], following, EstimatorInfo(innovation=f_obs - system.residual(x, a_hat, t))


@dataclass(frozen=True)
class Probe:
    """The results of the adversary for one ε."""

    epsilon: float
    allowed: float
    """The largest ε = ε' that both small-mismatch conditions of Theorem 1 allow."""
    distance: float
    """Σ of the distance / its bound; 1 means that the bound is tight."""
    perturbation: float
    """Σ ‖ζ_t‖ / its bound."""
    largest_perturbation: float
    """max ‖ζ_t‖ / ζ̄. Theorem 1 promises at most 1 if ε is allowed."""
    state: float
    """max ‖x_t‖ / R_x. Theorem 1 promises at most 1 if ε is allowed."""
    certificates: dict[str, st.Certificate]
    """The certificates by the goal of the adversary."""

    @property
    def is_allowed(self) -> bool:
        return self.epsilon <= self.allowed

    @property
    def ok(self) -> bool:
        """Whether every required inequality holds and, if ε is allowed, also the conclusions of Theorem 1."""
        bounded = max(self.largest_perturbation, self.state) <= 1
        return all(each.ok for each in self.certificates.values()) and (bounded or not self.is_allowed)


def probe(
    *,
    seed: int,
    epsilons: Sequence[float] = EPSILONS,
    steps: int = 1000,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> list[Probe]:
    """For each ε, the share of Theorem 1's bounds that the adversary reaches.

    !!! Example

        >>> from selftune.experiments.rates import adversary
        >>> rows = adversary.probe(epsilons=(0.001,), steps=50, seed=0)
        >>> rows[0].ok, rows[0].distance <= 1, rows[0].perturbation <= 1
        (True, True, True)
    """
    scenario = st.Scenario(
        jnp.zeros(1), a_star=jnp.zeros((steps, 2)), w=st.Uniform(NOISE)(jax.random.key(seed), steps, 1)
    )
    theta = jnp.array([0.5, 0.0])
    exact = _certify(scenario, theta, jnp.zeros((steps, 2)))
    probes = []
    for epsilon in epsilons:
        progress(len(probes), len(epsilons))
        probes.append(_probe(float(epsilon), scenario, theta, exact))
    return probes


def find(
    *, workers: int | None = None, progress: Callable[[int, int], Any] = lambda done, total: None, steps: int = 1000
) -> Finding:
    """The finding: the bounds of Theorem 1 hold, and the share of each that the adversary reaches."""
    probes = probe(epsilons=EPSILONS, steps=steps, seed=FIRST_SEED, progress=progress)
    parts = {
        "distance": "Σ‖ξ−ξ̃‖ / bound",
        "perturbation": "Σ‖ζ‖ / bound",
        "largest_perturbation": "max ‖ζ‖ / ζ̄",
        "state": "max ‖x‖ / R_x",
    }
    columns = ["ε", "Theorem 1 allows", *parts.values()]
    rows = [
        [f"{p.epsilon:.3g}", f"up to {p.allowed:.2g}", *(f"{getattr(p, part):.3g}" for part in parts)] for p in probes
    ]
    checks = [
        judged(f"{said}, ε = {p.epsilon:g}", 1.0, Interval(mean=getattr(p, part), low=None, high=None))
        for p in probes
        for part, said in parts.items()
        if p.is_allowed or part in ("distance", "perturbation")
    ]
    violated = sum(len(one.violated) for p in probes for one in p.certificates.values())
    rest = judged("violated rows of all certificates", 0.0, Interval(mean=float(violated), low=None, high=None))
    data = {part: [getattr(p, part) for p in probes] for part in ("epsilon", "allowed", *parts)}
    return Finding(
        name="adversary",
        title="How tight is Theorem 1? An estimator that works against the tuner",
        claim=(
            "Theorem 1 holds for any estimates with mismatches of at most ε. An adversary that knows the true "
            "parameters uses such a mismatch against the tuner at every step. The effect stays below the bounds."
        ),
        columns=columns,
        rows=rows,
        checks=[*checks, rest],
        data=data,
    )


def _probe(epsilon: float, scenario: st.Scenario, theta: Array, exact: st.Certificate) -> Probe:
    # The theorem's factor from a distance to later perturbations.
    known = exact.derived
    worth = 2**0.5 * (known["L_θx"] + known["L_θy"]) * known["C"]
    goals = {"distance": (0.0, 1.0), "update": (1.0, 0.0), "both": (1.0, worth)}
    certificates = {}
    for goal, (on_perturbation, on_gap) in goals.items():
        weights = jnp.array([on_perturbation, on_gap])
        rows = worst_estimates(_SYSTEM, TUNER, scenario, theta, epsilon=jnp.asarray(epsilon), weights=weights)
        certificates[goal] = _certify(scenario, theta, rows)

    def worst(name: str) -> float:
        return max(row.measured / row.bound for row in (each.row(name) for each in certificates.values()))

    state = exact.row("small mismatch of the state").bound / known["α_x"]
    update = exact.row("small mismatch of the update").bound / (known["α_θ"] + known["β_θ"])
    return Probe(
        epsilon=epsilon,
        allowed=min(state, update),
        distance=worst("distance, in all"),
        perturbation=worst("perturbation, in all"),
        largest_perturbation=worst("perturbation below ζ̄"),
        state=worst("state in its ball"),
        certificates=certificates,
    )


def _certify(scenario: st.Scenario, theta: Array, rows: Array) -> st.Certificate:
    controller = st.Controller(_SYSTEM, TUNER, Replay(rows))
    # With XLA, because the native engine would compile a program for each array of rows.
    run = st.simulate(controller, scenario, theta=theta, a_hat=rows[0], engine="xla")
    stable = (0.3 + NOISE) / 0.75
    radius = 2.0 * stable + 0.7  # room for the effect of the largest mismatch, 1: (1/2) / (3/4)
    control = 0.6 + 0.5 * radius + 2.0
    constants = st.Constants(
        L_phi_x=1 / 4, L_phi_u=1 / 2, ell_phi_x=0, ell_phi_u=0,
        L_psi_x=0.5, L_psi_theta=float(np.hypot(1, radius)), ell_psi_x=1, ell_psi_theta=1,
        L_f_x=1, L_f_a=2**0.5, ell_f_x=2**0.5, ell_f_a=1,
        L_h_x=radius + 0.3, L_h_u=0.1 * control, L_h_theta=0, ell_h_x=1, ell_h_u=0.1, ell_h_theta=0,
    )  # fmt: skip
    return st.certify(
        controller,
        scenario,
        run,
        st.Sets(x_radius=radius, u_radius=control, theta=GAINS, a=MODEL, theta_step=THETA_STEP),
        constants=constants,
        contraction=st.Contraction(C_bar=1.0, rho=1 / 4, R_S=stable),
        variation=0.0,
    )


@eqx.filter_jit
def worst_estimates(
    system: st.AbstractSystem,
    tuner: Any,
    scenario: st.Scenario,
    theta: Float[Array, " d"],
    *,
    epsilon: float | Array,
    weights: Float[Array, "2"],
    directions: int = 64,
) -> Float[Array, "T p"]:
    r"""Return $\hat a_{0:T-1}$, chosen greedily against the tuner with $\varepsilon_t, \varepsilon_t' \le \epsilon$.

    Requires a residual that is affine in a, parameters in one vector, and M-GAPS. **Arguments:** `weights`: p and g of
    the module's formula; `directions`: the number of directions from a* that are tried, in addition to a* itself.
    """
    p = scenario.row(0).a_star.shape[0]
    ways = jax.random.normal(jax.random.key(DIRECTIONS_SEED), (directions, p), theta.dtype)
    # The axes in both directions come first: with a fixed order, ties between candidates do not flip signs.
    ways = jnp.concatenate([jnp.zeros((1, p)), jnp.eye(p), -jnp.eye(p), ways]).astype(theta.dtype)

    def step(carry: Any, tau: Array) -> tuple[Any, Array]:
        x, theta, state, xe, ye = carry
        now = scenario.row(tau)
        exact_x, exact_y, _, exact_G = system.sensitivity(xe, ye, theta, now.a_star, now.t)
        exact_theta = tuner.constraint.project(theta - tuner.learning_rate * exact_G)
        true = system.residual(x, now.a_star, now.t)

        def estimate(way: Array) -> Array:
            def change(x: Array) -> Array:
                return jax.jvp(lambda a: system.residual(x, a, now.t), (now.a_star,), (way,))[1]

            slope, bend = jnp.linalg.norm(change(x)), jnp.linalg.norm(jax.jacfwd(change)(x))
            reach = epsilon / jnp.maximum(jnp.maximum(slope, bend), 1e-12)
            # Stay inside 𝒜 along this direction.
            room: Array = (1 - jnp.sign(way) * now.a_star) / jnp.abs(way)
            edge = jnp.min(jnp.where(way != 0, room, jnp.inf))
            return now.a_star + jnp.minimum(reach, jnp.where(jnp.isfinite(edge), edge, 0.0)) * way

        def value(a: Array) -> Array:
            after, following, _ = tuner.update(system, x, theta, a, now.t, state)
            u = system.policy(x, theta, system.residual(x, a, now.t), now.t)
            gap = jnp.hypot(
                jnp.linalg.norm(system.dynamics(x, u, true, now.t) - exact_x), jnp.linalg.norm(following.y - exact_y)
            )
            return weights @ jnp.stack([jnp.linalg.norm(after - exact_theta), gap])

        candidates = jax.vmap(estimate)(ways)
        a = candidates[jnp.argmax(jax.vmap(value)(candidates))]
        after, following, _ = tuner.update(system, x, theta, a, now.t, state)
        u = system.policy(x, theta, system.residual(x, a, now.t), now.t)
        x_next = system.dynamics(x, u, true, now.t) + now.w
        return (x_next, after, following, exact_x + now.w, exact_y), a

    x0 = scenario.x0
    state = tuner.init(system, x0, theta)
    start = (x0, theta, state, x0, jnp.zeros_like(state.y))
    return jax.lax.scan(step, start, jnp.arange(len(scenario)))[1]


_SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: x / 4 + v / 2,
    residual=lambda x, a, t: jnp.stack([a[0] + a[1] * jnp.sin(x[0])]),
    actuation=lambda x, theta, t: jnp.stack([theta[0] - theta[1] * x[0]]),
    cost=lambda x, u, theta, t: 0.5 * jnp.sum((x - 0.3) ** 2) + 0.05 * jnp.sum(u**2),
)

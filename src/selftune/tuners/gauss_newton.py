import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Box, Product, Unconstrained
from ..problem.system import AbstractSystem
from . import _contraction
from ._factorization import factorize, solve
from .base import AbstractTuner, TunerInfo


class Means(eqx.Module):
    """Running means over about the last L steps, in box units."""

    curvature: Float[Array, " c"]
    """C̄, the c = d (d + 1) / 2 numbers of its lower triangle, row by row."""
    gradient: Float[Array, " d"]
    """ḡ."""
    square: Float[Array, ""]
    """q̄, the mean of |g|²."""
    cost: Float[Array, ""]
    """h̄, the mean of |h|."""


class GaussNewtonState(eqx.Module):
    y: Float[Array, "n d"]
    age: Float[Array, ""]
    """t, up to the age at which both windows have their full length and θ moves."""
    means: Means
    contraction: _contraction.ContractionState | None


MEANS_GROWTH, STEP_GROWTH, CAREFUL_GROWTH = 1 / 10, 2 / 5, 1
"""How much the window of the running means and the window $N_t$, without and with a rest, grow in each step."""
FIRST_WINDOW = 2
"""The first window $N_0$ of the step, divided by d + 1: the curvature in d directions needs more than d steps."""
SIGNS_KEPT = 1 / 5
"""The share of the memory N in which no number of θ changes its sign."""
SMALL = 1 / 50
"""A small size of a number of θ, in widths: where it stops as long as its sign is kept, and its smallest unit after a
rest."""


class GaussNewton(AbstractTuner):
    r"""A recursive Gauss–Newton step along the sensitivities of M-GAPS. It has no learning rate.

    The sensitivities of state, control and θ are $z = (y,\ \partial u / \partial \theta,\ I)$, with $y$ as in `MGAPS`.
    They give the gradient $G = \nabla h \cdot z$ of M-GAPS, and also a curvature, by the second derivative of the cost
    along them. With $W = \operatorname{diag}(w)$, the widths of Θ, and $N$ the `memory`,

    $$g = W G, \qquad C = W z^\top (\nabla^2 h)\, z W$$

    are dimensionless in θ. $\bar C, \bar g, \bar q, \bar h$ are running means of $C$, $g$, $|g|^2$, $|h|$ over the last
    $\min(N, 1 + t/10)$ steps. With $N_t = \min(N, N_0 + 2t/5)$ and $N_0 = 2 (d + 1)$,

    $$v = \min\Big(\bar h, \frac{\bar q}{2 \operatorname{tr} \bar C}\Big), \qquad
    \lambda = 12.5\, |g|\, (N_0 / N_t)^{3/4}, \qquad
    R = \bar C + (v + \lambda) I, \qquad
    s = -\frac{1}{N_t} R^{-1} g, \qquad
    \theta_{t+1} = \Pi_\Theta(\theta_t + W s).$$

    The prior $v I$ keeps R positive in directions that the data say nothing about; $v$ is the size of the cost's random
    part that gradients of this size would have. If $\operatorname{tr} \bar C \le 0$, $v = \bar h$. The damping
    $\lambda I$ limits the step to $|s| \le 0.08\, N_0^{-3/4} N_t^{-1/4}$, so θ moves by at most 8 % of its box in the
    first window $N_0$. The damping shortens the step most in the directions of small curvature, and little in the
    others (Levenberg 1944, Marquardt 1963). $R^{-1}$ is computed by a factorization $L D L^\top$ whose pivots are at
    least $v + \lambda$. At a kink or an overflow, where $C$ is not finite, $C = 0$.

    In a box, the numbers of θ that are at a bound while $-\bar g$ points outward are decoupled from the others: their
    off-diagonal entries in R are zero (two-metric projection, Bertsekas 1982). For other sets, Π is the projection in
    the norm of R.

    In the first $N / 5$ steps, a number of θ does not change its sign: on its way to zero, it stops at a fiftieth of
    its width. At first, y has seen only the beginning of the effect of θ, and a gain of the wrong sign can destabilize
    a loop. After these steps, signs can change. This rule applies where the bounds are on both sides of zero, or where
    there are no bounds.

    The step does not change if the cost is multiplied by a constant, or if θ (with its box) is measured in other units.
    `docs/no-knobs.md` says what is known about this tuner, what is only measured, and where it fails.

    **Arguments:** `constraint`: Θ. Its widths $w$ are the units of θ, so give bounds: a wide box is better than none. A
    `Ball` has its diameter as widths, a `Simplex` its total. Where Θ is unbounded, $w_i = 2 \max(1, |\theta_i|)$, and
    the step is not free of θ's units. `contraction_memory`: as in `MGAPS`. The others are dimensionless, and rarely
    need a change:

    - `memory`: N ≥ 1, in steps: how many steps the means remember, and 1/N is the gain of the step. It must be much
      longer than the memory of the closed loop: see `suggest_memory`.
    - `prior`: multiplies $v$.
    - `cap`: the longest way of θ in the first window $N_0$, in widths; the 0.08 above, and $12.5 = 1 / 0.08$.
    - `rest`: None, or the number of steps at the beginning in which θ does not move. Meanwhile y and the running means
      learn how θ acts, and all windows grow. Set it for a plant that can fall or run away, such as an inverted
      pendulum: 10 time constants of the loop at the start gains. With a rest, the tuner is also more careful later: the
      unit of a number of θ is its own size, $w_i = \min(\text{width}_i, \max(|\theta_i|, \text{width}_i / 50))$, and
      $N_t = \min(N, N_0 + t)$. So θ must be the gains themselves, not their logarithms.
    - `keep_signs`: whether signs are kept in the first $N / 5$ steps. Set it to False if all numbers of θ are
      logarithms of gains, whose signs mean nothing. A `Loop` does so.

    !!! Example

        >>> import selftune as st
        >>> tuner = st.GaussNewton(constraint=st.Box(0.0, 50.0))
        >>> slow = st.GaussNewton(constraint=st.Box(0.0, 50.0), memory=20_000, contraction_memory=1000)
        >>> careful = st.GaussNewton(constraint=st.Box(0.0, 50.0), rest=500)
    """

    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)
    memory: Float[Array, ""] = eqx.field(
        default=2000.0,
        converter=lambda v: arguments.number("memory", v, lambda v: 1 <= v < np.inf, "a finite number of steps >= 1"),
    )
    prior: Float[Array, ""] = eqx.field(default=1.0, converter=lambda v: arguments.positive("prior", v))
    cap: Float[Array, ""] = eqx.field(default=0.08, converter=lambda v: arguments.positive("cap", v))
    rest: Float[Array, ""] | None = eqx.field(
        default=None, converter=lambda v: None if v is None else _steps("rest", v, "None or a number of steps >= 0")
    )
    contraction_memory: Float[Array, ""] | None = eqx.field(default=None, converter=_contraction.memory)
    keep_signs: bool = eqx.field(default=True, static=True)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree) -> GaussNewtonState:
        d = ravel_pytree(theta)[0].size
        zero = jnp.zeros((), x.dtype)
        return GaussNewtonState(
            jnp.zeros((x.shape[0], d), x.dtype),
            zero,
            Means(jnp.zeros(d * (d + 1) // 2, x.dtype), jnp.zeros(d, x.dtype), zero, zero),
            _contraction.init(self.contraction_memory, x),
        )

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        theta: PyTree,
        a_hat: PyTree,
        t: Any,
        state: GaussNewtonState,
    ) -> tuple[PyTree, GaussNewtonState, TunerInfo]:
        y, watch, rho = state.y, state.contraction, None
        d = y.shape[1]
        (_, h), push = system.linearize_with_control(x, theta, a_hat, t)
        if watch is None:
            y_next, G, u_theta = push(y, jnp.eye(d, dtype=x.dtype))
        else:
            tangents = jnp.concatenate([y, watch.direction[:, None]], axis=1)
            pushed, dh, du = push(tangents, jnp.eye(d, d + 1, dtype=x.dtype))
            y_next, G, u_theta = pushed[:, :d], dh[:d], du[:, :d]
            watch, rho = _contraction.update(self.contraction_memory, watch, pushed[:, d])
        with jax.named_scope("selftune.curvature"):
            H = _curvature(system, x, y, u_theta, theta, a_hat, t)
        with jax.named_scope("selftune.descent"):
            theta, age, means = self._step(theta, h, G, H, state.age, state.means)
        state = GaussNewtonState(y_next, age, means, watch)
        return theta, state, TunerInfo(gradient=G, y=y, contraction=rho)

    def reset(
        self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, state: GaussNewtonState
    ) -> GaussNewtonState:
        """Return the state with $y = 0$."""
        return eqx.tree_at(lambda state: state.y, state, jnp.zeros_like(state.y))

    def _step(
        self, theta: PyTree, h: Array, G: Array, H: Array, age: Array, means: Means
    ) -> tuple[PyTree, Array, Means]:
        """Return the next θ, age and means. H is the curvature in the units of θ, (d, d)."""
        flat, unravel = ravel_pytree(theta)
        dtype, d = flat.dtype, flat.size
        N, prior, cap = (setting.astype(dtype) for setting in (self.memory, self.prior, self.cap))
        row, column, place = _triangle(d)
        low, high = self.constraint.bounds(theta)
        w, growth = self.constraint.widths(theta), STEP_GROWTH
        if self.rest is not None:
            w, growth = jnp.minimum(w, jnp.maximum(jnp.abs(flat), SMALL * w)), CAREFUL_GROWTH
        g, C = w * G, H[row, column] * (w[row] * w[column])
        C = jnp.where(jnp.isfinite(jnp.sum(C)), C, 0)

        square, size = jnp.sum(g * g), jnp.abs(h)
        is_small = jnp.isfinite(square)
        # If only the square overflows, the gradient counts as 0 and θ stays. If the gradient is not finite, θ is NaN.
        g, square = jnp.where(is_small, g, g - g), jnp.where(is_small, square, 0)
        # A step whose numbers are not finite must not enter the means, because a guard's reset keeps the means.
        is_finite = is_small & jnp.isfinite(size)
        known = jax.tree.map(lambda now: jnp.where(is_finite, now, 0), (g, square, size))
        weight = jnp.where(is_finite, 1 / jnp.minimum(N, 1 + MEANS_GROWTH * age), 0)
        means = jax.tree.map(lambda old, now: old + weight * (now - old), means, Means(C, *known))

        trace = jnp.sum(means.curvature[np.diagonal(place)])
        shown = means.square / (2 * jnp.where(trace > 0, trace, 1))
        v = prior * jnp.where(trace > 0, jnp.minimum(means.cost, shown), means.cost)
        # Where all gradients are zero, v would be zero; the pivots must stay above the rounding errors of C̄.
        v = jnp.maximum(jnp.maximum(v, 16 * jnp.finfo(dtype).eps * trace), jnp.finfo(dtype).tiny)
        first = FIRST_WINDOW * (d + 1)
        window = jnp.minimum(N, first + growth * age)
        share = jnp.sqrt(first / window)
        damping = jnp.sqrt(square) * share * jnp.sqrt(share) / cap
        least = v + damping
        R = means.curvature[place] + least * jnp.eye(d, dtype=dtype)
        is_box, held = _is_box(self.constraint), None
        closest = jnp.sign(flat) * jnp.minimum(jnp.abs(flat), SMALL * w)
        keeps_sign = (low < 0) & (high > 0) & (flat != 0) & (age < SIGNS_KEPT * N)
        if is_box:
            held = ((flat <= low) & (means.gradient > 0)) | ((flat >= high) & (means.gradient < 0))
        if held is not None and self.keep_signs:
            held = held | (keeps_sign & (flat == closest) & (means.gradient * flat > 0))
        factors = factorize(R, least, held)
        s = solve(factors, g)
        if held is not None:  # the numbers at a bound are decoupled from the others
            s = jnp.where(held, g / jnp.maximum(jnp.diagonal(R), least), s)
        s = s * (-1 / window)
        if self.rest is not None:
            s = jnp.where(age < self.rest.astype(dtype), 0, s)
        moved = flat + w * s
        if is_box:
            if self.keep_signs:
                crosses = keeps_sign & ((moved - closest) * flat < 0) & jnp.isfinite(moved)
                moved = jnp.where(crosses, closest, moved)
            theta = self.constraint.project(unravel(moved))
        else:
            # The factor makes the inverse dimensionless; it does not change the projection.
            inverse = jax.vmap(solve, in_axes=(None, 1), out_axes=1)(factors, least * jnp.eye(d, dtype=dtype))
            theta = self.constraint.project_in_metric(unravel(moved), w[:, None] * inverse * w[None, :], exact=False)
        oldest = 2 * N / MEANS_GROWTH
        if self.rest is not None:
            oldest = jnp.maximum(oldest, self.rest.astype(dtype))
        return theta, jnp.minimum(age + 1, oldest), means


def _steps(name: str, value: Any, expected: str) -> Array:
    return arguments.number(name, value, lambda v: 0 <= v < np.inf, expected)


def _triangle(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns of the lower triangle of a (d, d) matrix, and each entry's place in the triangle."""
    row, column = np.tril_indices(d)
    place = np.zeros((d, d), int)
    place[row, column] = place[column, row] = np.arange(row.size)
    return row, column, place


TIME_CONSTANTS = 20
"""The memory that `suggest_memory` asks for, in time constants of the closed loop."""


def suggest_memory(contraction: float, d: int, *, period: int = 0) -> int:
    r"""Return the shortest `memory` of `GaussNewton` that suits a closed loop, in steps; at least the default of 2000.

    The memory must span 20 time constants $\tau = -1 / \log \hat\rho$ of the closed loop, 200 steps for each number of
    θ, and one period of the reference. These rules are measured, not proved: `docs/no-knobs.md`.

    **Arguments:**

    - `contraction`: $\hat\rho < 1$, the contraction per step. `check_contraction(…).rho` measures it before a run, and
      a tuner with a `contraction_memory` reports it in `run.contraction`.
    - `d`: how many numbers θ has.
    - `period`: the number of steps after which the reference repeats; 0 if it does not.

    !!! Example

        >>> import selftune as st
        >>> st.suggest_memory(0.98, d=4)
        2000
        >>> st.suggest_memory(0.999, d=4)  # a time constant of 1000 steps
        19990
    """
    expected = "a number >= 0 and < 1: a loop that does not contract has no time constant"
    rho = float(arguments.number("contraction", contraction, lambda v: 0 <= v < 1, expected))
    d, period = arguments.count("d", d), arguments.whole("period", period)
    return max(2000, math.ceil(TIME_CONSTANTS * time_constant(rho)), 200 * d, period)


def time_constant(contraction: float) -> float:
    """Return the number of steps in which a loop with this contraction < 1 forgets all but 1/e of a difference."""
    return -1 / math.log(contraction) if contraction > 0 else 0.0


def _curvature(
    system: AbstractSystem,
    x: Float[Array, " n"],
    y: Float[Array, "n d"],
    u_theta: Float[Array, "m d"],
    theta: PyTree,
    a_hat: PyTree,
    t: Any,
) -> Float[Array, "d d"]:
    r"""Return $z^\top (\nabla^2 h) z$: one linearization of the cost's gradient, and d tangents."""
    flat, unravel = ravel_pytree(theta)
    identity = jnp.eye(flat.size, dtype=flat.dtype)
    u = system.control(x, theta, a_hat, t)
    gradient = jax.grad(lambda x, u, flat: system.loop_cost(x, u, unravel(flat), t), argnums=(0, 1, 2))
    _, push_gradient = jax.linearize(gradient, x, u, flat)
    of_x, of_u, of_theta = jax.vmap(push_gradient, in_axes=1, out_axes=1)(y, u_theta, identity)
    return y.T @ of_x + u_theta.T @ of_u + of_theta


def _is_box(constraint: AbstractConstraint) -> bool:
    if isinstance(constraint, Product):
        parts = jax.tree.leaves(constraint.parts, is_leaf=lambda node: isinstance(node, AbstractConstraint))
        return all(map(_is_box, parts))
    return isinstance(constraint, Box | Unconstrained)

"""Lower estimates of the constants by a search for the worst case: many random starts, then gradient ascent."""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import AbstractConstraint, Ball
from ..problem.scenario import Scenario
from ..problem.system import MatchedSystem
from ..regret import run_inputs
from .constants import Constants, Contraction, Sets


def sample_constants(
    system: MatchedSystem,
    scenario: Scenario,
    sets: Sets,
    *,
    theta: Any,
    key: PRNGKeyArray,
    starts: int = 512,
    ascents: int = 16,
    iterations: int = 60,
) -> Constants:
    r"""Lower estimates of L and ℓ of φ, ψ, f and h (Assumption "Lipschitz and smoothness"), found by a search.

    The operator norms of the Jacobian and of the second derivative are evaluated at `starts` random points of the sets
    and of the scenario's contexts, and maximized by projected gradient ascent from the best `ascents` of them. Each
    result is attained at some point, so it is a *lower estimate*, labelled `sampled`. The search does not see a kink,
    as in `jnp.clip`, because it is at a single point: ℓ is then infinite, whatever the search finds.

    **Arguments:** `theta`: policy parameters, only for their shape. `scenario`: for the shapes of x and a, and for the
    contexts t.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a * jnp.sin(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> sets = st.Sets(x_radius=2.0, u_radius=9.0, theta=st.Box(0.5, 4.0), a=st.Box(-1.0, 1.0), theta_step=0.1)
        >>> found = st.sample_constants(system, scenario, sets, theta=jnp.ones(1), key=jax.random.key(0))
        >>> print(f"{found.L_phi_u:.3f} {found.L_psi_theta:.3f} {found.L_h_x:.3f} {found.source['L_h_x']}")
        0.100 2.000 4.000 sampled
    """
    scenario, theta, key = _problem(system, scenario, sets, theta, key)
    counts = [
        arguments.count(name, v) for name, v in {"starts": starts, "ascents": ascents, "iterations": iterations}.items()
    ]
    if counts[1] > counts[0]:
        raise ArgumentError("ascents", f"at most the number of starts, {counts[0]}", f"{counts[1]}")
    a, x = jax.tree.map(lambda leaf: leaf[0], scenario.a_star), scenario.x0
    u = jnp.zeros(system.check(x, theta, a, jax.eval_shape(lambda: scenario.row(0)).t).m, x.dtype)
    blocks = {
        "x": (x, Ball(sets.x_radius)),
        "u": (u, Ball(sets.u_radius)),
        "theta": (theta, sets.theta),
        "a": (a, sets.a),
    }
    functions: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
        "phi": (lambda p, t: system.phi(p["x"], p["u"], t), ("x", "u")),
        "psi": (lambda p, t: system.actuation(p["x"], p["theta"], t), ("x", "theta")),
        "f": (lambda p, t: system.residual(p["x"], p["a"], t), ("x", "a")),
        "h": (lambda p, t: system.cost(p["x"], p["u"], p["theta"], t)[None], ("x", "u", "theta")),
    }
    constants: dict[str, float] = {}
    for name, (function, names) in functions.items():
        key, now = jax.random.split(key)
        values = _search(function, {k: blocks[k] for k in names}, scenario, now, *counts)
        for letter, numbers in zip(("L", "ell"), values, strict=True):
            constants |= {f"{letter}_{name}_{k}": float(v) for k, v in zip(names, numbers, strict=True)}
    return Constants(**constants, source=dict.fromkeys(constants, "sampled"))


def _search(
    function: Callable[..., Any],
    blocks: dict[str, tuple[PyTree, AbstractConstraint]],
    scenario: Scenario,
    key: PRNGKeyArray,
    starts: int,
    ascents: int,
    iterations: int,
) -> list[Array]:
    """The largest norms, (blocks,), of the Jacobian in each block and of the second derivative in it and in all."""
    like = {name: value for name, (value, _) in blocks.items()}
    flat_like, unravel = ravel_pytree(like)
    # In the order of `ravel_pytree`, which sorts by name; `blocks` has the caller's order.
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(like[name])) for name in sorted(like)}
    owner = np.concatenate([np.full(size, list(like).index(name)) for name, size in sizes.items()])
    masks = jnp.asarray(owner[None] == np.arange(len(like))[:, None], flat_like.dtype)

    def draw(key: Array) -> tuple[Array, PyTree]:
        kd, kt = jax.random.split(key)
        points = {}
        for i, (name, (value, constraint)) in enumerate(blocks.items()):
            keys = jax.random.split(jax.random.fold_in(kd, i), starts)
            points[name] = jax.vmap(lambda key, like=value, within=constraint: within.sample(key, like))(keys)
        steps = jax.random.randint(kt, (starts,), 0, len(scenario))
        return jax.vmap(lambda p: ravel_pytree(p)[0])(points), jax.vmap(lambda tau: scenario.row(tau).t)(steps)

    def project(z: Array) -> Array:
        p = unravel(z)
        return ravel_pytree({name: blocks[name][1].project(p[name]) for name in like})[0]

    def flat(z: Array, t: Any) -> Array:
        return function(unravel(z), t)

    def slope(z: Array, t: Any, mask: Array) -> Array:
        J = jax.jacfwd(flat)(z, t) * mask
        s, v = _top(jax.lax.stop_gradient(J))
        return s @ J @ v

    def curvature(z: Array, t: Any, mask: Array) -> Array:
        probes = jnp.cos(jnp.arange(1.0, 4 * z.size + 1).reshape(4, z.size) ** 2).astype(z.dtype)
        second = jax.jacfwd(jax.jacfwd(flat))(z, t)
        known = jax.lax.stop_gradient(second)

        def climb(probe: Array) -> tuple[Array, Array, Array, Array]:
            def turn(_: Any, delta: Array) -> Array:
                s, v = _top(known @ delta)
                return _unit(jnp.einsum("kij,k,i->j", known, s, v) * mask)

            # One turn is exact if the function or the block has one number.
            delta = jax.lax.fori_loop(0, 8, turn, _unit(probe * mask))
            s, v = _top(known @ delta)
            return s @ (known @ delta) @ v, s, v, delta

        value, s, v, delta = jax.vmap(climb)(probes)
        best = jnp.argmax(value)
        return jnp.einsum("kij,k,i,j->", second, s[best], v[best], delta[best])

    def climb_from(z: Array, contexts: PyTree, norm: Callable[..., Array]) -> Array:
        scale = jnp.max(z, axis=0) - jnp.min(z, axis=0)
        first, order = jax.lax.top_k(jax.vmap(norm)(z, contexts), ascents)
        contexts = jax.tree.map(lambda leaf: leaf[order], contexts)

        def step(z: Array, rate: Array) -> tuple[Array, Array]:
            value, gradient = jax.vmap(jax.value_and_grad(norm))(z, contexts)
            gradient: Array = jnp.where(jnp.isfinite(gradient), gradient, 0) * scale
            moved = z + rate * scale * jax.vmap(_unit)(gradient)
            return jax.vmap(project)(moved), jnp.max(value)

        rates = jnp.geomspace(0.3, 1e-4, iterations + 1, dtype=z.dtype)
        _, values = jax.lax.scan(step, z[order], rates)
        return jnp.maximum(first[0], jnp.max(values))

    # One compilation for everything, the draws too, with few optimizations: most of the time is compilation.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def largest(key: Array) -> list[Array]:
        z, contexts = draw(key)
        return [
            jax.vmap(lambda mask, norm=norm: climb_from(z, contexts, lambda z, t: norm(z, t, mask)))(masks)
            for norm in (slope, curvature)
        ]

    return largest(key)


def _top(matrix: Float[Array, "k n"]) -> tuple[Array, Array]:
    """The singular vectors of the largest singular value."""
    if matrix.shape[0] == 1:
        return jnp.ones(1, matrix.dtype), _unit(matrix[0])
    U, _, Vt = jnp.linalg.svd(matrix, full_matrices=False)
    return U[:, 0], Vt[0]


def _unit(v: Array) -> Array:
    length: Array = jnp.linalg.norm(v)
    return v / jnp.where(length > 0, length, 1)


def sample_contraction(
    system: MatchedSystem,
    scenario: Scenario,
    sets: Sets,
    *,
    theta: Any,
    key: PRNGKeyArray,
    sequences: int = 64,
    horizon: int = 500,
) -> Contraction:
    r"""Lower estimates of $(\bar C, \rho)$ and $R_S$ of Assumption "contractive and stability", found by a search.

    From random $x \in B(0, R_x)$ and random steps τ, the closed loop with the exact model runs along `sequences` of θ
    in $S_{\epsilon_\theta}$. A third of them are constant, at random points of Θ and at its edge. A third move
    straight and a third at random, by $\epsilon_\theta$ at each step. Let N(k) be the largest
    $\|\partial g^*_{\tau+k|\tau} / \partial x\|$, a product of k Jacobians. ρ and $\bar C = \max_k N(k) \rho^{-k}$ are
    the pair with the smallest $\bar C / (1 - \rho)$, the leading term of the theory's constants. If the products do not
    shrink within the horizon, ρ ≥ 1. $R_S$ is the largest $\|g^*_{t|\tau}(0, \theta)\|$.

    The result is a *lower estimate*, labelled `sampled`. **Arguments:** as in `sample_constants`; `horizon`: the length
    of the longest product.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a * jnp.sin(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((500, 1)), w=jnp.ones((500, 1)) / 10)
        >>> sets = st.Sets(x_radius=2.0, u_radius=9.0, theta=st.Box(0.5, 4.0), a=st.Box(-1.0, 1.0), theta_step=0.1)
        >>> found = st.sample_contraction(system, scenario, sets, theta=jnp.ones(1), key=jax.random.key(0))
        >>> print(f"{found.C_bar:.2f} {found.rho:.2f} {found.source}")  # 1 − 0.1 · 0.5
        1.00 0.95 sampled
    """
    scenario, theta, key = _problem(system, scenario, sets, theta, key)
    sequences, horizon = arguments.count("sequences", sequences), arguments.count("horizon", horizon)
    horizon = min(horizon, len(scenario))
    flat, unravel = ravel_pytree(theta)

    def project(flat: Array) -> Array:
        return ravel_pytree(sets.theta.project(unravel(flat)))[0]

    def draw(key: Array) -> Array:
        return ravel_pytree(sets.theta.sample(key, theta))[0]

    @eqx.filter_jit
    def products(key: Array, kind: Array) -> tuple[Array, Array]:
        k1, k5, k6 = jax.random.split(key, 3)
        first = ravel_pytree(edge_or_inside(sets.theta, theta, k1))[0]
        heading = _unit(draw(k5) - first)
        start = jax.random.randint(k6, (), 0, len(scenario) - horizon + 1)
        x = Ball(sets.x_radius).sample(jax.random.fold_in(key, 0), scenario.x0)

        def step(carry: Any, k: Array) -> tuple[Any, Any]:
            x, zero, product, at = carry
            now = scenario.row(start + k)
            moved = jax.random.normal(jax.random.fold_in(k5, k), flat.shape, flat.dtype)
            move = jnp.where(kind == 0, 0.0, sets.theta_step) * jnp.where(kind == 1, heading, _unit(moved))

            def loop(x: Array) -> Array:
                return system.step(x, unravel(at), now.a_star, now.t)[0] + now.w

            x_next, push = jax.linearize(loop, x)
            product = jax.vmap(push, in_axes=1, out_axes=1)(product)
            zero = loop(zero)
            return (x_next, zero, product, project(at + move)), (jnp.linalg.norm(product, 2), jnp.linalg.norm(zero))

        identity = jnp.eye(x.shape[0], dtype=x.dtype)
        _, (norms, radius) = jax.lax.scan(step, (x, jnp.zeros_like(x), identity, first), jnp.arange(horizon))
        return norms, jnp.max(radius)

    keys, kinds = jax.random.split(key, sequences), jnp.arange(sequences) % 3
    norms, radii = jax.lax.map(lambda pair: products(*pair), (keys, kinds))
    worst = np.concatenate([[1.0], np.max(np.asarray(norms, float), axis=0)])
    C_bar, rho = fit_contraction(worst)
    return Contraction(
        C_bar=C_bar,
        rho=rho,
        R_S=largest if math.isfinite(largest := float(jnp.max(radii))) else math.inf,
        R_C=float(sets.x_radius),
        source="sampled",
    )


def fit_contraction(norms: np.ndarray) -> tuple[float, float]:
    r"""The $(\bar C, \rho)$ with $N(k) \le \bar C \rho^k$ for all k and the smallest $\bar C / (1 - \rho)$."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.asarray(norms, float))
    k = np.arange(len(logs))
    if not np.all(np.isfinite(norms)):
        return math.inf, 1.0
    if logs[-1] >= 0:
        rate = float(np.exp(logs[-1] / k[-1]))
        return float(np.exp(np.max(logs - k * np.log(rate)))), rate
    # Candidates: the rates at which a single k would be tight, and a grid between them.
    single = np.exp(logs[1:] / k[1:])
    rates = np.concatenate([single[(single > 0) & (single < 1)], 1 - np.geomspace(1e-6, 1 - 1e-3, 400)])
    worst = np.max(np.where(np.isfinite(logs), logs, -np.inf)[None] - k[None] * np.log(rates)[:, None], axis=1)
    best = int(np.argmin(worst - np.log1p(-rates)))
    return max(1.0, float(np.exp(worst[best]))), float(rates[best])


def edge_or_inside(constraint: AbstractConstraint, like: PyTree, key: Array) -> PyTree:
    """A random point of a bounded set, in half of the cases at its edge."""
    k1, k2, k3, k4 = jax.random.split(key, 4)
    inside, unravel = ravel_pytree(constraint.sample(k1, like))
    # Go far in a random direction and project back: the result is on the edge, often a corner.
    reach = 1e6 * (1 + jnp.linalg.norm(ravel_pytree(constraint.sample(k2, like))[0] - inside))
    far = unravel(inside + reach * _unit(jax.random.normal(k3, inside.shape, inside.dtype)))
    edge = ravel_pytree(constraint.project(far))[0]
    return unravel(jnp.where(jax.random.bernoulli(k4), inside, edge))


def check_bounded(name: str, constraint: AbstractConstraint, like: PyTree) -> None:
    if not math.isfinite(constraint.diameter(like)):
        raise ArgumentError(name, "a bounded set, whose diameter is finite", f"{constraint!r}")


def _problem(system: Any, scenario: Any, sets: Any, theta: Any, key: Any) -> tuple[Scenario, PyTree, Array]:
    if not isinstance(system, MatchedSystem):
        raise ArgumentError("system", "a MatchedSystem, to which the theory applies", arguments.describe(system))
    if not isinstance(sets, Sets):
        raise ArgumentError("sets", "Sets", arguments.describe(sets))
    scenario = run_inputs.problem(system, scenario)
    theta = arguments.real_tree("theta", theta, dtype=scenario.x0.dtype)
    a = jax.tree.map(lambda leaf: leaf[0], scenario.a_star)
    for name, constraint, value in (("theta", sets.theta, theta), ("a", sets.a, a)):
        check_bounded(f"sets.{name}", constraint, value)
    return scenario, theta, arguments.key("key", key)

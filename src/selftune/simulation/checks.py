"""What to check before a controller is let loose on a robot: are its derivatives right, and does its loop contract?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..control.contexts import context
from ..control.controller import Controller
from ..estimators import Frozen
from ..foundation import arguments
from ..problem.scenario import Scenario
from ..problem.system import System
from ..tuners import Fixed
from ._differences import Block, Probe, compare, probe, relative_errors
from .run import Result
from .simulator import simulate


@dataclass(frozen=True)
class GradientCheck:
    """What `check_gradient` found; `print` it for a table, and all that is wrong."""

    error: float
    """The largest relative error of a derivative, beyond what the differences themselves can tell."""
    where: str
    """Whose it is, such as `policy: d u[0] / d x[2]`."""
    errors: dict[str, float]
    """The largest one of each Jacobian: `{"policy: d u / d x": 1e-11, …}`."""
    wrong: tuple[str, ...]
    """Derivatives that are not finite, or not those of the function."""
    notes: tuple[str, ...]
    """Kinks, jumps, and parameters without influence: not wrong, but to be known."""
    tolerance: float
    points: int

    @property
    def ok(self) -> bool:
        """Whether every derivative is finite, and that of its function to within the tolerance."""
        return not self.wrong

    def __str__(self) -> str:
        width = max(map(len, self.errors))
        at = "1 point" if self.points == 1 else f"{self.points} points"
        lines = [f"{'relative error of':{width}}  at {at}, tolerance {self.tolerance:.0e}"]
        lines += [
            f"{name:{width}}  {error:.1e}{'' if error <= self.tolerance else '  WRONG'}"
            for name, error in self.errors.items()
        ]
        lines += [f"WRONG  {text}" for text in self.wrong] + [f"note   {text}" for text in self.notes]
        return "\n".join([*lines, "ok" if self.ok else f"not ok: {self.where}"])


def check_gradient(
    system: System, x: Any, theta: Any, a_hat: Any, t: Any = 0, *, tolerance: float | None = None
) -> GradientCheck:
    r"""Hold every derivative that the tuner and the estimator use against finite differences.

    Those of the closed loop, $\partial \hat g / \partial (x, \theta)$ and $\partial \hat h / \partial (x, \theta)$, in
    forward mode as M-GAPS takes them; $\partial f / \partial a$ in reverse mode as the estimators do; and those of
    `residual`, `policy`, `dynamics` and `cost` one by one, so that an error is found where it is made.

    Differences are central, extrapolated (Richardson) from pairs on a ladder of steps; for each entry the pair is taken
    whose truncation, seen by comparing its two, and rounding are least, and what it leaves unsure is not held against
    the derivative. Where the two one-sided differences do not meet, there is a *kink* (`clip`, `abs`), and a derivative
    between them is right; where they grow without end, a *jump* (`sign`), which no derivative sees.

    **Arguments:**

    - `x`: a point, (n,), or many, (N, n): some steps of a run, and the corners of where the robot will go.
    - `theta`, `a_hat`: $\theta$ and $\hat a$, the same at all points.
    - `t`: the context; with many points one for all of them, or one each, by a leading axis N of every leaf.
    - `tolerance`: of the relative error; 1e-6 in float64, 1e-3 in float32.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.System(
        ...     dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        ...     residual=lambda x, a, t: a * jnp.sqrt(jnp.abs(x)),
        ...     policy=lambda x, theta, f, t: -theta[:1] * x - f,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> st.check_gradient(system, jnp.ones(1), theta=jnp.ones(1), a_hat=jnp.ones(1)).ok
        True
        >>> found = st.check_gradient(system, jnp.zeros(1), theta=jnp.ones(2), a_hat=jnp.ones(1))
        >>> print(found.ok, *found.wrong, *found.notes, sep="\n")
        False
        residual: d f[0] / d x[0] is inf
        theta[0] has no influence on the next state or the cost
        theta[1] has no influence on the next state or the cost
        a_hat[0] has no influence on the residual
    """
    if not isinstance(system, System):
        raise ValueError(f"system: expected a System, got {arguments.describe(system)}")
    x = arguments.real_array("x", x)
    if x.ndim not in (1, 2) or x.size == 0:
        raise ValueError(f"x: expected a point (n,) or points (N, n), got {arguments.describe(x)}")
    theta = arguments.real_tree("theta", theta, dtype=x.dtype)
    a_hat = arguments.real_tree("a_hat", a_hat, dtype=x.dtype)
    points = jnp.atleast_2d(x)
    contexts = _contexts(t, points.shape[0], many=x.ndim == 2)
    first = jax.tree.map(lambda leaf: leaf[0], contexts)
    system.check(points[0], theta, a_hat, first)
    if tolerance is None:
        limit = 1e-6 if jnp.finfo(x.dtype).eps < 1e-12 else 1e-3
    else:
        limit = float(arguments.positive("tolerance", tolerance))
    # One compilation, and one that does not try hard: compiling is most of the time.
    probes = jax.jit(
        jax.vmap(lambda x, t: _probes(system, x, theta, a_hat, t)),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    with np.errstate(all="ignore"):
        blocks = {name: compare(made) for name, made in probes(points, contexts).items()}
        return _verdict({name: blocks[name] for name in _PARTS}, theta, a_hat, limit)


def _contexts(t: Any, count: int, many: bool) -> Any:
    """One context a point."""
    made = context(t)
    if many and any(jnp.ndim(leaf) > 0 for leaf in jax.tree.leaves(made)):
        for leaf in jax.tree.leaves(made):
            if jnp.ndim(leaf) == 0 or leaf.shape[0] != count:
                raise ValueError(
                    f"t: expected one context, or a leading axis of {count}, the points of x; "
                    f"got {arguments.describe_tree(made)}"
                )
        return made
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), made)


_LOOP = "closed loop"
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "residual": (("f",), ("x", "a_hat")),
    "policy": (("u",), ("x", "theta", "f")),
    "dynamics": (("x_next",), ("x", "u", "f")),
    "cost": (("h",), ("x", "u", "theta")),
    _LOOP: (("x_next", "h"), ("x", "theta")),
}
"""Of each function, its outputs and inputs."""


def _probes(system: System, x: Float[Array, " n"], theta: PyTree, a: PyTree, t: Any) -> dict[str, Probe]:
    at = {"x": x, "theta": theta, "a_hat": a, "f": system.residual(x, a, t)}
    at["u"] = system.policy(x, theta, at["f"], t)
    functions: dict[str, Callable[..., Array]] = {
        "residual": lambda x, a: system.residual(x, a, t),
        "policy": lambda x, theta, f: system.policy(x, theta, f, t),
        "dynamics": lambda x, u, f: system.dynamics(x, u, f, t),
        "cost": lambda x, u, theta: system.cost(x, u, theta, t)[None],
        _LOOP: lambda x, theta: jnp.append(*system.step(x, theta, a, t)),
    }
    made = {}
    for name, (_, inputs) in _PARTS.items():
        values = tuple(at[one] for one in inputs)
        z, unravel = ravel_pytree(values)

        def function(z: Array, call: Callable[..., Array] = functions[name], unravel: Any = unravel) -> Array:
            return call(*unravel(z))

        derivative = _as_the_tuner(system, x, theta, a, t) if name == _LOOP else _derivative(functions[name], values)
        if name == "residual":  # in a as the estimators have it
            derivative = derivative.at[:, x.size :].set(system.residual_and_jacobian(x, a, t)[1])
        made[name] = probe(function, z, derivative)
    return made


def _derivative(function: Callable[..., Array], values: tuple[PyTree, ...]) -> Array:
    """In one input after the other: a tangent of zero is not a number, where another's derivative is not."""
    columns = []
    for i, value in enumerate(values):
        z, unravel = ravel_pytree(value)
        columns.append(jax.jacfwd(lambda z, i=i, un=unravel: function(*values[:i], un(z), *values[i + 1 :]))(z))
    return jnp.concatenate(columns, axis=1)


def _as_the_tuner(system: System, x: Array, theta: PyTree, a: PyTree, t: Any) -> Array:
    n, d = x.size, ravel_pytree(theta)[0].size
    _, push = system.linearize(x, theta, a, t)
    dg, dh = push(jnp.eye(n, n + d, dtype=x.dtype), jnp.eye(d, n + d, n, dtype=x.dtype))
    return jnp.concatenate([dg, dh[None]])


def _verdict(blocks: dict[str, Block], theta: PyTree, a_hat: PyTree, tolerance: float) -> GradientCheck:
    points, n = len(blocks["dynamics"].value), blocks["dynamics"].value.shape[1]
    sizes = {"f": blocks["residual"].value.shape[1], "u": blocks["policy"].value.shape[1], "x": n, "x_next": n}
    names = {name: [f"{name}[{i}]" for i in range(size)] for name, size in sizes.items()}
    names |= {"h": ["h"], "theta": _names("theta", theta), "a_hat": _names("a_hat", a_hat)}
    wrong, notes, errors = _Findings(points), _Findings(points), {}
    worst, where = (False, 0.0), ""
    for function, block in blocks.items():
        outputs, inputs = ([(one, text) for one in part for text in names[one]] for part in _PARTS[function])
        error = relative_errors(block, tolerance)
        for point, i in np.argwhere(~np.isfinite(block.value)):
            wrong.add(function, outputs[i][1], f"is {block.value[point, i]}")
        for here in np.ndindex(*error.shape):
            (output, of), (argument, by) = outputs[here[1]], inputs[here[2]]
            title, entry = f"{function}: d {output} / d {argument}", f"d {of} / d {by}"
            errors[title] = max(errors.get(title, 0.0), float(error[here]))
            # Of errors the one in a part is told, where it is made, and not what the closed loop makes of it.
            rank = (bool(error[here] > tolerance) and function != _LOOP, float(error[here]))
            if not where or rank > worst:
                worst, where = rank, f"{function}: {entry}"
            derivative, difference, _, right, left, kink, jump = (one[here] for one in block[1:])
            if not np.isfinite(derivative):
                wrong.add(function, entry, f"is {derivative}")
            elif error[here] > tolerance:
                wrong.add(function, entry, f"is {derivative:.6g}, by differences {difference:.6g}")
            elif jump:
                notes.add(function, entry, f"is {derivative:.6g} at a jump, which no derivative sees")
            elif kink:
                notes.add(
                    function, entry, f"is {derivative:.6g} at a kink: {left:.6g} to the left, {right:.6g} to the right"
                )
            elif not np.isfinite(difference):
                notes.add(function, entry, f"is {derivative:.6g}, but {of} is not finite on one side")
    silent = [
        f"{name} has no influence on the next state or the cost" for name in _silent(blocks[_LOOP], n, names["theta"])
    ]
    silent += [f"{name} has no influence on the residual" for name in _silent(blocks["residual"], n, names["a_hat"])]
    return GradientCheck(worst[1], where, errors, wrong.texts(), (*notes.texts(), *silent), tolerance, points)


def _silent(block: Block, first: int, names: list[str]) -> list[str]:
    """The inputs, from the `first` on, that nothing moves with at any point; what is not finite tells nothing."""
    moves = (np.isfinite(block.derivative) & (block.derivative != 0)) | (np.abs(block.difference) > block.unsure)
    return [name for name, heard in zip(names, np.any(moves, axis=(0, 1))[first:], strict=True) if not heard]


class _Findings:
    """Texts by function and entry, each told once; of the closed loop only where none of its parts has any."""

    def __init__(self, points: int):
        self.points = points
        self.found: dict[tuple[str, str], tuple[str, int]] = {}

    def add(self, function: str, entry: str, text: str) -> None:
        first, count = self.found.get((function, entry), (text, 0))
        self.found[function, entry] = first, count + 1

    def texts(self) -> tuple[str, ...]:
        parts = {key: value for key, value in self.found.items() if key[0] != _LOOP} or self.found
        at = (lambda count: f" (at {count} of {self.points} points)") if self.points > 1 else (lambda count: "")
        return tuple(f"{name}: {entry} {text}{at(count)}" for (name, entry), (text, count) in parts.items())


def _names(name: str, tree: PyTree) -> list[str]:
    """One for each number, flat, as `ravel_pytree` has them: `theta[0]`, `theta['kp']`."""
    return [
        name + jax.tree_util.keystr(path) + "".join(f"[{i}]" for i in index)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        for index in np.ndindex(*np.shape(leaf))
    ]


@dataclass(frozen=True)
class ContractionCheck:
    """What `check_contraction` found; `print` it for a verdict."""

    rho: float
    """By what a small deviation shrinks a step, on average over the last `memory` steps."""
    worst: float
    """The largest such average along the run, after its first `memory` steps."""
    time_constant: float
    """Steps in which a deviation shrinks e-fold (grows, if ρ > 1): 1 / |log ρ|."""
    memory: float
    steps: int
    """How many steps there were, to the end or to where the state diverged."""
    result: Result

    @property
    def ok(self) -> bool:
        """Whether the loop contracts: surely, and all along the run."""
        return bool(self.result.ok) and self._sure and self.rho < 1 and self.worst < 1

    @property
    def _sure(self) -> bool:
        # Within the steps that were looked at, a deviation must change by more than what its turning can feign.
        return min(self.memory, self.steps) > 2 * self.time_constant

    @property
    def verdict(self) -> str:
        """In one sentence."""
        if not bool(self.result.ok):
            return f"UNSTABLE: {self.result.message}"
        if not self._sure:
            return f"marginal: not to be told from 1 within {min(self.memory, self.steps):.0f} steps; look at more"
        if self.rho > 1:
            return f"UNSTABLE: a deviation grows e-fold in {self.time_constant:.3g} steps"
        if self.worst >= 1:
            return f"contracts at the end, but not all along: up to {self.worst:.4g}"
        return f"contracts: a deviation shrinks e-fold in {self.time_constant:.3g} steps"

    def __str__(self) -> str:
        return f"rho = {self.rho:.4f}; {self.verdict}"


def check_contraction(
    system: System,
    scenario: Scenario,
    *,
    theta: Any,
    a_hat: Any,
    memory: float | None = None,
    plant: System | None = None,
) -> ContractionCheck:
    r"""Does the closed loop forget, with these gains? What M-GAPS rests on (Definition "time-varying contractive
    perturbation"), and the first thing to ask of gains to start from.

    The scenario is run with θ and â as they are, and a tangent is pushed along the trajectory through
    $\partial \hat g / \partial x$, as in `Fixed(contraction_memory=...)`. Its mean growth is ρ, as the *model* has it:
    the modulus of the largest eigenvalue, where the loop is linear and does not change. The transient of a loop that
    contracts only in the end is not in ρ; it is in `sample_contraction`'s $\bar C$.

    **Arguments:**

    - `scenario`: where the loop is looked at; `theta`, `a_hat`: θ and â, both held.
    - `memory`: steps that ρ is averaged over, half of the scenario's unless given.
    - `plant`: as in `simulate`.

    A scan is a loop: a second θ of the same shape compiles nothing.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(x0=jnp.ones(1), a_star=jnp.zeros((400, 1)), w=jnp.zeros((400, 1)))
        >>> for gain in (1.0, 0.0, -1.0):
        ...     print(st.check_contraction(system, scenario, theta=jnp.array([gain]), a_hat=jnp.zeros(1)))
        rho = 0.9000; contracts: a deviation shrinks e-fold in 9.49 steps
        rho = 1.0000; marginal: not to be told from 1 within 200 steps; look at more
        rho = 1.1000; UNSTABLE: the state diverged at step 193
    """
    if not isinstance(system, System):
        raise ValueError(f"system: expected a System, got {arguments.describe(system)}")
    if not isinstance(scenario, Scenario):
        raise ValueError(f"scenario: expected a Scenario, got {arguments.describe(scenario)}")
    if len(scenario) == 0:
        raise ValueError("scenario: expected at least one step, got none")
    memory = len(scenario) / 2 if memory is None else memory
    over = float(arguments.number("memory", memory, lambda v: 0 < v < math.inf, "None or a number of steps >= 1"))
    controller = Controller(system, Fixed(contraction_memory=max(over, 1.0)), Frozen())
    run = simulate(controller, scenario, theta=theta, a_hat=a_hat, plant=plant, record=("contraction",), throw=False)
    steps = len(scenario) if bool(run.result.ok) else max(int(run.result.step), 1)
    seen = np.asarray(run.contraction, float)[:steps]
    rho, later = float(seen[-1]), seen[math.ceil(min(over, steps - 1)) :]
    time_constant = 1 / abs(math.log(rho)) if rho not in (0.0, 1.0) and math.isfinite(rho) else math.inf
    return ContractionCheck(rho, float(np.max(later)), time_constant, over, steps, run.result)

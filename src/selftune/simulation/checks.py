"""Checks before a controller runs on a robot: are the derivatives right, and does the closed loop contract?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..control.contexts import context
from ..control.controller import Controller
from ..estimators import Frozen
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..foundation.quick_compilation import quickly_compiled
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..tuners import Fixed
from ._differences import Block, Probe, compare, probe, relative_errors
from .run import Result, Run
from .simulator import simulate


@dataclass(frozen=True)
class GradientCheck:
    """The result of `check_gradient`; `print` it for a table and a list of all errors.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> found = st.check_gradient(system, jnp.ones(1), theta=jnp.ones(1), a_hat=jnp.ones(1))
        >>> found.ok, found.wrong, bool(found.error < found.tolerance)
        (True, (), True)
    """

    error: float
    """The largest relative error of a derivative, beyond the error of the finite differences themselves."""
    where: str
    """The derivative with this error, such as `policy: d u[0] / d x[2]`."""
    errors: dict[str, float]
    """The largest error of each Jacobian: `{"policy: d u / d x": 1e-11, …}`."""
    wrong: tuple[str, ...]
    """Derivatives that are not finite, or that differ from those of the function."""
    notes: tuple[str, ...]
    """Kinks, jumps, and parameters without influence: not errors, but you should know them."""
    tolerance: float
    points: int

    @property
    def ok(self) -> bool:
        """Whether every derivative is finite and correct to within the tolerance."""
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
    system: AbstractSystem,
    x: Any,
    theta: Any,
    a_hat: Any,
    t: Any = 0,
    *,
    memory: Any = None,
    tolerance: float | None = None,
) -> GradientCheck:
    r"""Compare every derivative that the tuner and the estimator use with finite differences.

    These are the derivatives of the closed loop, $\partial \hat g / \partial (x, \theta)$ and
    $\partial \hat h / \partial (x, \theta)$, in forward mode as in M-GAPS; $\partial f / \partial a$ in reverse mode
    as in the estimators; and those of `residual`, `policy`, `dynamics` and `cost` one by one, to find the function with
    the error.

    The differences are central, with Richardson extrapolation from pairs of step sizes. For each entry of a Jacobian,
    the pair with the smallest estimated truncation and rounding error is used, and an error of the derivative counts
    only if it exceeds this estimate. If the two one-sided differences do not approach each other, there is a *kink*
    (`clip`, `abs`), and a derivative between them is correct. If the differences grow without limit, there is a *jump*
    (`sign`), which a derivative cannot show.

    **Arguments:**

    - `x`: a point, (n,), or many, (N, n). Use some steps of a run, and the corners of the robot's operating range.
    - `theta`, `a_hat`: $\theta$ and $\hat a$, the same at all points.
    - `t`: the context. For many points, give one context for all, or one for each, with a leading axis N of every leaf.
    - `memory`: the policy's memory, the same at all points; by default the first memory of the system.
    - `tolerance`: the largest allowed relative error; by default 1e-6 in float64, 1e-3 in float32.

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
    arguments.instance("system", system, AbstractSystem)
    x = arguments.real_array("x", x)
    if x.ndim not in (1, 2) or x.size == 0:
        raise ArgumentError("x", "a point (n,) or points (N, n)", arguments.describe(x))
    theta = arguments.real_tree("theta", theta, dtype=x.dtype)
    a_hat = arguments.real_tree("a_hat", a_hat, dtype=x.dtype)
    points = jnp.atleast_2d(x)
    contexts = _contexts(t, points.shape[0], many=x.ndim == 2)
    first = jax.tree.map(lambda leaf: leaf[0], contexts)
    system.check(points[0], theta, a_hat, first)
    loop_states = jax.vmap(system.first)(points)
    if memory is not None:
        if system.memory is None:
            raise ArgumentError("memory", "None, because the system has no memory", arguments.describe_tree(memory))
        memory = arguments.real_tree("memory", memory, dtype=x.dtype)
        expected, given = (jax.tree.map(jnp.shape, tree) for tree in (system.memory.initial, memory))
        if given != expected:
            raise ArgumentError("memory", f"shapes {expected}, those of the first memory", f"{given}")
        loop_states = jax.vmap(lambda x: system.join(x, memory))(points)
    if tolerance is None:
        limit = 1e-6 if jnp.finfo(x.dtype).eps < 1e-12 else 1e-3
    else:
        limit = float(arguments.positive("tolerance", tolerance))
    with np.errstate(all="ignore"):
        probes = _probes_of_all(system, loop_states, theta, a_hat, contexts)
        blocks = {name: compare(probed) for name, probed in probes.items()}
        return _verdict({name: blocks[name] for name in _PARTS}, theta, a_hat, limit)


def _contexts(t: Any, count: int, many: bool) -> Any:
    """Return one context for each point."""
    arrays = context(t)
    if many and any(jnp.ndim(leaf) > 0 for leaf in jax.tree.leaves(arrays)):
        for leaf in jax.tree.leaves(arrays):
            if jnp.ndim(leaf) == 0 or leaf.shape[0] != count:
                expected = f"one context, or a leading axis of {count}, the points of x"
                raise ArgumentError("t", expected, arguments.describe_tree(arrays))
        return arrays
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), arrays)


_LOOP = "closed loop"
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "residual": (("f",), ("x", "a_hat")),
    "policy": (("u", "memory_next"), ("x", "memory", "theta", "f")),
    "dynamics": (("x_next",), ("x", "u", "f")),
    "cost": (("h",), ("x", "memory", "u", "theta")),
    _LOOP: (("x_next", "memory_next", "h"), ("x", "memory", "theta")),
}
"""The outputs and inputs of each function; without a memory, `memory` and `memory_next` have no numbers."""


@quickly_compiled
def _probes_of_all(
    system: AbstractSystem, loop_states: Array, theta: PyTree, a: PyTree, contexts: Any
) -> dict[str, Probe]:
    return jax.vmap(lambda loop_state, t: _probes(system, loop_state, theta, a, t))(loop_states, contexts)


def _probes(system: AbstractSystem, loop_state: Array, theta: PyTree, a: PyTree, t: Any) -> dict[str, Probe]:
    x, memory = system.split(loop_state)
    at = {"x": x, "memory": memory, "theta": theta, "a_hat": a, "f": system.residual(x, a, t)}

    def policy(x: Array, memory: PyTree, theta: PyTree, f: Array) -> Array:
        return system.join(*system.decide(system.measurement(x, t), memory, theta, f, t))

    at["u"] = system.split(policy(x, memory, theta, at["f"]))[0]
    functions: dict[str, Callable[..., Array]] = {
        "residual": lambda x, a: system.residual(x, a, t),
        "policy": policy,
        "dynamics": lambda x, u, f: system.dynamics(x, u, f, t),
        "cost": lambda x, memory, u, theta: system.stage_cost(x, memory, u, theta, t)[None],
        _LOOP: lambda x, memory, theta: jnp.append(*system.step(system.join(x, memory), theta, a, t)),
    }
    probes = {}
    for name, (_, inputs) in _PARTS.items():
        values = tuple(at[argument] for argument in inputs)
        z, unravel = ravel_pytree(values)

        def function(z: Array, call: Callable[..., Array] = functions[name], unravel: Any = unravel) -> Array:
            return call(*unravel(z))

        derivative = (
            _as_the_tuner(system, loop_state, theta, a, t) if name == _LOOP else _derivative(functions[name], values)
        )
        if name == "residual":  # the derivative in a as the estimators compute it
            derivative = derivative.at[:, x.size :].set(system.residual_and_jacobian(x, a, t)[1])
        probes[name] = probe(function, z, derivative)
    return probes


def _derivative(function: Callable[..., Array], values: tuple[PyTree, ...]) -> Array:
    """Return the Jacobian, computed for one input after the other: in a joint computation, an input with an infinite
    derivative would turn the zero tangents of the others into NaN."""
    columns = []
    for i, value in enumerate(values):
        if not jax.tree.leaves(value):  # no memory
            continue
        z, unravel = ravel_pytree(value)
        columns.append(jax.jacfwd(lambda z, i=i, un=unravel: function(*values[:i], un(z), *values[i + 1 :]))(z))
    return jnp.concatenate(columns, axis=1)


def _as_the_tuner(system: AbstractSystem, x: Array, theta: PyTree, a: PyTree, t: Any) -> Array:
    n, d = x.size, ravel_pytree(theta)[0].size
    _, push = system.linearize(x, theta, a, t)
    dg, dh = push(jnp.eye(n, n + d, dtype=x.dtype), jnp.eye(d, n + d, n, dtype=x.dtype))
    return jnp.concatenate([dg, dh[None]])


def _verdict(blocks: dict[str, Block], theta: PyTree, a_hat: PyTree, tolerance: float) -> GradientCheck:
    points, n = len(blocks["dynamics"].value), blocks["dynamics"].value.shape[1]
    s = blocks[_LOOP].value.shape[1] - n - 1
    sizes = {"f": blocks["residual"].value.shape[1], "u": blocks["policy"].value.shape[1] - s, "x": n, "x_next": n}
    sizes |= {"memory": s, "memory_next": s}
    names = {name: [f"{name}[{i}]" for i in range(size)] for name, size in sizes.items()}
    names |= {"h": ["h"], "theta": _names("theta", theta), "a_hat": _names("a_hat", a_hat)}
    wrong, notes, errors = _Findings(points), _Findings(points), {}
    worst, where = (False, 0.0), ""
    for function, block in blocks.items():
        outputs, inputs = ([(name, text) for name in part for text in names[name]] for part in _PARTS[function])
        error = relative_errors(block, tolerance)
        for point, i in np.argwhere(~np.isfinite(block.value)):
            wrong.add(function, outputs[i][1], f"is {block.value[point, i]}")
        for here in np.ndindex(*error.shape):
            (output, of), (argument, by) = outputs[here[1]], inputs[here[2]]
            title, entry = f"{function}: d {output} / d {argument}", f"d {of} / d {by}"
            errors[title] = max(errors.get(title, 0.0), float(error[here]))
            # Report an error in the function that causes it, rather than its effect on the closed loop.
            rank = (bool(error[here] > tolerance) and function != _LOOP, float(error[here]))
            if not where or rank > worst:
                worst, where = rank, f"{function}: {entry}"
            derivative, difference, _, right, left, kink, jump = (array[here] for array in block[1:])
            if not np.isfinite(derivative):
                wrong.add(function, entry, f"is {derivative}")
            elif error[here] > tolerance:
                wrong.add(function, entry, f"is {derivative:.6g}, by differences {difference:.6g}")
            elif jump:
                notes.add(function, entry, f"is {derivative:.6g} at a jump, which a derivative cannot show")
            elif kink:
                notes.add(
                    function, entry, f"is {derivative:.6g} at a kink: {left:.6g} to the left, {right:.6g} to the right"
                )
            elif not np.isfinite(difference):
                notes.add(function, entry, f"is {derivative:.6g}, but {of} is not finite on one side")
    silent = [
        f"{name} has no influence on the next state or the cost"
        for name in _silent(blocks[_LOOP], n + s, names["theta"])
    ]
    silent += [f"{name} has no influence on the residual" for name in _silent(blocks["residual"], n, names["a_hat"])]
    return GradientCheck(worst[1], where, errors, wrong.texts(), (*notes.texts(), *silent), tolerance, points)


def _silent(block: Block, first: int, names: list[str]) -> list[str]:
    """Return the inputs, from number `first` on, that change no output at any point; entries that are not finite are
    ignored."""
    moves = (np.isfinite(block.derivative) & (block.derivative != 0)) | (np.abs(block.difference) > block.unsure)
    return [name for name, heard in zip(names, np.any(moves, axis=(0, 1))[first:], strict=True) if not heard]


class _Findings:
    """Texts by function and entry, each listed once; those of the closed loop only if no other function has any."""

    def __init__(self, points: int):
        self.points = points
        self.entries: dict[tuple[str, str], tuple[str, int]] = {}

    def add(self, function: str, entry: str, text: str) -> None:
        first, count = self.entries.get((function, entry), (text, 0))
        self.entries[function, entry] = first, count + 1

    def texts(self) -> tuple[str, ...]:
        parts = {key: value for key, value in self.entries.items() if key[0] != _LOOP} or self.entries
        at = (lambda count: f" (at {count} of {self.points} points)") if self.points > 1 else (lambda count: "")
        return tuple(f"{name}: {entry} {text}{at(count)}" for (name, entry), (text, count) in parts.items())


def _names(name: str, tree: PyTree) -> list[str]:
    """Return a name for each number, in the order of `ravel_pytree`: `theta[0]`, `theta['kp']`."""
    return [
        name + jax.tree_util.keystr(path) + "".join(f"[{i}]" for i in index)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        for index in np.ndindex(*np.shape(leaf))
    ]


@dataclass(frozen=True)
class ContractionCheck:
    """The result of `check_contraction`; `print` it for a verdict.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.zeros((400, 1)), w=jnp.zeros((400, 1)))
        >>> found = st.check_contraction(system, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> found.ok, round(found.rho, 3)  # x shrinks by 0.8 in each step
        (True, 0.8)
    """

    rho: float
    """The factor by which a small deviation changes per step, on average over the last `memory` steps."""
    worst: float
    """The largest of these averages during the run, after its first `memory` steps."""
    time_constant: float
    """The number of steps in which a deviation shrinks by a factor of e (grows, if ρ > 1): 1 / |log ρ|."""
    memory: float
    steps: int
    """The number of steps, up to the end or to the step at which the state diverged."""
    result: Result
    without_control: float | None = None
    """The factor by which a small deviation changes per step at the start if the control is held: the largest modulus
    of an eigenvalue of ∂g/∂x, according to the model. None if it was not computed."""

    @property
    def ok(self) -> bool:
        """Whether the loop contracts during the whole run, with enough steps to be sure."""
        return bool(self.result.ok) and self._sure and self.rho < 1 and self.worst < 1

    @property
    def _sure(self) -> bool:
        # The deviation must change by more than its rotation alone could do within these steps.
        return min(self.memory, self.steps) > 2 * self.time_constant

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if not bool(self.result.ok):
            return f"UNSTABLE: {self.result.message}"
        if not self._sure:
            return f"marginal: too close to 1 to decide within {min(self.memory, self.steps):.0f} steps; use more steps"
        if self.rho > 1:
            return f"UNSTABLE: a deviation grows e-fold in {self.time_constant:.3g} steps"
        if self.worst >= 1:
            return f"contracts at the end, but not during the whole run: up to {self.worst:.4g}"
        return f"contracts: a deviation shrinks e-fold in {self.time_constant:.3g} steps"

    @property
    def _rest(self) -> int | None:
        """The `rest` that `GaussNewton` needs, if the loop contracts and the plant is unstable without control."""
        if not self.ok or self.without_control is None or self.without_control < UNSTABLE:
            return None
        return math.ceil(RESTING * self.time_constant)

    def __str__(self) -> str:
        text = f"rho = {self.rho:.4f}; {self.verdict}"
        if self._rest is None or self.without_control is None:
            return text
        grows = 1 / math.log(self.without_control)
        return (
            f"{text}\nthe plant is unstable without control (a deviation grows e-fold in {grows:.3g} steps): "
            f"use GaussNewton(rest={self._rest})"
        )


UNSTABLE = 1.001
"""A plant is called unstable if a deviation grows by more than this factor per step. An integrator has 1."""
RESTING = 10
"""How many time constants of the loop θ rests in front of a plant that is unstable without control."""


def check_contraction(
    system: AbstractSystem,
    scenario: Scenario,
    *,
    theta: Any,
    a_hat: Any,
    memory: float | None = None,
    plant: AbstractSystem | None = None,
) -> ContractionCheck:
    r"""Check whether the closed loop contracts with these gains, which means that it forgets small deviations. M-GAPS
    needs this property (Definition "time-varying contractive perturbation"): check it first for the initial gains.

    The scenario is run with constant θ and â. A tangent is propagated along the trajectory through
    $\partial \hat g / \partial x$, as in `Fixed(contraction_memory=...)`. ρ is its mean growth per step, according to
    the *model*. For a linear time-invariant loop, ρ is the largest modulus of an eigenvalue. If a loop
    expands first and contracts only later, ρ does not show the expansion; $\bar C$ of `sample_contraction` does.

    `print(check)` also says if the plant is unstable without control, and which `rest` of `GaussNewton` then is careful
    enough.

    **Arguments:**

    - `scenario`: the trajectory on which the loop is checked; `theta`, `a_hat`: θ and â, both constant.
    - `memory`: the number of steps over which ρ is averaged; by default half of the scenario's steps.
    - `plant`: as in `simulate`.

    Calling it again with another θ of the same shape does not recompile.

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
        rho = 1.0000; marginal: too close to 1 to decide within 200 steps; use more steps
        rho = 1.1000; UNSTABLE: the state diverged at step 193
    """
    arguments.instance("system", system, AbstractSystem)
    arguments.instance("scenario", scenario, Scenario)
    if len(scenario) == 0:
        raise ArgumentError("scenario", "at least one step", "none")
    memory = len(scenario) / 2 if memory is None else memory
    over = float(arguments.number("memory", memory, lambda v: 0 < v < math.inf, "None or a number of steps >= 1"))
    controller = Controller(system, Fixed(contraction_memory=max(over, 1.0)), Frozen())
    run = simulate(controller, scenario, theta=theta, a_hat=a_hat, plant=plant, record=("contraction",), throw=False)
    return contraction_of(run, over, _without_control(system, scenario, theta, a_hat))


def _without_control(system: AbstractSystem, scenario: Scenario, theta: PyTree, a_hat: PyTree) -> float | None:
    """Return the spectral radius of ∂g/∂x at the first state, with the control held; None if it is not finite."""
    x, t = scenario.x0, scenario.row(0).t

    @jax.jit
    def jacobian(theta: PyTree, a_hat: PyTree) -> Array:
        u = system.control(system.first(x), theta, a_hat, t)
        return jax.jacfwd(lambda x: system.dynamics(x, u, system.residual(x, a_hat, t), t))(x)

    A = np.asarray(jacobian(theta, a_hat))
    return float(np.max(np.abs(np.linalg.eigvals(A)), initial=0.0)) if np.all(np.isfinite(A)) else None


def contraction_of(run: Run, over: float, without_control: float | None = None) -> ContractionCheck:
    """Return the contraction of a run whose tuner kept θ constant, with a `contraction_memory` of `over` steps."""
    steps = len(run.contraction) if bool(run.outcome.ok) else max(int(run.outcome.step), 1)
    rhos = np.asarray(run.contraction, float)[:steps]
    rho, later = float(rhos[-1]), rhos[math.ceil(min(over, steps - 1)) :]
    time_constant = 1 / abs(math.log(rho)) if rho not in (0.0, 1.0) and math.isfinite(rho) else math.inf
    return ContractionCheck(rho, float(np.max(later)), time_constant, over, steps, run.result, without_control)

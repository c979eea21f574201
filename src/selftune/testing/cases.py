"""A tuner, an estimator, a constraint or a policy together with the inputs on which its properties are checked."""

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..estimators.base import AbstractEstimator
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..policies.base import AbstractPolicy, Inputs
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint
from ..problem.system import AbstractSystem, MatchedSystem
from ..tuners.base import AbstractTuner

BATCH, STEPS = 3, 3


class AbstractCase(abc.ABC):
    """A part of a controller and the inputs of a few steps, for the functions of `PROPERTIES`.

    To check another kind of part, subclass and implement `begin` and `step`.
    """

    part: Any
    """The tuner, estimator, constraint or policy that is checked: a pytree."""
    rows: PyTree
    """The inputs of the steps; every leaf has the leading axes (batch, steps)."""

    def __init__(self, part: Any, rows: PyTree):
        self.part, self.rows = part, rows

    @abc.abstractmethod
    def begin(self, part: Any, row: PyTree) -> dict[str, PyTree]:
        """Return the values before the first step, by name. They are all that one step hands to the next."""

    @abc.abstractmethod
    def step(self, part: Any, values: dict[str, PyTree], row: PyTree) -> tuple[dict[str, PyTree], PyTree]:
        """Return the values after one step, and the report of the step, which the next step does not need."""

    def restart(self, part: Any, values: dict[str, PyTree], row: PyTree) -> dict[str, PyTree]:
        """Return the values after a guard's reset."""
        return values

    def outside(self, values: dict[str, PyTree]) -> list[str]:
        """Return the names of the values that are outside the part's constraint."""
        return []

    def row(self, item: int, step: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[item, step], self.rows)

    @cached_property
    def eager(self) -> list[tuple[dict[str, PyTree], PyTree]]:
        """The values and the report after each step of the first item of the batch, computed without jit."""
        values, steps = self.begin(self.part, self.row(0, 0)), []
        for t in range(STEPS):
            values, info = self.step(self.part, values, self.row(0, t))
            steps.append((values, info))
        return steps

    @cached_property
    def compiled(self) -> "CompiledStep":
        return CompiledStep(self)


class CompiledStep:
    """`AbstractCase.step` under jit, with the number of times that JAX traced the step."""

    def __init__(self, case: AbstractCase):
        self.traces = 0

        def step(part: Any, values: dict[str, PyTree], row: PyTree) -> Any:
            self.traces += 1
            return case.step(part, values, row)

        self._step = eqx.filter_jit(step)

    def __call__(self, part: Any, values: dict[str, PyTree], row: PyTree) -> Any:
        return self._step(part, values, row)


class TunerCase(AbstractCase):
    r"""A tuner on a small problem, for the functions of `PROPERTIES`.

    **Arguments:**

    - `tuner`: the tuner.
    - `system`, `x`, `theta`, `a_hat`: the system and the values of the first step. Give all of them or none. By default
      they are a system with two states in which θ and â are dictionaries of arrays; all numbers of θ₀ are between 0.2
      and 0.3.
    - `t`: the context of a step. By default, the number of the step.

    !!! Example

        >>> import selftune as st
        >>> from selftune import testing
        >>> testing.check_dtype_kept(testing.TunerCase(st.Fixed()))
    """

    def __init__(
        self,
        tuner: AbstractTuner,
        *,
        system: Any = None,
        x: Any = None,
        theta: Any = None,
        a_hat: Any = None,
        t: Any = None,
    ):
        _check_part("tuner", tuner, AbstractTuner)
        self.system, rows = _problem(system, x, theta, a_hat, t)
        super().__init__(tuner, rows)
        _check_start("theta", self.row(0, 0)["theta"], tuner)

    def begin(self, part: Any, row: PyTree) -> dict[str, PyTree]:
        return {"theta": row["theta"], "state": part.init(self.system, row["x"], row["theta"])}

    def step(self, part: Any, values: dict[str, PyTree], row: PyTree) -> tuple[dict[str, PyTree], PyTree]:
        with _explaining("theta", values["theta"]):
            out = part.update(self.system, row["x"], values["theta"], row["a_hat"], row["t"], values["state"])
        theta, state, info = _three(out, "theta, the state and a TunerInfo")
        return {"theta": theta, "state": state}, {"info": info}

    def restart(self, part: Any, values: dict[str, PyTree], row: PyTree) -> dict[str, PyTree]:
        return {**values, "state": part.reset(self.system, row["x"], values["theta"], values["state"])}

    def outside(self, values: dict[str, PyTree]) -> list[str]:
        return _outside("theta", values, self.part)


class EstimatorCase(AbstractCase):
    r"""An estimator on a small problem, for the functions of `PROPERTIES`.

    **Arguments:** `estimator`; all others as in `TunerCase`. All numbers of the default $\hat a_0$ are between 0.25 and
    0.5.

    !!! Example

        >>> import selftune as st
        >>> from selftune import testing
        >>> testing.check_dtype_kept(testing.EstimatorCase(st.Frozen()))
    """

    def __init__(
        self,
        estimator: AbstractEstimator,
        *,
        system: Any = None,
        x: Any = None,
        theta: Any = None,
        a_hat: Any = None,
        t: Any = None,
    ):
        _check_part("estimator", estimator, AbstractEstimator)
        self.system, rows = _problem(system, x, theta, a_hat, t)
        residual = jax.vmap(jax.vmap(self.system.residual))(rows["x"], rows["a_hat"], rows["t"])
        rows["f_obs"] = residual + 0.3 * irregular(residual)
        super().__init__(estimator, rows)
        _check_start("a_hat", self.row(0, 0)["a_hat"], estimator)

    def begin(self, part: Any, row: PyTree) -> dict[str, PyTree]:
        return {"a_hat": row["a_hat"], "state": part.init(self.system, row["x"], row["a_hat"], row["t"])}

    def step(self, part: Any, values: dict[str, PyTree], row: PyTree) -> tuple[dict[str, PyTree], PyTree]:
        with _explaining("a_hat", values["a_hat"]):
            out = part.update(self.system, row["x"], row["f_obs"], values["a_hat"], row["t"], values["state"])
        a_hat, state, info = _three(out, "a_hat, the state and an EstimatorInfo")
        return {"a_hat": a_hat, "state": state}, {"info": info}

    def restart(self, part: Any, values: dict[str, PyTree], row: PyTree) -> dict[str, PyTree]:
        return {**values, "state": part.reset(self.system, row["x"], values["a_hat"], values["state"])}

    def outside(self, values: dict[str, PyTree]) -> list[str]:
        return _outside("a_hat", values, self.part)


class ConstraintCase(AbstractCase):
    """A constraint and points inside and outside of it, for the functions of `PROPERTIES`.

    **Arguments:** `constraint`; `like`: a parameter, for its structure and shapes; by default a vector of 3 numbers.

    !!! Example

        >>> import selftune as st
        >>> from selftune import testing
        >>> testing.check_stays_in_set(testing.ConstraintCase(st.Ball(1.0)))
    """

    def __init__(self, constraint: AbstractConstraint, *, like: Any = None):
        _check_part("constraint", constraint, AbstractConstraint)
        like = arguments.real_tree("like", np.zeros(3) if like is None else like)
        # The points of a batch lie on different scales, so that some are inside of the usual sets and some far outside.
        scales = jnp.asarray([0.1, 1.0, 100.0])
        points = jax.tree.map(
            lambda leaf: irregular(leaf) * scales.reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype), _repeat(like)
        )
        super().__init__(constraint, {"v": points})

    def begin(self, part: Any, row: PyTree) -> dict[str, PyTree]:
        return {}

    def step(self, part: Any, values: dict[str, PyTree], row: PyTree) -> tuple[dict[str, PyTree], PyTree]:
        point = part.project(row["v"])
        return {}, {"project": point, "contains": part.contains(point)}


class PolicyCase(AbstractCase):
    r"""A policy and the inputs of a few steps, for the functions of `POLICY_PROPERTIES`.

    **Arguments:**

    - `policy`: the policy.
    - `output`, `reference`, `x`, `f`: values of the inputs of the policy. By default, output, x and f are vectors of
      zeros with one number for each control, and the reference is the output plus 1. The values of the steps differ
      from these by numbers between −0.2 and 0.2.
    - `dt`: the sampling period, 0.01 by default. `t`: the context of a step; by default, the number of the step.

    !!! Example

        >>> from selftune import policies, testing
        >>> testing.check_dtype_kept(testing.PolicyCase(policies.PID(kp=2.0, ki=1.0)))
    """

    def __init__(
        self,
        policy: AbstractPolicy,
        *,
        output: Any = None,
        reference: Any = None,
        x: Any = None,
        f: Any = None,
        dt: Any = 0.01,
        t: Any = None,
    ):
        if not isinstance(policy, AbstractPolicy):
            expected = "a subclass of selftune.policies.AbstractPolicy"
            raise ArgumentError("policy", expected, arguments.describe(policy))
        output = arguments.real_array("output", np.zeros(policy.limits[0].size) if output is None else output)
        given = {"output": output, "reference": output + 1 if reference is None else reference}
        given |= {"x": output if x is None else x, "f": 0 * output if f is None else f}
        rows = {}
        for shift, (name, value) in enumerate(given.items()):
            leaf = _repeat(arguments.real_array(name, value).astype(output.dtype))
            # Numbers of another phase for each input, so that the error varies too.
            rows[name] = leaf + 0.2 * jnp.roll(irregular(leaf), shift).astype(leaf.dtype)
        steps = jnp.broadcast_to(jnp.arange(STEPS, dtype=jnp.int32), (BATCH, STEPS))
        rows["dt"] = _repeat(arguments.positive("dt", dt).astype(output.dtype))
        rows["t"] = steps if t is None else _repeat(t)
        theta = jax.tree.map(lambda leaf: leaf.astype(output.dtype), policy.theta)
        super().__init__(policy, {"inputs": Inputs(**rows), "theta": _repeat(theta)})

    def begin(self, part: Any, row: PyTree) -> dict[str, PyTree]:
        return {"memory": None if part.memory is None else part.memory.start(row["inputs"].output.dtype)}

    def step(self, part: Any, values: dict[str, PyTree], row: PyTree) -> tuple[dict[str, PyTree], PyTree]:
        u, memory = part(row["inputs"], values["memory"], row["theta"])
        return {"memory": memory}, {"u": u}

    def restart(self, part: Any, values: dict[str, PyTree], row: PyTree) -> dict[str, PyTree]:
        """Return the memory after a refused step and a rollback."""
        if part.memory is None:
            return values
        changed, info = self.step(part, values, row)
        memory = part.memory.refused(values["memory"], changed["memory"], info["u"])
        return {"memory": part.memory.restored(memory, self.begin(part, row)["memory"])}

    def outside(self, values: dict[str, PyTree]) -> list[str]:
        return [] if bool(self.part.constraint.contains(self.part.theta)) else ["theta"]

    def enlarged(self, row: PyTree, factor: float) -> PyTree:
        """Return a row with output, reference and x times `factor`."""
        inputs = row["inputs"]
        larger = {name: factor * getattr(inputs, name) for name in ("output", "reference", "x")}
        return {**row, "inputs": inputs._replace(**larger)}


def _check_part(name: str, part: Any, kind: type) -> None:
    if not isinstance(part, kind):
        hint = f"did you mean {part.__name__}(...)?" if isinstance(part, type) and issubclass(part, kind) else ""
        expected = f"an instance of a subclass of selftune.{kind.__name__}"
        raise ArgumentError(name, expected, arguments.describe(part), hint)


def _three(out: Any, expected: str) -> tuple[Any, Any, Any]:
    if not isinstance(out, tuple) or len(out) != 3:
        got = f"{len(out)} values" if isinstance(out, tuple) else arguments.describe_tree(out)
        raise ArgumentError("update", f"three values: {expected}", got)
    return out


@contextmanager
def _explaining(name: str, value: PyTree) -> Iterator[None]:
    """Say that a parameter is a dictionary in this test, if a part that takes it for an array fails."""
    try:
        yield
    except (TypeError, AttributeError, ValueError, KeyError) as error:
        text = str(error).strip().split("\n", 1)[0]
        if isinstance(value, dict) and ("dict" in text or (isinstance(error, KeyError) and text.isdigit())):
            advice = f"in this test {name} is a dictionary of arrays; use jax.flatten_util.ravel_pytree"
            raise TypeError(
                f"{text}; {advice}, or give a system of your own with system=, x=, theta= and a_hat="
            ) from error
        raise


def irregular(like: jax.Array) -> jax.Array:
    """Return numbers between -1 and 1 without a pattern, in the shape and dtype of `like`; always the same numbers."""
    return jnp.asarray(np.cos(1.0 + 2.0 * np.arange(like.size) ** 1.5).reshape(like.shape), like.dtype)


def _repeat(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (BATCH, STEPS, *jnp.shape(leaf))), tree)


def _problem(system: Any, x: Any, theta: Any, a_hat: Any, t: Any) -> tuple[AbstractSystem, dict[str, PyTree]]:
    """Return the system and the inputs of the steps; the state x is different at each step."""
    given = [
        name
        for name, value in zip(("system", "x", "theta", "a_hat"), (system, x, theta, a_hat), strict=True)
        if value is not None
    ]
    if not given:
        system = _default_system()
        x, theta = [1.0, -1.0], {"gain": [0.3, 0.3], "bias": [0.2, 0.2]}
        a_hat = {"slope": [0.25], "level": [0.25, 0.5]}
    elif len(given) < 4:
        expected = "a System together with x, theta and a_hat, or none of the four"
        raise ArgumentError("system", expected, ", ".join(given))
    arguments.instance("system", system, AbstractSystem)
    x = arguments.real_array("x", x)
    states = _repeat(x)
    # Steps of a few percent: every system that can start at x can also be evaluated there.
    states = states + (0.05 * (1 + jnp.abs(states)) * irregular(states)).astype(x.dtype)
    steps = jnp.broadcast_to(jnp.arange(STEPS, dtype=jnp.int32), (BATCH, STEPS))
    return system, {
        "x": states,
        "theta": _repeat(arguments.real_tree("theta", theta, dtype=x.dtype)),
        "a_hat": _repeat(arguments.real_tree("a_hat", a_hat, dtype=x.dtype)),
        "t": steps if t is None else _repeat(t),
    }


def _default_system() -> AbstractSystem:
    return MatchedSystem(
        dynamics=lambda x, v, t: 0.8 * x + 0.2 * jnp.tanh(v),
        residual=lambda x, a, t: a["slope"] * jnp.sin(x) + a["level"],
        actuation=lambda x, theta, t: -theta["gain"] * x + theta["bias"],
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum((u - 1.0) ** 2),
    )


def _check_start(name: str, value: PyTree, part: Any) -> None:
    if (constraint := projected_step.constraint_of(part)) is not None:
        projected_step.check_inside(name, value, constraint)


def _outside(name: str, values: dict[str, PyTree], part: Any) -> list[str]:
    constraint = projected_step.constraint_of(part)
    return [] if constraint is None or bool(constraint.contains(values[name])) else [name]

"""A cascade of control loops, such as position → velocity → current."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import AbstractConstraint, Product
from ..problem.memory import Memory
from .base import AbstractPolicy, Inputs, Parameter


class Cascade(AbstractPolicy):
    r"""Control loops inside each other: the control of a level is the reference of the next level.

    The first level controls the measured output. Each further level controls components of the state x. The control of
    the last level is u. Give the outer levels limits (`u_max`): their integrals stop when the reference for the next
    level is at its limit.

    θ is `{"level_1": …, "level_2": …}`, from the outermost level to the innermost.

    **Arguments:**

    - `levels`: two or more policies, the outermost first; usually `PID`.
    - `states`: for each level except the first, the component of x that the level controls, or a list of components.
    - `every`: for each level, the number of steps between two updates; by default 1 for all. A slower level holds its
      control in between, and its sampling period is `every` times as long.

    !!! Example

        A drive with x = (position, velocity, current). The position loop runs at every tenth step:

        >>> from selftune import policies
        >>> drive = policies.Cascade(
        ...     policies.PID(kp=20.0, u_min=-5.0, u_max=5.0),
        ...     policies.PID(kp=0.5, ki=10.0, u_min=-8.0, u_max=8.0),
        ...     policies.PID(kp=1.0, ki=200.0, u_min=-24.0, u_max=24.0),
        ...     states=(1, 2),
        ...     every=(10, 1, 1),
        ... )
        >>> [parameter.name for parameter in drive.parameters]
        ['level 1: log kp', 'level 2: log ki', 'level 2: log kp', 'level 3: log ki', 'level 3: log kp']
        >>> inputs = policies.Inputs.of(output=[0.0], reference=[0.1], x=[0.0, 0.0, 0.0], dt=1e-4)
        >>> u, memory = drive(inputs, drive.memory.initial, drive.theta)
        >>> print(u)  # 20 · 0.1 = 2 rad/s, then 0.5 · 2 = 1 A, then 1 · 1 = 1 V
        [1.]
    """

    theta: dict[str, Any]
    constraint: AbstractConstraint
    levels: tuple[AbstractPolicy, ...]
    states: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    every: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, *levels: AbstractPolicy, states: Any, every: Any = None):
        for level in levels:
            arguments.instance("levels", level, AbstractPolicy)
        if not 2 <= len(levels) <= 9:
            raise ArgumentError("levels", "two to nine policies", f"{len(levels)}")
        self.levels = levels
        self.states = tuple(_indices(index) for index in states)
        if len(self.states) != len(levels) - 1:
            raise ArgumentError("states", f"an entry for each of the {len(levels) - 1} inner levels", f"{states!r}")
        every = (1,) * len(levels) if every is None else every
        self.every = tuple(arguments.count("every", value) for value in every)
        if len(self.every) != len(levels):
            raise ArgumentError("every", f"an entry for each of the {len(levels)} levels", f"{every!r}")
        self.theta = {name: level.theta for name, level in self._named.items()}
        self.constraint = Product({name: level.constraint for name, level in self._named.items()})
        for index, outer in zip(self.states, levels[:-1], strict=True):
            if len(index) != (m := outer.limits[0].size):
                raise ArgumentError("states", f"{m} components, one for each control of the outer level", f"{index}")

    @property
    def _named(self) -> dict[str, AbstractPolicy]:
        return {f"level_{i + 1}": level for i, level in enumerate(self.levels)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(
            parameter._replace(name=f"{name.replace('_', ' ')}: {parameter.name}")
            for name, level in self._named.items()
            for parameter in level.parameters
        )

    @property
    def limits(self) -> tuple[Array, Array]:
        return self.levels[-1].limits

    @property
    def memory(self) -> Memory:
        first = {}
        for (name, level), every in zip(self._named.items(), self.every, strict=True):
            zero = jnp.zeros_like(level.limits[0])
            first[name] = {"memory": None if level.memory is None else level.memory.initial, "control": zero}
            if every > 1:
                first[name]["count"] = zero[0]
        return Memory(first, refused=_Refused(self), restored=_Restored(self))

    def gains(self, theta: PyTree) -> dict[str, Array]:
        return {
            f"{name}.{gain}": value
            for name, level in self._named.items()
            for gain, value in level.gains(theta[name]).items()
        }

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        after, seen, u = {}, inputs, inputs.output
        if (last := max(index for each in self.states for index in each)) >= inputs.x.size:
            # JAX would take the last component instead.
            raise ArgumentError("states", f"components of the state, from 0 to {inputs.x.size - 1}", f"{last}")
        for i, (name, level) in enumerate(self._named.items()):
            if i > 0:
                seen = inputs._replace(output=inputs.x[np.array(self.states[i - 1])], reference=u)
            before, every = memory[name], self.every[i]
            seen = seen._replace(dt=every * inputs.dt, last_dt=every * inputs.elapsed)
            u, own = level(seen, before["memory"], theta[name])
            after[name] = {"memory": own, "control": u}
            if every > 1:  # between two updates, the level keeps its control and its memory
                due, count = before["count"] < 0.5, before["count"] + 1
                held = {"memory": before["memory"], "control": before["control"]}
                after[name] = jax.tree.map(lambda new, old, due=due: jnp.where(due, new, old), after[name], held)
                after[name]["count"] = jnp.where(count > every - 0.5, jnp.zeros_like(count), count)
                u = after[name]["control"]
        return u, after


class _Refused(eqx.Module):
    """Each level follows its own rule. The control of an outer level stays; that of the last level is the one sent."""

    cascade: Cascade

    def __call__(self, before: PyTree, after: PyTree, u: Array) -> PyTree:
        out, last = {}, list(self.cascade._named)[-1]
        for name, level in self.cascade._named.items():
            sent = u if name == last else before[name]["control"]
            own = after[name]["memory"]
            if level.memory is not None:
                own = level.memory.refused(before[name]["memory"], own, sent)
            out[name] = {**after[name], "memory": own, "control": sent}
        return out


class _Restored(eqx.Module):
    """Each level follows its own rule."""

    cascade: Cascade

    def __call__(self, memory: PyTree, initial: PyTree) -> PyTree:
        return {
            name: {
                **memory[name],
                "memory": None
                if level.memory is None
                else level.memory.restored(memory[name]["memory"], initial[name]["memory"]),
            }
            for name, level in self.cascade._named.items()
        }


def _indices(index: Any) -> tuple[int, ...]:
    values = index if isinstance(index, (list, tuple)) else (index,)
    return tuple(arguments.whole("states", value) for value in values)

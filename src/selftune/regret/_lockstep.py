"""Many rollouts as a batch, one in each lane, each with its own θ: the computation behind `surrogate`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..problem.scenario import Scenario, ScenarioRow
from ..problem.system import AbstractSystem
from .run_inputs import width


class Lanes(NamedTuple):
    """The values of a block of lanes."""

    value: Float[Array, " lanes"]
    gradient: Float[Array, "lanes d"]


def lanes_for(n: int, d: int, steps: int) -> int:
    """The number of lanes in a batch: enough to hide the overhead of a step, few enough to stay in the cache.

    An exact block of B lanes wastes B²/2 lane-steps (a triangle), so a short scenario has narrow blocks.
    """
    cached = 2 ** max(7, min(9, (2**15 // (n * (1 + d))).bit_length() - 1))
    return max(1, min(cached, -(-steps // 8)))


def lanes_for_window(n: int, d: int, steps: int, window: int) -> int:
    """The number of lanes for rollouts of `window` steps: shorter rollouts need more lanes to share a call's overhead.

    The states of the lanes take at most a megabyte.
    """
    lanes = lanes_for(n, d, steps)
    wide = min(lanes * max(1, 1024 // window), 2**17 // (n * (1 + d)))
    return max(lanes, min(wide, -(-steps // 8)))


class _Packing(NamedTuple):
    """The state (x, y) of all lanes in the form that the loop carries, with lanes last."""

    n: int
    d: int

    # XLA makes one kernel for each array of the loop, and repeats shared computations in each. If x and y are scalars,
    # one complex array holds both: sin of a residual and cos of its derivative are then computed together.
    def pack(self, x: Array, y: Array) -> PyTree:
        return jax.lax.complex(x, y[:, 0]) if self.n == self.d == 1 else (x, y)

    def unpack(self, packed: PyTree) -> tuple[Array, Array]:
        return (packed.real, packed.imag[:, None]) if self.n == self.d == 1 else packed


class Lockstep:
    """The closed loop with exact parameters and its sensitivity, over lanes."""

    def __init__(self, system: AbstractSystem, n: int, d: int, theta: PyTree):
        self.system = system
        self.theta = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), theta)
        self.packing = _Packing(n, d)

    def start(self, x: Float[Array, "lanes n"], y: Float[Array, "lanes n d"]) -> PyTree:
        return jax.vmap(self.packing.pack, out_axes=-1)(x, y)

    def unpack(self, packed: PyTree) -> tuple[Float[Array, "lanes n"], Float[Array, "lanes n d"]]:
        return jax.vmap(self.packing.unpack, in_axes=-1)(packed)

    def step(self, packed: PyTree, now: Any, row_axis: int | None) -> PyTree:
        """Advance all lanes by one step; `now` is one row for all (`row_axis` None) or one for each lane (0)."""

        def lane_step(packed, theta, now):
            x, y = self.packing.unpack(packed)
            x, y, _, _ = self.system.sensitivity(x, y, theta, now.a_star, now.t)
            return self.packing.pack(x + now.w, y)

        return jax.vmap(lane_step, in_axes=(-1, -1, row_axis), out_axes=-1)(packed, self.theta, now)

    def finish(self, packed: PyTree, now: Any) -> Lanes:
        """Cost and gradient at the current states of the lanes; `now` has a row for each lane."""

        def lane_step(packed, theta, now):
            x, y = self.packing.unpack(packed)
            _, _, cost, gradient = self.system.sensitivity(x, y, theta, now.a_star, now.t)
            return cost, gradient

        return Lanes(*jax.vmap(lane_step, in_axes=(-1, -1, 0))(packed, self.theta, now))

    def cost_slope(self, x: Float[Array, "lanes n"], now: Any) -> Float[Array, "lanes n"]:
        """The derivative of the closed loop's cost with respect to x."""

        def lane_step(x, theta, now):
            return jax.grad(lambda x: self.system.step(x, theta, now.a_star, now.t)[1])(x)

        return jax.vmap(lane_step, in_axes=(0, -1, 0))(x, self.theta, now)


def rows_at(scenario: Scenario, t: Array) -> Any:
    """The rows of the scenario at the indices in `t`."""
    return jax.vmap(scenario.row)(t)


def rows_from(scenario: Scenario, first: Array, count: int) -> Any:
    """The rows first, first + 1, …, by slicing, which is much cheaper than a gather. All must be in the scenario."""
    part = jax.tree.map(
        lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, count), (scenario.a_star, scenario.w, scenario.t)
    )
    a_star, w, t = part
    return ScenarioRow(a_star, w, None, first + jnp.arange(count) if scenario.t is None else t)


@eqx.filter_jit
def exact_block(system: AbstractSystem, scenario: Scenario, thetas: PyTree, first: Array, size: int) -> Lanes:
    """F_t(θ_t) and its gradient for t in [first, first + size), from step 0. Past the end, the last t repeats."""
    last = len(scenario) - 1
    t = jnp.minimum(first + jnp.arange(size), last)
    x0 = jnp.broadcast_to(scenario.x0, (size, *scenario.x0.shape))
    y0 = jnp.zeros((*x0.shape, width(thetas)), x0.dtype)
    lockstep = Lockstep(system, y0.shape[1], y0.shape[2], jax.tree.map(lambda leaf: leaf[t], thetas))

    def advance(tau, packed):
        return lockstep.step(packed, scenario.row(tau), None)

    def advance_unfinished(tau, packed):
        return jax.tree.map(lambda new, old: jnp.where(tau < t, new, old), advance(tau, packed), packed)

    packed = jax.lax.fori_loop(0, first, advance, lockstep.start(x0, y0))
    packed = jax.lax.fori_loop(first, jnp.minimum(first + size, last), advance_unfinished, packed)
    return lockstep.finish(packed, rows_at(scenario, t))


def recorded_by_xla(system: AbstractSystem, scenario: Scenario, thetas: PyTree, size: int) -> Iterator[Lanes]:
    """Yield F_t and ∇F_t of lanes with constant θ, for `size` steps at a time: the shapes begin with (lanes, steps)."""
    lanes, n = len(jax.tree.leaves(thetas)[0]), scenario.x0.shape[0]
    state = jnp.zeros((lanes, n * (1 + width(thetas))), scenario.x0.dtype).at[:, :n].set(scenario.x0)
    for first in range(0, len(scenario), size):
        state, rows = _recorded_block(system, scenario, thetas, state, jnp.asarray(first), size)
        yield jax.tree.map(lambda leaf, first=first: leaf[:, : len(scenario) - first], rows)


@eqx.filter_jit
def _recorded_block(
    system: AbstractSystem, scenario: Scenario, thetas: PyTree, state: Array, first: Array, size: int
) -> tuple[Array, Lanes]:
    n, last = scenario.x0.shape[0], len(scenario) - 1

    def step(state: Array, tau: Array) -> tuple[Array, Lanes]:
        now = scenario.row(jnp.minimum(tau, last))  # behind the end, the last row repeats

        def lane_step(packed: Array, theta: PyTree) -> tuple[Array, Lanes]:
            x, y, cost, gradient = system.sensitivity(packed[:n], packed[n:].reshape(n, -1), theta, now.a_star, now.t)
            return jnp.concatenate([x + now.w, y.reshape(-1)]), Lanes(cost, gradient)

        return jax.vmap(lane_step)(state, thetas)

    state, rows = jax.lax.scan(step, state, first + jnp.arange(size))
    return state, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), rows)

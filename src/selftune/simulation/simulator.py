"""`simulate`: the closed loop as one compiled loop."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from ..control import guarded_step
from ..control.closed_loop import closed_loop_step
from ..control.controller import Controller
from ..control.guard import Guard
from ..control.run_fields import CHECKED, FIELDS
from ..foundation import arguments, suggestions
from ..foundation.errors import ArgumentError
from ..foundation.small_programs import small_program
from ..native.choice import Engine, check_engine, run_with
from ..problem.noise import Stream, is_stream
from ..problem.projected_step import constraint_of
from ..problem.scenario import MOST_STEPS, Scenario
from ..problem.system import AbstractSystem
from ..tuners import GaussNewton
from .packing import Packing
from .run import Final, Result, Run


def simulate(
    controller: Controller,
    scenario: Scenario,
    *,
    theta: Any = None,
    a_hat: Any = None,
    x_hat: Any = None,
    resume: Final | None = None,
    plant: AbstractSystem | None = None,
    guard: Guard | None = None,
    infer: bool = False,
    record: Sequence[str] = tuple(FIELDS),
    stride: int = 1,
    limit: ArrayLike = 1e8,
    throw: bool = True,
    engine: Engine = "auto",
) -> Run:
    r"""Run a controller against a scenario: Algorithm "Meta-Framework" for $t = 0, \dots, T-1$, as one loop.

    It works under `jit` and `vmap`, over scenarios, keys, learning rates and θ₀. A second call with new arrays of the
    same shapes does not recompile. `simulate(c, s[:k], ...)` and then `simulate(c, s[k:], resume=run.final)` give the
    same results, bit for bit, as one call.

    **Arguments:**

    - `theta`, `a_hat`: $\theta_0$ and $\hat a_0$. With the estimator `Known`, `a_hat` may be left out.
    - `x_hat`: the first state of the model, if the plant's state has other components than the model's, such as an
      actuator that the model leaves out. It needs sensors (`measure`) and `infer`. By default it is the scenario's
      `x0`.
    - `resume`: the `final` of an earlier run, in place of `theta`, `a_hat`, `x_hat` and the scenario's `x0`.
    - `plant`: the true `dynamics` and `residual`, and `measure` if it has one, if they differ from the model's.
      `scenario.a_star` then holds the plant's parameters. The policy is always the controller's, and so is the cost,
      with one exception: if the controller sees measurements instead of the state, the recorded cost is that of the
      plant's own `cost`, at the true state.
    - `guard`: a `Guard`, which limits what the controller may do; by default there is none.
    - `infer`: whether the estimator sees only measurements. At the beginning of each step it then learns from the
      residual that explains the last transition, as with `Agent.observe_state`; this needs a guard. By default the
      estimator gets the true residual plus $v_t$ at the end of the step.
    - `record`: which fields of `Run` to keep; `()` keeps only `final` and `result`, in constant memory.
    - `stride`: keep the rows of steps 0, stride, 2·stride, … of this call.
    - `limit`: a run has diverged if its largest |x| exceeds this number; infinity for no limit.
    - `throw`: raise `SimulationError` when the run fails. Under `jit` or `vmap` nothing is raised: read
      `run.result`, or call `run.raise_if_failed()` outside.
    - `engine`: `"native"` writes the loop as C, compiles it once with the system's C compiler and runs it on the CPU.
      A batch under `vmap` runs on all cores. `"xla"` runs on any device. Both give the same run up to rounding; on a
      CPU the native engine is many times faster. `"auto"`, the default, uses the native engine on a CPU if possible,
      and XLA otherwise. If JAX differentiates the run, XLA computes the derivative. `run.engine` is the engine that
      ran.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        ... )
        >>> controller = st.Controller(
        ...     system, tuner=st.MGAPS(1e-2, constraint=st.Box(0.0, 8.0)), estimator=st.GradientEstimator(0.05)
        ... )
        >>> ka, kw = jax.random.split(jax.random.key(0))
        >>> scenario = st.Scenario(
        ...     x0=jnp.zeros(1), a_star=st.Constant(0.5)(ka, 2000, 1), w=st.Gaussian(0.1)(kw, 2000, 1)
        ... )
        >>> run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))
        >>> run.x.shape, run.theta.shape, run.result.message
        ((2000, 1), (2000, 1), 'ok')
    """
    arguments.instance("controller", controller, Controller)
    arguments.instance("scenario", scenario, Scenario)
    arguments.instance("plant", plant, AbstractSystem, optional=True)
    arguments.instance("guard", guard, Guard, optional=True)
    fields = check_record(record)
    stride = arguments.count("stride", stride)
    limit_ = arguments.number("limit", limit, lambda v: v > 0, "a number > 0")
    start = resume if resume is not None else _first_values(controller, scenario, theta, a_hat, x_hat)
    if resume is not None and not theta is a_hat is x_hat is None:
        raise ArgumentError("theta, a_hat, x_hat", "None together with resume, which contains them", "another value")
    if resume is not None and not isinstance(resume, Final):
        raise ArgumentError("resume", "the `final` of a run", arguments.describe(resume))
    if resume is not None and (known := arguments.known(resume.t)) is not None:
        following = int(np.max(known[0])) + scenario.steps
        if following > MOST_STEPS:
            raise ArgumentError(
                "resume",
                f"a run that ends before step {MOST_STEPS:,}, because steps are counted in 32 bits",
                f"one that ends at step {following:,}",
            )
    if plant is None:
        _check_a_star(controller.system, scenario, start)
    arguments.instance("infer", infer, bool)
    if infer and guard is None:
        raise ArgumentError("guard", "a guard, because infer=True uses the guard's record of the last step", "None")
    problem = _SimulationProblem(controller, guard, plant or controller.system, scenario, start, limit_, infer)
    _, (ran, outcome) = run_with(
        check_engine(engine),
        natively=lambda: _simulate_natively(problem, fields, stride),
        by_xla=lambda: ("xla", _simulate_by_xla(problem, fields, stride)),
    )
    run = Run(
        *outcome,
        engine=ran,
        steps=scenario.steps,
        stride=stride,
        constraint=_only_arrays(constraint_of(controller.tuner)),
        tuner_memory=controller.tuner.memory if isinstance(controller.tuner, GaussNewton) else None,
    )
    if throw and arguments.is_known(run.outcome.code):
        run.raise_if_failed()
    return run


class _SimulationProblem(NamedTuple):
    """All inputs that determine the numbers of a run."""

    controller: Controller
    guard: Guard | None
    plant: AbstractSystem
    scenario: Scenario
    start: Final | tuple[Array, PyTree, PyTree]
    """The state after an earlier run; or the first x of the model, θ and â."""
    limit: Array
    infer: bool


class _Loop(eqx.Module):
    """The values that one step passes to the next."""

    x: Array
    state: PyTree
    streams: PyTree
    left: dict[str, Array]
    """Values of the step before that are still to be checked and recorded."""


@eqx.filter_jit
def _simulate_by_xla(problem: _SimulationProblem, fields: tuple[str, ...], stride: int) -> "_Outcome":
    controller, guard, plant, scenario, start, limit, infer = problem
    # Shapes are checked here, inside the trace, so that they are checked only once per compilation.
    start = _begun(controller, guard, plant, scenario, start, infer)
    dtype = start.x.dtype
    stored, streamed = eqx.partition(scenario.sources, lambda node: not is_stream(node), is_leaf=is_stream)

    def step(loop: _Loop, t_index: Array, stored_now: PyTree, t: Any) -> tuple[_Loop, dict[str, PyTree]]:
        drawn, streams = _draw(streamed, loop.streams, t_index, dtype)
        a_star, w, v, noise = eqx.combine(stored_now, drawn)
        x_next, after, values = closed_loop_step(
            controller, guard, plant, loop.x, loop.state, a_star, w, v, t, noise, infer
        )
        left = {name: values.pop(name) for name in CHECKED}
        return _Loop(x_next, after, streams, left), {name: values[name] for name in fields if name in values}

    def contexts(t_index: Array, t: PyTree) -> Any:
        return t_index if scenario.t is None else t

    # The carry of the scan is packed into one vector, and each row into another. On a CPU, every array that a scan
    # carries or emits costs XLA one kernel, which computes its inputs again. For the same reason the values in `left`
    # are checked and recorded one step late, once they are in memory. Without either of the two, a step of the paper's
    # scalar example takes ten times as long.
    first = (start.x, start.state, start.streams)
    row_shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (stored, scenario.t))
    shapes = jax.eval_shape(lambda now, t: step(_Loop(*first, {}), start.t, now, contexts(start.t, t)), *row_shapes)
    late = [name for name in fields if name in CHECKED]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0].left)
    loop_pack = Packing(shapes[0], dtype)
    row_pack = Packing((shapes[1], {name: zeros[name] for name in late}), dtype)
    carry = (loop_pack.pack(_Loop(*first, zeros)), start.t, _OK, jnp.full((), -1, start.t.dtype))

    def health(packed: PyTree) -> Array:
        loop = loop_pack.unpack(packed)
        numbers = jax.tree.leaves((loop.x, loop.state.theta, loop.state.a_hat, loop.left))
        finite = jnp.all(jnp.isfinite(jnp.concatenate([jnp.ravel(leaf) for leaf in numbers])))
        small = jnp.all(jnp.abs(loop.x) <= limit.astype(dtype))
        return jnp.where(finite, jnp.where(small, _OK, _DIVERGED), _NON_FINITE)

    def advance(carry: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        packed, t_index, code, failed_at = carry
        stored_now, t = inputs
        code, failed_at = _first_failure(code, failed_at, health(packed), t_index)
        before = loop_pack.unpack(packed)
        loop, row = step(before, t_index, stored_now, contexts(t_index, t))
        row = row_pack.pack((row, {name: before.left[name] for name in late}))
        return (loop_pack.pack(loop), t_index + 1, code, failed_at), row

    def latest(carry: PyTree) -> dict[str, Array]:
        left = loop_pack.unpack(carry[0]).left
        return {name: left[name] for name in late}

    def keep(carry: PyTree, row: PyTree) -> PyTree:
        """Return the row with the late values of this step in place of those of the step before."""
        return row_pack.pack((row_pack.unpack(row)[0], latest(carry)))

    carry, rows = _scan(advance, keep, carry, (stored, scenario.t), scenario.steps, stride if fields else 1)
    now, left = row_pack.unpack(rows)
    if stride == 1 and scenario.steps > 0:
        left = jax.tree.map(lambda rows, last: jnp.concatenate([rows[1:], last[None]]), left, latest(carry))
    packed, t_index, code, failed_at = carry
    code, failed_at = _first_failure(code, failed_at, health(packed), t_index)
    loop = loop_pack.unpack(packed)
    final = Final(loop.x, loop.state, t_index, loop.streams)
    return now | left, final, Result(code, failed_at)


def _only_arrays(tree: PyTree) -> PyTree:
    return tree if all(map(eqx.is_array, jax.tree.leaves(tree))) else None


_Outcome = tuple[dict[str, PyTree], Final, Result]


def _simulate_natively(problem: _SimulationProblem, fields: tuple[str, ...], stride: int) -> tuple[str, _Outcome]:
    """Return the engine's name and its run: XLA if JAX differentiates the run, otherwise the native engine."""
    numbers, rest = eqx.partition(problem, eqx.is_array)
    if all(map(arguments.is_known, jax.tree.leaves(numbers))):
        return "native", _run_natively(problem, fields, stride)
    ran: list[str] = []

    @jax.custom_jvp
    def run(numbers):
        ran.append("native")
        return _run_natively(eqx.combine(numbers, rest), fields, stride)

    @run.defjvp
    def _(primals, tangents):
        ran.append("xla")
        return jax.jvp(lambda numbers: _simulate_by_xla(eqx.combine(numbers, rest), fields, stride), primals, tangents)

    outcome = run(numbers)
    return ran[-1], outcome


def _run_natively(problem: _SimulationProblem, fields: tuple[str, ...], stride: int) -> _Outcome:
    from ..native.loop import ClosedLoop, run_loop

    controller, guard, plant, scenario, start, limit, infer = problem
    final = _checked_start(controller, guard, plant, scenario, start, infer)
    stored, streamed = eqx.partition(scenario.sources, lambda node: not is_stream(node), is_leaf=is_stream)
    # JAX draws the streamed numbers, a block of steps at a time.
    size = scenario.steps
    if final.streams and arguments.is_known(final.x):
        size = min(size, -(-_STREAMED // stride) * stride)
    parts: list[Any] = []
    code, failed_at = jnp.asarray(np.asarray(_OK)), jnp.asarray(np.asarray(-1, np.int32))
    for begin in range(0, max(scenario.steps, 1), max(size, 1)):
        steps = min(size, scenario.steps - begin)
        rows, t = stored, scenario.t
        if steps < scenario.steps:  # a slice is a copy
            rows, t = jax.tree.map(lambda leaf, a=begin, b=begin + steps: leaf[a:b], (rows, t))
        streams = final.streams
        if streams:
            drawn, streams = _draw_rows(streamed, streams, final.t, steps, final.x.dtype)
            rows = eqx.combine(rows, drawn)
        a_star, w, v, noise = rows
        arrays = {"x": final.x, "state": final.state, "step": final.t, "limit": limit.astype(final.x.dtype)}
        arrays |= {"a_star": a_star, "w": w, "v": v, "noise": noise, "t": t}
        done = run_loop(ClosedLoop(fields, infer), (controller, guard, plant), arrays, steps, stride)
        parts.append(done["row"])
        code, failed_at = _first_of(code, failed_at, done["code"], done["failed_at"])
        final = Final(done["x"], done["state"], _plus(final.t, steps), streams)
    recorded = parts[0] if len(parts) == 1 else jax.tree.map(lambda *rows: jnp.concatenate(rows), *parts)
    return recorded, final, Result(code, failed_at)


# JAX compiles even an addition of two numbers when a process does it for the first time, so known numbers are NumPy's.
def _first_of(code: Any, failed_at: Any, now: Any, now_at: Any) -> tuple[Array, Array]:
    """Return the code and the step of the first failure: the earlier ones, or those of now."""
    known = arguments.known(code, failed_at, now, now_at)
    if known is None:
        is_ok = code == _OK
        return jnp.where(is_ok, now, code), jnp.where(is_ok, now_at, failed_at)
    code, failed_at, now, now_at = known
    is_ok = code == _OK
    return jnp.asarray(np.where(is_ok, now, code)), jnp.asarray(np.where(is_ok, now_at, failed_at))


def _plus(t: Array, steps: int) -> Array:
    known = arguments.known(t)
    return t + steps if known is None else jnp.asarray(np.asarray(known[0] + steps, known[0].dtype))


_STREAMED = 1 << 16


@small_program
def _checked_start(
    controller: Controller, guard: Guard | None, plant: AbstractSystem, scenario: Scenario, start: Any, infer: bool
) -> Final:
    return _begun(controller, guard, plant, scenario, start, infer)


@eqx.filter_jit
def _draw_rows(streamed: PyTree, states: PyTree, first: Array, steps: int, dtype: Any) -> tuple[PyTree, PyTree]:
    def draw(states, t):
        drawn, states = _draw(streamed, states, t, dtype)
        return states, drawn

    states, rows = jax.lax.scan(draw, states, first + jnp.arange(steps, dtype=first.dtype))
    return rows, states


_OK, _DIVERGED, _NON_FINITE = (np.int32(code) for code in (Result.OK, Result.DIVERGED, Result.NON_FINITE))


def _first_failure(code: Array, failed_at: Array, now: Array, t_index: Array) -> tuple[Array, Array]:
    fails = (code == _OK) & (now != _OK)
    return jnp.where(fails, now, code), jnp.where(fails, jnp.maximum(t_index - 1, 0), failed_at)


def _scan(
    advance: Callable, keep: Callable, carry: PyTree, inputs: PyTree, steps: int, stride: int
) -> tuple[PyTree, PyTree]:
    """Run `lax.scan`; with a stride > 1, return `keep` of the rows of steps 0, stride, 2·stride, …"""
    if steps == 1:
        # XLA compiles a loop of one step to different code, which may round differently: run two steps, keep the first.
        twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), inputs)

        def turn(carry, inputs):
            carry, row = advance(carry, inputs)
            return carry, (carry, row)

        _, (carries, rows) = jax.lax.scan(turn, carry, twice, length=2)
        carry = jax.tree.map(lambda leaf: leaf[0], carries)
        rows = jax.tree.map(lambda leaf: leaf[:1], rows)
        return carry, rows if stride == 1 else jax.vmap(keep, in_axes=(None, 0))(carry, rows)
    if stride == 1:
        return jax.lax.scan(advance, carry, inputs, length=steps)

    def block(carry, inputs, size):
        carry, row = advance(carry, jax.tree.map(lambda leaf: leaf[0], inputs))
        row = keep(carry, row)
        skip = jax.tree.map(lambda leaf: leaf[1:], inputs)
        carry, _ = jax.lax.scan(lambda c, i: (advance(c, i)[0], None), carry, skip, length=size - 1)
        return carry, row

    whole = steps // stride
    head = jax.tree.map(lambda leaf: leaf[: whole * stride].reshape(whole, stride, *leaf.shape[1:]), inputs)
    carry, rows = jax.lax.scan(lambda c, i: block(c, i, stride), carry, head, length=whole)
    if whole * stride == steps:
        return carry, rows
    tail = jax.tree.map(lambda leaf: leaf[whole * stride :], inputs)
    carry, last = block(carry, tail, steps - whole * stride)
    return carry, jax.tree.map(lambda rows, last: jnp.concatenate([rows, last[None]]), rows, last)


def _draw(streamed: PyTree, states: PyTree, t_index: Array, dtype: Any) -> tuple[PyTree, PyTree]:
    streams, structure = jax.tree.flatten(streamed, is_leaf=is_stream)
    drawn = [stream.next(state, t_index, dtype) for stream, state in zip(streams, states, strict=True)]
    return jax.tree.unflatten(structure, [value for value, _ in drawn]), [state for _, state in drawn]


def _first_values(
    controller: Controller, scenario: Scenario, theta: Any, a_hat: Any, x_hat: Any
) -> tuple[Array, PyTree, PyTree]:
    if theta is None:
        raise ArgumentError("theta", "the first policy parameters", "None")
    if a_hat is None and controller.estimator.is_oracle:
        a_hat = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), scenario.row_shapes().a_star)
    if a_hat is None:
        raise ArgumentError("a_hat", "the first model parameters, such as a_hat=jnp.zeros(1)", "None")
    if x_hat is not None and controller.system.measure is None:
        raise ArgumentError("x_hat", "None, because the controller sees the whole state", arguments.describe(x_hat))
    x, theta, a_hat = controller.check_values(scenario.x0 if x_hat is None else x_hat, theta, a_hat)
    return x.astype(scenario.x0.dtype), theta, a_hat


def _init(controller: Controller, guard: Guard | None, x: Array, theta: PyTree, a_hat: PyTree, t: Any) -> PyTree:
    if guard is None:
        return controller.init(x, theta=theta, a_hat=a_hat, t=t)
    return guarded_step.begin(controller, guard, x, theta, a_hat, t)


def _start(
    controller: Controller, guard: Guard | None, scenario: Scenario, x: Array, theta: PyTree, a_hat: PyTree
) -> Final:
    state = _init(controller, guard, x, theta, a_hat, scenario.row_shapes().t)
    return Final(scenario.x0, state, jnp.zeros((), jnp.int32), [stream.start(x.dtype) for stream in _streams(scenario)])


def _begun(
    controller: Controller, guard: Guard | None, plant: AbstractSystem, scenario: Scenario, start: Any, infer: bool
) -> Final:
    """Return the state at the first step, checked against the functions and the scenario."""
    resumed = isinstance(start, Final)
    if not resumed:
        start = _start(controller, guard, scenario, *start)
    _check_shapes(controller, guard, scenario, plant, start, infer)
    if resumed:
        _check_resumed(controller, guard, scenario, start)
    return start


def _streams(scenario: Scenario) -> list[Stream]:
    return [leaf for leaf in jax.tree.leaves(scenario.sources, is_leaf=is_stream) if is_stream(leaf)]


def _check_shapes(
    controller: Controller, guard: Guard | None, scenario: Scenario, plant: AbstractSystem, start: Final, infer: bool
) -> None:
    a_star, _, v, t, noise = scenario.row_shapes()
    model, state = controller.system, start.state
    model_x = state.predicted if isinstance(state, guarded_step.GuardedState) else start.x
    sizes = model.check(model_x, state.theta, state.a_hat, t)
    u = jax.ShapeDtypeStruct((sizes.m,), start.x.dtype)
    try:
        plant.check_plant(start.x, a_star, t, u=u, k=None if infer else sizes.k)
    except ValueError as error:
        raise ValueError(f"plant (or the model in its place), with the scenario's a_star: {error}") from error
    if v is not None and getattr(v, "shape", None) != (sizes.k,):
        raise ArgumentError("v", f"rows of shape ({sizes.k},), that of the residual", arguments.describe_tree(v))
    measured = jax.eval_shape(model.measurement if plant.measure is None else plant.measurement, start.x, t)
    if measured.shape != (sizes.q,):
        raise ArgumentError("plant", f"a measure of {sizes.q} numbers, as the model has", arguments.describe(measured))
    if noise is not None and getattr(noise, "shape", None) != (sizes.q,):
        expected = f"rows of shape ({sizes.q},), that of the measurement"
        raise ArgumentError("measurement_noise", expected, arguments.describe_tree(noise))
    if controller.estimator.is_oracle:
        given, expected = _shapes(a_star), _shapes(state.a_hat)
        if given != expected:
            raise ArgumentError("a_star", f"rows like a_hat, {expected}, as the oracle reveals them", f"{given}")


def _check_resumed(controller: Controller, guard: Guard | None, scenario: Scenario, start: Final) -> None:
    state = start.state
    model_x = state.predicted if isinstance(state, guarded_step.GuardedState) else start.x
    t = scenario.row_shapes().t
    fresh = eqx.filter_eval_shape(_init, controller, guard, model_x, state.theta, state.a_hat, t)
    if jax.tree.structure(fresh) != jax.tree.structure(state) or _shapes(fresh) != _shapes(state):
        raise ArgumentError(
            "resume", "the `final` of a run with this kind of controller and guard", "one of another kind"
        )
    if len(start.streams) != len(_streams(scenario)):
        raise ArgumentError(
            "resume", f"{len(_streams(scenario))} streams, as the scenario has", f"{len(start.streams)}"
        )


def _check_a_star(model: AbstractSystem, scenario: Scenario, start: Final | tuple[Array, PyTree, PyTree]) -> None:
    """Without a plant of its own, the scenario's parameters are those of the model. A row with more numbers than â may
    still fit the functions, which would then not read all of them."""
    row = scenario.row_shapes()
    x, theta, a_hat = (start.x, start.state.theta, start.state.a_hat) if isinstance(start, Final) else start
    given, expected = _shapes(row.a_star), jax.tree.map(jnp.shape, a_hat)
    if given == expected:
        return
    if not isinstance(start, Final):
        model.check(x, theta, a_hat, row.t)  # the mistake may be that of â, which this call then names
    raise ArgumentError(
        "a_star",
        f"rows like a_hat, {expected}, because the plant is the model",
        f"{given}",
        "if the plant has other parameters than the model, give the plant: simulate(..., plant=...)",
    )


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def check_record(record: Sequence[str]) -> tuple[str, ...]:
    if isinstance(record, str):
        record = (record,)
    if not isinstance(record, Sequence):
        raise ArgumentError("record", f"names from {', '.join(FIELDS)}", arguments.describe(record))
    for name in record:
        if name not in FIELDS:
            hint = suggestions.nearest(str(name), FIELDS)
            raise ArgumentError("record", f"names from {', '.join(FIELDS)}", f"{name!r}{hint}")
    return tuple(name for name in FIELDS if name in record)

"""`GaussNewton`, which has no learning rate, against the best fixed learning rate of each problem and start.

python -m benchmarks.no_knobs --seeds 4            every problem, from every start
python -m benchmarks.no_knobs --rivals             other methods without a learning rate, or with a usual one
python -m benchmarks.no_knobs --variants           the same problems with other units, sampling rates and boxes
python -m benchmarks.no_knobs --guard own          all tuners with the guard of the robot; default settings elsewhere
python -m benchmarks.no_knobs --guard default      all tuners with a guard of default settings
python -m benchmarks.no_knobs --loops              the PID loops of `selftune bench loops`, with the guard of `Loop`
python -m benchmarks.no_knobs --robots             the robots in MuJoCo, with `AutoEstimator`, against M-GAPS + EST
python -m benchmarks.no_knobs --falls              how often a pole on a cart falls in the first 30 seconds
python -m benchmarks.no_knobs --speed              the time of a step, and its cost in firmware

The reference of a problem and a start is `MGAPS` with the learning rate of a half-decade grid that has the lowest total
cost over all seeds. The model itself is the plant. Without `--guard`, there is no guard.
"""

import argparse
import dataclasses
import itertools
import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune.cli.example import cart as cart_example
from selftune.experiments.loops import batches, cases
from selftune.experiments.robots import run as robots
from selftune.native.c import footprint
from selftune.robots import arm, car, quadrotor
from selftune.robots.base import Drive, Robot, drive

from ._measure import interleaved

RATES = 10.0 ** np.arange(-6.0, 3.25, 0.5)
STARTS = (0.25, 0.5, 2.0)


@dataclass(frozen=True)
class Problem:
    """A system, its estimator and Θ, several starts, and a function `(steps, seed) -> Scenario`."""

    name: str
    system: st.AbstractSystem
    estimator: st.AbstractEstimator
    box: st.Box
    starts: dict[str, np.ndarray]
    a_hat: np.ndarray
    scenario: Callable[[int, int], st.Scenario]
    steps: int = 20_000
    cost_scale: float = 1.0
    """The factor of a variant's cost, by which its results are divided."""
    own_guard: st.Guard = field(default_factory=st.Guard)
    guard: st.Guard | None = None
    """The guard with which the problem is run."""

    def guarded(self, which: str | None) -> "Problem":
        guards = {None: None, "own": self.own_guard, "default": st.Guard()}
        return dataclasses.replace(self, guard=guards[which])


def paper(noise: str, *, dt: float = 0.01, widen: float = 1.0) -> Problem:
    """The paper's example. With another sampling period, noise and changes of a* stay the same in continuous time."""
    rate = dt / 0.01
    decay = 0.95**rate
    sigma = 0.1 * math.sqrt((1 - decay**2) / (1 - 0.95**2)) * (rate if noise == "outside" else dt)
    steps = round(100_000 / rate)

    def scenario(steps: int, seed: int) -> st.Scenario:
        ka, kw = jax.random.split(jax.random.key(seed))
        a_star = st.PiecewiseConstant(round(20_000 / rate), -0.25, 0.25)(ka, steps, 3)
        return st.Scenario(jnp.zeros(1), a_star, st.OrnsteinUhlenbeck(decay, sigma)(kw, steps, 1))

    return Problem(
        f"paper, noise {noise}",
        _paper_system(dt),
        st.GradientEstimator(0.005, constraint=st.Box(-0.25, 0.25)),
        st.Box(jnp.zeros(1), jnp.full(1, 50.0 * widen)),
        {f"θ = {gain:g}": np.array([gain]) for gain in (0.5, 1.0, 3.0, 6.0)},
        np.zeros(3),
        scenario,
        steps,
    )


@cache
def _paper_system(dt: float) -> st.System:
    return st.MatchedSystem(
        dynamics=lambda x, v, t: x + dt * v,
        residual=lambda x, a, t: jnp.stack([a[0] + a[1] * jnp.sin(x[0]) + a[2] * jnp.sin(2 * x[0])]),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )


def cart(*, dt: float = 0.02, widen: float = 1.0) -> Problem:
    """The example of `selftune new`."""
    rate = dt / 0.02
    decay = 0.9**rate
    sigma = 0.01 * rate * math.sqrt((1 - decay**2) / (1 - 0.9**2))

    def scenario(steps: int, seed: int) -> st.Scenario:
        ka, kw, kv = jax.random.split(jax.random.key(seed), 3)
        return st.Scenario(
            jnp.array([1.0, 0.0]),
            st.PiecewiseConstant(round(4_000 / rate), -1.0, 1.0)(ka, steps, 2),
            st.OrnsteinUhlenbeck(decay, sigma=[0.0, sigma])(kw, steps, 2),
            st.Gaussian(0.05)(kv, steps, 1),
        )

    return Problem(
        "cart",
        _cart_system(dt),
        st.GradientEstimator(0.05, constraint=st.Box(-2.0, 2.0)),
        st.Box([0.5, 0.5], [20.0 * widen] * 2),
        {_times(factor): np.maximum(0.5, factor * np.array([2.0, 3.0])) for factor in STARTS},
        np.zeros(2),
        scenario,
        round(20_000 / rate),
    )


_cart_system = cache(cart_example.make)


@cache
def _pendulum_system(dt: float) -> st.System:
    """An inverted pendulum (angle from upright, rate), with gravity that the controller does not cancel."""
    weight, limit = 5.0, 25.0

    def dynamics(x, v, t):
        rate = x[1] + dt * (weight * jnp.sin(x[0]) - 0.1 * x[1] + limit * jnp.tanh(v[0] / limit))
        return jnp.stack([x[0] + dt * rate, rate])

    return st.MatchedSystem(
        dynamics,
        residual=lambda x, a, t: jnp.stack([a[0] - a[1] * jnp.tanh(10 * x[1])]),
        actuation=lambda x, theta, t: -jnp.sum(theta * x)[None],
        cost=lambda x, u, theta, t: 100 * x[0] ** 2 + x[1] ** 2 + 0.2 * jnp.sum(u**2),
    )


def pendulum(*, dt: float = 0.01, widen: float = 1.0) -> Problem:
    """An inverted pendulum with unknown torques; a quarter of its gains holds it only just."""
    rate = dt / 0.01
    decay = 0.95**rate
    sigma = 0.02 * rate * math.sqrt((1 - decay**2) / (1 - 0.95**2))

    def scenario(steps: int, seed: int) -> st.Scenario:
        ka, kw, kv = jax.random.split(jax.random.key(seed), 3)
        return st.Scenario(
            jnp.array([0.1, 0.0]),
            st.PiecewiseConstant(round(4_000 / rate), [-1.0, 0.0], [1.0, 0.5])(ka, steps, 2),
            st.OrnsteinUhlenbeck(decay, sigma=[0.0, sigma])(kw, steps, 2),
            st.Gaussian(0.1)(kv, steps, 1),
        )

    return Problem(
        "pendulum",
        _pendulum_system(dt),
        st.GradientEstimator(0.05, constraint=st.Box(-2.0, 2.0)),
        st.Box([0.0, 0.0], [100.0 * widen, 20.0 * widen]),
        {_times(factor): factor * np.array([24.0, 5.0]) for factor in STARTS},
        np.zeros(2),
        scenario,
        round(20_000 / rate),
    )


def cart_pole(*, dt: float = 0.02, widen: float = 1.0) -> Problem:
    """A pole on a cart with strong noise. The start gains are the LQR gains for a 100 times larger cost of u: they hold
    the pole in every run, and are close to gains that do not."""
    cart_mass, mass, length, gravity, friction = 1.0, 0.1, 0.5, 9.81, 0.1
    total = cart_mass + mass

    def rates(x: jax.Array, force: jax.Array) -> jax.Array:
        s, c = jnp.sin(x[2]), jnp.cos(x[2])
        push = (force - friction * x[1] + mass * length * x[3] ** 2 * s) / total
        angular = (gravity * s - c * push) / (length * (4 / 3 - mass * c**2 / total))
        return jnp.stack([x[1], push - mass * length * angular * c / total, x[3], angular])

    def dynamics(x, u, f, t):
        middle = x + dt / 2 * rates(x, u[0] + f[0])
        return x + dt * rates(middle, u[0] + f[0])

    def scenario(steps: int, seed: Any) -> st.Scenario:
        w = st.Gaussian(1.0)(jax.random.key(seed), steps, 4) * jnp.array([0.0, 0.5, 0.0, 0.5]) * math.sqrt(dt)
        return st.Scenario(jnp.array([0.2, 0.0, 0.05, 0.0]), jnp.zeros((steps, 1)), w)

    system = st.System(
        dynamics,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -(theta @ x)[None] - f,
        cost=lambda x, u, theta, t: x @ (jnp.array([1.0, 0.1, 10.0, 0.1]) * x) + 0.01 * u[0] ** 2,
    )
    high = widen * np.array([40.0, 40.0, 90.0, 40.0])
    start = np.array([-0.911, -1.973, -29.19, -7.389])
    steps = round(30 / dt)
    name = "cart-pole" if widen == 1 else f"cart-pole, Θ × {widen:g}"
    return Problem(name, system, st.Frozen(), st.Box(-high, high), {"": start}, np.zeros(1), scenario, steps)


LOOP_MEMORY = 74
"""The time constant of `cart_pole` with its start gains, in steps."""


def largest_angle(problem: Problem, tuner: st.AbstractTuner, seed: Any, guard: st.Guard | None = None) -> jax.Array:
    """Return the largest angle of `cart_pole` in a run, in rad; infinity if the run fails."""
    controller = st.Controller(problem.system, tuner, problem.estimator)
    start: dict[str, Any] = dict(theta=jnp.asarray(problem.starts[""]), a_hat=jnp.asarray(problem.a_hat))
    run = st.simulate(controller, problem.scenario(problem.steps, seed), **start, record=("x",), guard=guard)
    return jnp.where(run.outcome.code == 0, jnp.abs(run.x[:, 2]).max(), jnp.inf)


def falls(seeds: list[int]) -> None:
    """Print how many runs of `cart_pole` fall: an angle above 1 rad."""
    limited = st.Guard(rate=0.1 / (5 * LOOP_MEMORY), burst=0.1)
    cases: dict[str, tuple[int | None, st.Guard | None]] = {
        "default": (None, None),
        "default, Guard()": (None, st.Guard()),
    }
    cases["10 % of Θ in 5 time constants"] = (None, limited)
    cases |= {f"rest={rest}": (rest, None) for rest in (100, 200, 370, 740, 1000)}
    cases["rest=740, Guard()"] = (740, st.Guard())
    print(f"{'runs that fall, of':32} {len(seeds):6d} {len(seeds):6d}\n{'box':32} {'× 1':>6} {'× 10':>6}")
    problems = [cart_pole(), cart_pole(widen=10.0)]

    def count(problem: Problem, make: Callable[[st.Box], st.AbstractTuner], guard: st.Guard | None) -> int:
        angles = jax.jit(jax.vmap(lambda seed: largest_angle(problem, make(problem.box), seed, guard)))
        return int(np.sum(np.asarray(angles(jnp.asarray(seeds))) > 1))

    held = [count(problem, lambda box: st.Fixed(), None) for problem in problems]
    print(f"{'start gains held fixed':32} {held[0]:6d} {held[1]:6d}", flush=True)
    for name, (rest, guard) in cases.items():
        fallen = [count(problem, partial(_resting, rest), guard) for problem in problems]
        print(f"{name:32} {fallen[0]:6d} {fallen[1]:6d}", flush=True)


def _resting(rest: int | None, box: st.Box) -> st.GaussNewton:
    return st.GaussNewton(constraint=box, rest=rest)


def of_robot(robot: Robot, *, widen: float = 1.0) -> Problem:
    """A robot of `selftune.robots`, with its estimator, and with its own model as the plant."""
    low, high = (np.asarray(bound) for bound in (robot.theta_box.low, robot.theta_box.high))
    more = (widen - 1) * (high - low) / 2
    return Problem(
        robot.name,
        robot.system,
        robot.controller().estimator,
        st.Box(low - more, high + more),
        {_times(factor): robot.detuned(factor) for factor in STARTS},
        robot.a_hat,
        lambda steps, seed: robot.make_scenario(steps, jax.random.key(seed)).materialize(),
        own_guard=st.Guard(**robot.guard),
    )


def _times(factor: float) -> str:
    return f"{ {0.25: '¼', 0.5: '½'}.get(factor, f'{factor:g}') } × gains"


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "paper-outside": lambda: paper("outside"),
    "paper-inside": lambda: paper("inside"),
    "cart": cart,
    "pendulum": pendulum,
    "arm": lambda: of_robot(arm.make()),
    "car": lambda: of_robot(car.make()),
    "quadrotor": lambda: of_robot(quadrotor.make()),
}


class Scores(dict[str, np.ndarray]):
    """`total` and `last`, the mean cost of the run and of its last quarter, and `failed`; the last axis has a seed."""


def measure(problem: Problem, theta: np.ndarray, tuner: st.AbstractTuner, seeds: list[int]) -> Scores:
    """Run one tuner on all seeds; each array of numbers in `learning_rate` adds a first axis."""
    scenarios = jax.tree.map(lambda *rows: jnp.stack(rows), *(problem.scenario(problem.steps, seed) for seed in seeds))
    numbers, rest = _partition(tuner)

    @jax.jit
    def run(numbers: Any, scenarios: st.Scenario) -> dict[str, jax.Array]:
        def one(numbers: Any, scenario: st.Scenario) -> dict[str, jax.Array]:
            controller = st.Controller(problem.system, rest(numbers), problem.estimator)
            start: dict[str, Any] = dict(theta=jnp.asarray(theta), a_hat=jnp.asarray(problem.a_hat))
            done = st.simulate(controller, scenario, **start, record=("cost",), guard=problem.guard)
            failed = done.outcome.code != 0
            cost = jnp.where(failed, jnp.inf, done.cost) / problem.cost_scale
            return {"total": cost.mean(), "last": cost[-len(cost) // 4 :].mean(), "failed": failed}

        over_seeds = jax.vmap(one, in_axes=(None, 0))
        return (
            over_seeds(numbers, scenarios) if numbers is None else jax.vmap(over_seeds, (0, None))(numbers, scenarios)
        )

    return Scores({name: np.asarray(value) for name, value in run(numbers, scenarios).items()})


def _partition(tuner: Any) -> tuple[Any, Callable[[Any], st.AbstractTuner]]:
    """Return the rates of a grid of `MGAPS`, or None; and the tuner as a function of one of them."""
    if isinstance(tuner, tuple):
        rates, make = tuner
        return jnp.asarray(rates), make
    return None, lambda _: tuner


def grid(problem: Problem, theta: np.ndarray, seeds: list[int]) -> Scores:
    """The scores of `MGAPS` with every learning rate of the grid, one row a rate."""
    rates_and_maker: Any = RATES, lambda rate: st.MGAPS(rate, constraint=problem.box)
    return measure(problem, theta, rates_and_maker, seeds)


def box_widths(problem: Problem) -> jax.Array:
    low, high = problem.box.bounds(jnp.asarray(next(iter(problem.starts.values()))))
    return high - low


def adagrad_norm(widths: jax.Array, factor: float = 0.1) -> optax.GradientTransformation:
    """AdaGrad-norm in the units of the box: θ ← θ − factor · D · W² G / √(Σ |W G|²), with D = √d, its diameter."""

    def init(params: Any) -> jax.Array:
        return jnp.zeros((), params.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        g = widths * updates
        total = state + jnp.sum(g * g)
        length = factor * math.sqrt(widths.size) / jnp.sqrt(jnp.maximum(total, 1e-30))
        return -length * widths * g, total

    return optax.GradientTransformation(init, update)


def ensemble(widths: jax.Array, rates: np.ndarray) -> optax.GradientTransformation:
    """Several learning rates at once (Ader: Zhang, Lu and Zhou 2018, with linear surrogate losses).

    Each expert keeps its own θ and steps along the same gradient, at its own rate, in units of the box. θ is the mean
    of the experts. Their weights are exponential in the sums of ⟨g, θ of the expert⟩, divided by √Σ|g|².
    """

    def init(params: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        zero = jnp.zeros((), params.dtype)
        return jnp.zeros((rates.size, params.size), params.dtype), jnp.zeros(rates.size, params.dtype), zero

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        offsets, losses, total = state  # offsets: each expert's θ minus the θ that was used, in box units
        g = widths * updates
        total = total + jnp.sum(g * g)
        scale = jax.lax.rsqrt(jnp.maximum(total, 1e-30))
        losses = losses + offsets @ g
        moved = jnp.clip(offsets - scale * jnp.asarray(rates, g.dtype)[:, None] * g, -1, 1)
        step = jax.nn.softmax(-scale * losses) @ moved
        return widths * step, (moved - step, losses, total)

    return optax.GradientTransformation(init, update)


def rivals(problem: Problem) -> dict[str, Any]:
    """Methods that need no learning rate, or have a usual one, as optax transformations."""
    return {
        "ensemble of 5 rates": ensemble(box_widths(problem), 10.0 ** np.arange(-3.0, 1.5)),
        "AdaGrad-norm, 0.1 × box": adagrad_norm(box_widths(problem)),
        "dog": optax.contrib.dog(),
        "dowg": optax.contrib.dowg(),
        "cocob": optax.contrib.cocob(),
        "prodigy": optax.contrib.prodigy(),
        "dadapt_adamw": optax.contrib.dadapt_adamw(),
        "mechanize(sgd)": optax.contrib.mechanize(optax.sgd(1.0), weight_decay=0.0),
        "schedule_free(sgd 1e-3)": optax.contrib.schedule_free(optax.sgd(1e-3), 1e-3),
        "adam 1e-3": optax.adam(1e-3),
        "rmsprop 1e-3": optax.rmsprop(1e-3),
    }


def rescaled(problem: Problem, cost: float = 1.0, theta: float = 1.0) -> Problem:
    """The same problem with another unit of cost and of θ."""
    system = problem.system
    return dataclasses.replace(
        problem,
        system=st.System(
            system.dynamics,
            system.residual,
            lambda x, th, f, t: system.policy(x, th / theta, f, t),
            lambda x, u, th, t: cost * system.cost(x, u, th / theta, t),
        ),
        box=st.Box(theta * problem.box.low, theta * problem.box.high),
        starts={name: theta * start for name, start in problem.starts.items()},
        cost_scale=cost,
    )


def variants(name: str) -> Iterator[tuple[str, Problem, bool]]:
    """Variants of a problem: a title, the problem, and whether its best learning rate must be searched anew."""
    base = PROBLEMS[name]()
    for factor in (1e-6, 1e6):
        yield f"cost × {factor:g}", rescaled(base, cost=factor), False
    for factor in (1e-2, 1e2):
        yield f"θ × {factor:g}", rescaled(base, theta=factor), False
    made: dict[str, Callable[..., Problem]] = {
        "paper-outside": lambda **changes: paper("outside", **changes),
        "paper-inside": lambda **changes: paper("inside", **changes),
        "cart": cart,
        "pendulum": pendulum,
    }
    if name in made:
        period = {"cart": 0.02}.get(name, 0.01)
        yield "sampling × 4", made[name](dt=period / 4), True
        yield "sampling × ¼", made[name](dt=period * 4), True
        yield "box × 4", made[name](widen=4.0), True
    else:
        yield "box × 4", of_robot({"arm": arm, "car": car, "quadrotor": quadrotor}[name].make(), widen=4.0), True


def best_of(scores: Scores) -> int:
    """The row of a grid with the lowest total over all seeds; failed runs are infinite."""
    return int(np.argmin(scores["total"].mean(axis=1)))


HEADER = (
    f"{'problem':24} {'start':12} {'tuner':26} {'rate':>8} {'total':>10} {'ratio':>7} {'last':>7} {'last*':>7} failed"
)


def report(problem: str, start: str, reference: Scores, results: dict[str, Scores]) -> None:
    """Print the ratios to the best rate: total, last quarter, and last quarter over the lowest one of any rate."""
    best = best_of(reference)
    total, last = (reference[name][best].mean() for name in ("total", "last"))
    lowest = reference["last"].mean(axis=1).min()
    print(
        f"{problem:24} {start:12} {'best MGAPS':26} {RATES[best]:8.1e} {total:10.4g} {'':7} {'':7} "
        f"{last / lowest:7.3f} {reference['failed'][best].sum():3d}"
    )
    for name, scores in results.items():
        ok = ~scores["failed"]
        # The mean over the seeds that did not fail, against the reference on the same seeds.
        with np.errstate(invalid="ignore"):
            ratio = scores["total"][ok].mean() / reference["total"][best][ok].mean() if ok.any() else np.inf
            late = scores["last"][ok].mean() / reference["last"][best][ok].mean() if ok.any() else np.inf
            latest = scores["last"][ok].mean() / lowest if ok.any() else np.inf
        print(
            f"{problem:24} {start:12} {name:26} {'':8} {scores['total'][ok].mean() if ok.any() else np.inf:10.4g} "
            f"{ratio:7.3f} {late:7.3f} {latest:7.3f} {(~ok).sum():3d}{' !' * bool(ratio > 1.2 or late > 1.05)}",
            flush=True,
        )


def compare(
    problem: Problem,
    seeds: list[int],
    *,
    with_rivals: bool = False,
    with_fixed: bool = False,
    reference: dict[str, Scores] | None = None,
    rest: int | None = None,
) -> dict[str, Scores]:
    """Print the table of one problem, and return the reference of each start."""
    references = reference or {}
    for start, theta in problem.starts.items():
        if start not in references:
            references[start] = grid(problem, theta, seeds)
        tuners: dict[str, st.AbstractTuner] = {"start gains held fixed": st.Fixed()} if with_fixed else {}
        tuners |= {"GaussNewton": _resting(rest, problem.box)}
        if with_rivals:
            tuners |= {name: st.MGAPS(rule, constraint=problem.box) for name, rule in rivals(problem).items()}
        report(
            problem.name,
            start,
            references[start],
            {name: measure(problem, theta, tuner, seeds) for name, tuner in tuners.items()},
        )
    return references


def compare_loops(seeds: list[int], periods: int = 60) -> None:
    """Print the table of the PID loops: the model as the plant, the guard of `Loop`, and every start."""
    for name in cases.LOOPS:
        case = cases.load(name)
        length = round(periods * case.reference.period(case.model.dt))
        batch = batches.Batch(case, "exact", length, np.asarray(seeds))
        given = {start: case.loop(gains) for start, gains in case.starts.items()}
        first = np.stack([batches.flat(loop.back_off(gain_margin=2.0)) for loop in given.values()])
        bounds = zip(*(loop.constraint.bounds(loop.theta) for loop in given.values()), strict=True)
        low, high = (np.stack(bound) for bound in bounds)
        newton = loop_runs(batch, lambda tuner, box, _: eqx.tree_at(lambda t: t.constraint, tuner, box))
        mgaps = loop_runs(batch, lambda tuner, box, rate: st.MGAPS(rate, constraint=box))
        ours = jax.tree.map(np.asarray, newton(batch.scenarios, 0.0, first, low, high))
        grid = jax.tree.map(
            lambda *rows: np.stack(rows), *(mgaps(batch.scenarios, rate, first, low, high) for rate in RATES)
        )
        for i, start in enumerate(given):
            reference = Scores({key: value[..., i] for key, value in grid.items()})
            report(name, start, reference, {"GaussNewton": Scores({key: value[..., i] for key, value in ours.items()})})


def loop_runs(batch: batches.Batch, make_tuner: Callable[..., st.AbstractTuner]) -> Callable[..., Any]:
    """Return a compiled function of (scenarios, rate, θ, low, high) to scores with the axes (seed, start).

    `make_tuner(tuner, box, rate)` gets the loop's own tuner.
    """
    unravel = ravel_pytree(batch.loop.theta)[1]

    def one(scenario: Any, rate: Any, theta: jax.Array, low: jax.Array, high: jax.Array) -> dict[str, jax.Array]:
        controller = batch.loop.controller(tuner=make_tuner(batch.tuner, st.Box(unravel(low), unravel(high)), rate))
        options: dict[str, Any] = dict(plant=batch.plant, guard=batch.guard, record=("cost",), throw=False)
        run = batch.loop.simulate(scenario=scenario, controller=controller, theta=unravel(theta), **options)
        failed = run.outcome.code != 0
        cost = jnp.where(failed, jnp.inf, run.cost)
        return {"total": cost.mean(), "last": cost[-len(cost) // 4 :].mean(), "failed": failed}

    over_starts = jax.vmap(one, in_axes=(None, None, 0, 0, 0))
    return jax.jit(jax.vmap(over_starts, in_axes=(0, None, None, None, None)))


def compare_robots(seeds: list[int], seconds: float = 60.0) -> None:
    """Print the mean cost of a step in MuJoCo, with each robot's guard."""
    print(f"{'case':20} {'start':10} {'algorithm':14} {'whole':>8} {'last quarter':>12} {'crashes':>8}")
    for case in robots.cases(robots.ROBOTS):
        name, condition = case.split()
        robot = robots.load(name)
        steps, first = round(seconds / robot.dt), robot.make_plant(condition, 0, 2).reset()
        # θ are logarithms of gains.
        tuner = st.GaussNewton(constraint=robot.theta_box, keep_signs=False)
        without_numbers = tuner, st.AutoEstimator(constraint=robot.a_box)
        start: dict[str, Any] = dict(theta=robot.theta, a_hat=robot.a_hat, guard=st.Guard(**robot.guard))
        parts = {robots.OURS: (), robots.DEFAULTS: without_numbers}
        agents = {name: st.Agent(robot.controller(*made), x=first, **start) for name, made in parts.items()}
        for factor, (algorithm, agent) in itertools.product(STARTS, agents.items()):
            runs = [drive_once(robot, agent, condition, factor, seed, steps) for seed in seeds]
            whole = [made.cost for made in runs if not made.crashed]
            mean, last = (np.mean([cost[part:].mean() for cost in whole]) for part in (0, -steps // 4))
            crashes = len(runs) - len(whole)
            print(f"{case:20} {_times(factor):10} {algorithm:14} {mean:8.4f} {last:12.4f} {crashes:8d}", flush=True)


def drive_once(robot: Robot, agent: st.Agent, condition: str, factor: float, seed: int, steps: int) -> Drive:
    plant = robot.make_plant(condition, seed, steps)
    agent.reset(x=plant.reset(), theta=robot.detuned(factor), a_hat=robot.a_hat)
    return drive(robot, agent, plant, steps, stride=max(1, steps // 300))


def state_feedback() -> Problem:
    """A chain of 7 states with 2 inputs and a matrix of 14 gains, to measure the time of a step."""
    A = 0.9 * np.eye(7) + 0.08 * np.eye(7, k=1)
    B = np.zeros((7, 2))
    B[6, 0] = B[3, 1] = 0.1

    def scenario(steps: int, seed: int) -> st.Scenario:
        w = st.Gaussian(0.1)(jax.random.key(seed), steps, 7)
        return st.Scenario(jnp.zeros(7), jnp.zeros((steps, 2)), w)

    system = st.MatchedSystem(
        dynamics=lambda x, v, t: jnp.asarray(A, x.dtype) @ x + jnp.asarray(B, x.dtype) @ v,
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: -theta.reshape(2, 7) @ x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    box = st.Box(np.full(14, -1.0), np.full(14, 1.0))
    estimator = st.GradientEstimator(0.05, constraint=st.Box(-1.0, 1.0))
    return Problem("14 gains", system, estimator, box, {"0": np.zeros(14)}, np.zeros(2), scenario)


def seven_joints() -> Problem:
    """A planar arm of 7 joints with computed torque: angles, rates and torques of 7 motors (n = 21), and the natural
    frequency and the damping ratio of each joint (d = 14). Its torques are unknown. To measure the time of a step."""
    dt, lag, joints = 0.004, 0.016, 7
    ones = (1.0,) * joints
    links = arm.Arm(
        masses=(1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.3),
        lengths=(0.3, 0.3, 0.25, 0.25, 0.2, 0.15, 0.1),
        rotors=(0.4, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1),
        limits=(120.0, 90.0, 60.0, 40.0, 20.0, 10.0, 5.0),
        centre=ones,
        size=ones,
        turns=(1,) * joints,
    )
    limits = np.array(links.limits)
    policy = st.policies.ComputedTorque(
        partial(arm.torques, links.own), joints, frequency=25.0, damping=1.0, u_max=limits
    )

    def dynamics(x, u, f, t):
        q, rate, torque = jnp.split(x, 3)
        next_torque = torque + (1 - math.exp(-dt / lag)) * (u - torque)
        next_rate = rate + dt * arm.accelerations(links.own, q, rate, next_torque + f)
        return jnp.concatenate([q + dt * next_rate, next_rate, next_torque])

    def control(x, theta, f, t):
        frequency, damping = jnp.split(theta, 2)
        inputs = st.policies.Inputs(x[:joints], jnp.zeros(3 * joints, x.dtype), x, f, jnp.asarray(dt, x.dtype), t)
        return policy(inputs, None, {"log_damping": damping, "log_frequency": frequency})[0]

    def cost(x, u, theta, t):
        q, rate, torque = jnp.split(x, 3)
        return jnp.sum(
            (q / 0.025) ** 2 + (rate / 0.25) ** 2 + ((u - torque) / (0.12 * jnp.asarray(limits, x.dtype))) ** 2
        )

    def scenario(steps: int, seed: int) -> st.Scenario:
        w = st.Gaussian(np.repeat([0.0, 5e-3, 0.0], joints))(jax.random.key(seed), steps, 3 * joints)
        return st.Scenario(jnp.zeros(3 * joints), jnp.zeros((steps, joints)), w)

    return Problem(
        "arm of 7 joints",
        st.System(dynamics, lambda x, a, t: a, control, cost),
        st.GradientEstimator(0.05, constraint=st.Box(-1.0, 1.0)),
        st.Box(np.log(np.repeat([4.0, 0.5], joints)), np.log(np.repeat([40.0, 1.5], joints))),
        {"½": np.log(np.repeat([12.5, 0.7], joints))},
        np.zeros(joints),
        scenario,
    )


def speed() -> None:
    """Print the time of a step of the native simulation, with `MGAPS` and with `GaussNewton`."""
    print(f"\n{'native simulation':22} {'d':>3} {'MGAPS, ns':>10} {'GaussNewton, ns':>16} {'ratio':>6}")
    for make in (*(PROBLEMS[name] for name in ("cart", "arm", "car", "quadrotor")), seven_joints, state_feedback):
        problem = make()
        theta = next(iter(problem.starts.values()))
        scenario = problem.scenario(10_000, 0)

        def run(tuner: st.AbstractTuner, problem=problem, theta=theta, scenario=scenario) -> None:
            controller = st.Controller(problem.system, tuner, problem.estimator)
            start: dict[str, Any] = dict(theta=jnp.asarray(theta), a_hat=jnp.asarray(problem.a_hat))
            st.simulate(controller, scenario, **start, record=(), throw=False, engine="native")

        tuners = {
            "MGAPS": st.MGAPS(1e-6, constraint=problem.box),
            "GaussNewton": st.GaussNewton(constraint=problem.box),
        }
        seconds = interleaved({name: partial(run, tuner) for name, tuner in tuners.items()}, rounds=15)
        mgaps, newton = (1e9 * min(seconds[name]) / len(scenario) for name in tuners)
        print(f"{problem.name:22} {theta.size:3d} {mgaps:10.0f} {newton:16.0f} {newton / mgaps:6.2f}", flush=True)


def firmware() -> None:
    """Print the flash and the operations of one step (`act` and `observe`) of exported C, in float32."""
    print(f"\n{'firmware, float32':22} {'d':>3} {'tuner':12} {'flash, kB':>10} {'operations':>11} {'ratio':>6}")
    for make in (PROBLEMS["arm"], PROBLEMS["quadrotor"], seven_joints, state_feedback):
        problem, first = make(), None
        theta = next(iter(problem.starts.values()))
        for tuner in (st.MGAPS(1e-6, constraint=problem.box), st.GaussNewton(constraint=problem.box)):
            controller = st.Controller(problem.system, tuner, problem.estimator)
            x = np.asarray(problem.scenario(2, 0).x0, np.float32)
            start: dict[str, Any] = dict(theta=np.float32(theta), a_hat=np.float32(problem.a_hat))
            with tempfile.TemporaryDirectory() as folder:
                made = st.export_c(controller, Path(folder) / "out", x=x, **start)
                costs = json.loads((made / "selftune.json").read_text())["costs"]
            counts = [costs["functions"][name][kind] for name in ("act", "observe") for kind in footprint.KINDS]
            first = first or sum(counts)
            flash = (costs["flash"] or math.nan) / 1e3
            print(
                f"{problem.name:22} {theta.size:3d} {type(tuner).__name__:12} {flash:10.1f} "
                f"{sum(counts):11,d} {sum(counts) / first:6.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="the number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--starts", type=int, help="only so many starts, from the first")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument(
        "--rest", type=int, help="the setting `rest` of GaussNewton, for the problems and their variants"
    )
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--guard", choices=("own", "default"), help="run with a guard")
    parser.add_argument("--loops", action="store_true", help="only the PID loops")
    parser.add_argument("--robots", action="store_true", help="only the robots in MuJoCo")
    parser.add_argument("--falls", action="store_true", help="only the pole on a cart")
    parser.add_argument("--speed", action="store_true", help="only the time of a step")
    options = parser.parse_args()
    seeds = list(range(options.first, options.first + options.seeds))
    with jax.enable_x64(True):
        if options.speed:
            speed()
            firmware()
            return
        if options.falls:
            falls(seeds)
            return
        if options.robots:
            logging.getLogger("selftune").setLevel(logging.ERROR)  # the guards' interventions are expected here
            compare_robots(seeds)
            return
        guard = "that of the loop" if options.loops else options.guard or "none"
        print(
            f"\n{options.seeds} seeds from {options.first}, guard: {guard}; "
            "ratios to the best learning rate of each problem and start"
        )
        print(HEADER)
        if options.loops:
            compare_loops(seeds)
            return
        for name in options.problems:
            problem = PROBLEMS[name]().guarded(options.guard)
            starts = dict(itertools.islice(problem.starts.items(), options.starts))
            problem = dataclasses.replace(problem, starts=starts)
            references = compare(problem, seeds, with_rivals=options.rivals, rest=options.rest)
            if options.variants:
                for title, variant, anew in variants(name):
                    if options.guard and title != "box × 4":
                        continue  # the limits of a guard have units
                    variant = dataclasses.replace(variant.guarded(options.guard), name=f"{name}, {title}")
                    compare(variant, seeds, reference=None if anew else dict(references), rest=options.rest)


if __name__ == "__main__":
    main()

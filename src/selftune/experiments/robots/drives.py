"""One case and seed of the robots' comparison: agents, runs, their evaluation, and the best static gains."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import numpy as np

import selftune as st

from ...robots.base import Drive, Robot, drive
from ...simulation.run import Result
from ..logs import errors_alone
from .run import DEFAULTS, ESTIMATOR, FIXED, OURS, POINTS, STATIC, TUNER, Settings, load, steps

OPRF_SEED = 0
"""OPRF tries the same directions in every run, so that runs differ only in their plants, as for the other tuners."""


def fill_arrays(
    settings: Settings, name: str, robot: Robot, condition: str, seed: int, arrays: dict[str, np.ndarray]
) -> None:
    """Fill the arrays of one case and seed."""
    with errors_alone():  # the guards' interventions are expected here
        _fill_arrays(settings, name, robot, condition, seed, arrays)


def _fill_arrays(
    settings: Settings, name: str, robot: Robot, condition: str, seed: int, arrays: dict[str, np.ndarray]
) -> None:
    length = steps(settings, robot)

    def go(algorithm: str, theta: np.ndarray) -> Drive:
        return _go(settings, name, condition, algorithm, seed, theta, length)

    starts = [robot.detuned(factor) for factor in settings.starts]
    runs: dict[tuple[int, str], Drive] = {}
    for i, (factor, theta) in enumerate(zip(settings.starts, starts, strict=True)):
        for algorithm in settings.algorithms:
            if (
                algorithm != STATIC
                and settings.runs(algorithm, factor)
                and not _is_too_large(settings, robot, algorithm)
            ):
                runs[i, algorithm] = go(algorithm, theta)
    held = [runs[0, FIXED], *(runs[i, ESTIMATOR] for i in range(len(starts)))]
    level = settings.failure * next((_mean(made) for made in held if not made.crashed), math.inf)
    found = [_settled(runs[i, OURS]) for i in range(len(starts)) if judge(runs[i, OURS], length, level) == Result.OK]
    short = round(min(settings.search_seconds, settings.seconds) / robot.dt)
    theta, tried = best_static(
        settings,
        robot,
        [np.asarray(robot.theta, float), *found],
        lambda theta: _value(_go(settings, name, condition, ESTIMATOR, seed, theta, short), short),
        lambda theta: _value(go(ESTIMATOR, theta), length),
    )
    arrays["static_tried"][...] = tried
    best = go(ESTIMATOR, theta)
    for i in range(len(starts)):
        for j, algorithm in enumerate(settings.algorithms):
            made = best if algorithm == STATIC else runs.get((i, algorithm))
            if made is not None:
                _keep(settings, robot, arrays, (i, j), made, judge(made, length, level), best)
    _keep_laps(robot, arrays, runs[0, OURS], length)


def _is_too_large(settings: Settings, robot: Robot, algorithm: str) -> bool:
    size = robot.make_plant(robot.conditions[0], 0, 2).reset().size * len(robot.gains) * settings.buffer
    return algorithm == "GAPS" and size > settings.buffer_limit


def _go(
    settings: Settings, name: str, condition: str, algorithm: str, seed: int, theta: np.ndarray, length: int
) -> Drive:
    """A run of `length` steps on a new plant."""
    robot = load(name)
    agent = _agent(settings, name, algorithm, _scale(settings, name, condition) if algorithm == "OPRF" else None)
    plant = robot.make_plant(condition, seed, length)
    agent.reset(x=plant.reset(), theta=theta, a_hat=robot.a_hat)
    if isinstance(agent.controller.tuner, st.OPRF):
        # OPRF's directions depend on its key, which is compiled in, and on the number of past episodes.
        many = np.full_like(agent.state.controller.tuner.episodes, 100_000 * seed)
        agent.state = eqx.tree_at(lambda s: s.controller.tuner.episodes, agent.state, many)
    return drive(robot, agent, plant, length, stride=max(1, steps(settings, robot) // settings.rows))


@cache  # an agent takes seconds to make, and every start and seed uses it again
def _agent(settings: Settings, name: str, algorithm: str, scale: float | None) -> st.Agent:
    robot = load(name)
    tuner, estimator, episode = _parts(settings, robot, algorithm, scale)
    limits = dict(robot.guard)
    if (rate := limits.get("rate", st.Guard().rate)) is not None:
        limits["rate"] = episode * rate  # one step after H control steps may be as large as H steps together
    return st.Agent(
        robot.controller(tuner, estimator),
        x=robot.make_plant(robot.conditions[0], 0, 2).reset(),
        theta=robot.theta,
        a_hat=robot.a_hat,
        guard=st.Guard(**limits),
    )


def _parts(settings: Settings, robot: Robot, algorithm: str, scale: float | None) -> tuple[Any, Any, int]:
    """Tuner, estimator (None means the robot's own), and the number of control steps between two steps of the tuner."""
    rate, box = robot.learning_rate, robot.theta_box
    if algorithm == OURS:
        return None, None, 1
    if algorithm == DEFAULTS:
        tuner = st.GaussNewton(constraint=box, keep_signs=False)  # θ are logarithms of gains
        return tuner, st.AutoEstimator(constraint=robot.a_box), 1
    if algorithm == TUNER:
        return None, st.Frozen(), 1
    if algorithm == ESTIMATOR:
        return st.Fixed(), None, 1
    if algorithm == FIXED:
        return st.Fixed(), st.Frozen(), 1
    if algorithm == "GAPS":
        return st.GAPS(settings.buffer, rate, constraint=box), None, 1
    if scale is not None:
        episode = max(1, round(settings.oprf_episode * robot.lap))
        scaled = settings.oprf_rate / (episode * scale)
        return st.OPRF(episode, settings.oprf_radius, jax.random.key(OPRF_SEED), scaled, constraint=box), None, episode
    episode = max(1, round(float(algorithm.removeprefix("DiffTune ")) * robot.lap))
    return st.DiffTune(episode, settings.difftune_rate * rate, constraint=box), None, episode


@cache
def _scale(settings: Settings, name: str, condition: str) -> float:
    """The scale of the cost for OPRF: the mean cost of the first start's fixed gains on seed 0, to one digit."""
    robot = load(name)
    short = round(min(settings.search_seconds, settings.seconds) / robot.dt)
    made = _go(settings, name, condition, ESTIMATOR, 0, robot.detuned(settings.starts[0]), short)
    return float(f"{_mean(made):.0e}")


def best_static(
    settings: Settings,
    robot: Robot,
    candidates: list[np.ndarray],
    short: Callable[[np.ndarray], float],
    whole: Callable[[np.ndarray], float],
) -> tuple[np.ndarray, int]:
    """The gains of least cost within the search budget, and the number of gains tried; never worse than a candidate.

    COBYQA, which needs no derivatives, starts at the candidate with the least cost in short runs. Its result and all
    candidates are then compared in whole runs.
    """
    from scipy.optimize import minimize

    shape = np.shape(robot.theta)
    low, high = (np.broadcast_to(np.asarray(end, float), shape) for end in (robot.theta_box.low, robot.theta_box.high))
    tried: list[tuple[float, np.ndarray]] = [(short(theta), theta) for theta in candidates]

    def value(theta: np.ndarray) -> float:
        inside = np.clip(theta, low, high)
        tried.append((short(inside), inside))
        # The logarithm compares costs by their ratio. The cap keeps a crash finite, for COBYQA's quadratic model.
        return math.log(min(tried[-1][0], 1e3 * tried[0][0]))

    first = min(tried, key=lambda one: one[0])[1]
    if settings.search > len(first) + 1:
        minimize(
            value,
            first,
            method="COBYQA",
            bounds=list(zip(low, high, strict=True)),
            options={
                "maxfev": settings.search,
                "initial_tr_radius": settings.search_radius,
                "final_tr_radius": settings.search_radius / 50,
            },
        )
    finalists = [*candidates, min(tried, key=lambda one: one[0])[1]]
    return min(finalists, key=whole), len(tried)


def _settled(made: Drive) -> np.ndarray:
    """The mean gains in the second half of the run."""
    return made.theta[len(made.theta) // 2 :].mean(axis=0)


def _mean(made: Drive) -> float:
    return float(np.mean(made.cost))


def _value(made: Drive, length: int) -> float:
    """The mean cost for the search; infinite if the run failed."""
    total = float(np.mean(made.cost))
    return total if len(made.cost) == length and not made.crashed and math.isfinite(total) else math.inf


def judge(made: Drive, length: int, level: float) -> int:
    """The result code of a run. A high cost is also a failure: a robot may leave its path without a crash."""
    if not np.all(np.isfinite(made.cost)) or not np.all(np.isfinite(made.theta)):
        return Result.NON_FINITE
    return Result.DIVERGED if made.crashed or len(made.cost) < length or _mean(made) > level else Result.OK


def convergence_time(cost: np.ndarray, reference: np.ndarray, window: int, within: float, dt: float) -> float:
    """Seconds after which every mean of `window` costs is below `within` times the reference's; NaN if never."""
    window = min(window, len(cost))
    means = [np.convolve(one, np.full(window, 1 / window), "valid") for one in (cost, reference)]
    above = np.flatnonzero(means[0] > within * means[1])
    if above.size == 0:
        return 0.0
    return float(dt * (above[-1] + 1)) if above[-1] + 1 < means[0].size else math.nan


def _keep(
    settings: Settings,
    robot: Robot,
    arrays: dict[str, np.ndarray],
    at: tuple[int, int],
    made: Drive,
    code: int,
    best: Drive,
) -> None:
    """Store one run's numbers. The time after a crash stays NaN."""
    length = steps(settings, robot)
    driven = len(made.cost)
    edges = np.arange(settings.rows + 1) * length // settings.rows
    whole = np.flatnonzero(edges[1:] <= driven)
    arrays["result_code"][at] = code
    arrays["driven"][at] = driven * robot.dt
    sums = np.concatenate([[0.0], np.cumsum(made.cost)])
    arrays["cost"][at][whole] = (sums[edges[whole + 1]] - sums[edges[whole]]) / (edges[whole + 1] - edges[whole])
    every = edges[:-1] // max(1, length // settings.rows)
    seen = np.flatnonzero(every < len(made.theta))
    arrays["theta"][at][seen, : made.theta.shape[1]] = made.theta[every[seen]]
    arrays["a_hat"][at][seen, : made.a_hat.shape[1]] = made.a_hat[every[seen]]
    squared = np.sum(made.error**2, axis=1)
    arrays["mean_cost"][at], arrays["rmse"][at] = np.mean(made.cost), np.sqrt(np.mean(squared))
    for k, part in enumerate((slice(length // 2), slice(length // 2, length))):
        if driven >= (part.stop or 0):
            arrays["half_cost"][at][k] = np.mean(made.cost[part])
            arrays["half_rmse"][at][k] = np.sqrt(np.mean(squared[part]))
            if code == Result.OK:
                arrays["convergence_time"][at][k] = convergence_time(
                    made.cost[part], best.cost[part], robot.lap, settings.within, robot.dt
                )


def _keep_laps(robot: Robot, arrays: dict[str, np.ndarray], made: Drive, length: int) -> None:
    """Store the first lap and the last whole lap."""
    last = length // robot.lap - 1
    for k, lap in enumerate((0, last)):
        at = lap * robot.lap + np.arange(POINTS) * robot.lap // POINTS
        if lap >= 0 and at[-1] < len(made.x):
            arrays["lap_state"][k, :, : made.x.shape[1]] = made.x[at]
            arrays["lap_error"][k, :, : made.error.shape[1]] = made.error[at]

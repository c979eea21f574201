"""One loop and plant of the comparison: all starts and seeds at once, the rules' gains, and the best static gains."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import selftune as st

from ...control import result_codes
from ..logs import errors_alone
from . import rules
from .cases import Case, load
from .run import GAINS, RIVALS, RULES, STATIC, Settings, all_starts, steps

RELAY_PERIODS = 4
"""The length of the relay experiment, in periods of the reference."""


def fill_arrays(settings: Settings, name: str, plant_name: str, arrays: dict[str, np.ndarray]) -> None:
    """Fill the arrays of one loop and plant."""
    with errors_alone():  # the guard's interventions are expected here
        _fill_arrays(settings, name, plant_name, arrays)


def _fill_arrays(settings: Settings, name: str, plant_name: str, arrays: dict[str, np.ndarray]) -> None:
    case, length = load(name), steps(settings, name)
    batch = Batch(case, plant_name, length, settings.first_seed + np.arange(settings.seeds))
    order = [GAINS.index(key.removeprefix("log_")) for key in sorted(case.loop().theta)]

    given = {start: case.loop(gains) for start, gains in case.starts.items()}
    # As a careful user would do; gains that have the margin stay as they are.
    backed = {start: loop.back_off(gain_margin=settings.margin) for start, loop in given.items()}
    bounds = [loop.constraint.bounds(loop.theta) for loop in given.values()]
    low, high = (np.asarray(part) for part in zip(*bounds, strict=True))
    first = np.stack([flat(theta) for theta in backed.values()])
    tuned = batch.tuned(first, low, high, rows=settings.rows)
    as_given = np.stack([flat(loop.theta) for loop in given.values()])
    fixed = batch.fixed(np.broadcast_to(as_given, (settings.seeds, *as_given.shape)))

    places = [all_starts().index(start) for start in case.starts]
    at = np.ix_(range(settings.seeds), places)
    arrays["result_code"][...] = result_codes.NOT_RUN
    arrays["result_code"][at] = tuned.code
    arrays["cost"][at] = in_rows(tuned.cost, settings.rows)
    arrays["mean_cost"][at], arrays["last_cost"][at] = tuned.cost.mean(-1), last_quarter(tuned.cost)
    arrays["fixed_cost"][at], arrays["fixed_last"][at] = fixed.cost.mean(-1), last_quarter(fixed.cost)
    for i, start in enumerate(places):
        arrays["theta"][:, start][..., order] = tuned.theta[:, i]
        arrays["final_theta"][:, start][..., order] = tuned.final[:, i]
        arrays["start_theta"][start, order] = as_given[i]
        arrays["backed_off"][start] = float(np.exp(np.max(np.abs(as_given[i] - first[i]))))

    rivals = rule_gains(case, plant_name, length)
    kinds = sorted(case.gains)
    known = {rule: np.log([gains[kind] for kind in kinds]) for rule, gains in rivals.items() if gains is not None}
    found = tuned.final.mean(axis=1)  # where the tuner went; a candidate of the search
    candidates = np.concatenate(
        [
            np.broadcast_to(
                np.stack([flat(case.loop().theta), *known.values()]), (settings.seeds, 1 + len(known), len(order))
            ),
            np.where(np.isfinite(found), found, flat(case.loop().theta))[:, None],
        ],
        axis=1,
    )
    best = best_static(batch, candidates, settings)
    theta = np.full((settings.seeds, len(RIVALS), len(order)), np.nan)
    theta[:, RIVALS.index(STATIC)] = best
    for rule, gains in known.items():
        theta[:, RIVALS.index(rule)] = gains
    is_known = np.asarray(np.isfinite(theta).all(axis=-1))
    held = batch.fixed(np.where(is_known[..., None], theta, best[:, None]))
    arrays["rival_code"][...] = np.where(is_known, held.code, result_codes.NOT_RUN)
    for variable, values in (
        ("rival_cost", in_rows(held.cost, settings.rows)),
        ("rival_mean", held.cost.mean(-1)),
        ("rival_last", last_quarter(held.cost)),
    ):
        mask = is_known[..., None] if values.ndim == 3 else is_known
        arrays[variable][...] = np.where(mask, values, np.nan)
    arrays["rival_theta"][..., order] = theta


def flat(theta: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(theta)[0], float)


def in_rows(cost: np.ndarray, rows: int) -> np.ndarray:
    """Return the mean cost of each of `rows` intervals of about the same length."""
    edges = np.arange(rows + 1) * cost.shape[-1] // rows
    sums = np.concatenate([np.zeros((*cost.shape[:-1], 1)), np.cumsum(cost, axis=-1)], axis=-1)
    return np.diff(sums[..., edges], axis=-1) / np.diff(edges)


def last_quarter(cost: np.ndarray) -> np.ndarray:
    return cost[..., -(cost.shape[-1] // 4) :].mean(axis=-1)


class Result(eqx.Module):
    """Many runs: (seed, candidate, …)."""

    cost: np.ndarray
    code: np.ndarray
    theta: Any = None
    """θ at the start of each row, flat."""
    final: Any = None


class Batch:
    """All runs of one loop and plant, compiled once for fixed gains and once for the tuner."""

    def __init__(self, case: Case, plant_name: str, length: int, seeds: np.ndarray):
        self.case, self.loop, self.length = case, case.loop(), length
        true = case.true_plant(plant_name)
        made = [self.loop.scenario(length, int(seed), plant=true) for seed in seeds]
        self.scenarios = jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
        self.plant = true
        self.guard, self.plain = self.loop.guard(), self.loop.guard(rollback=None, authority=None)
        self.tuner = self.loop.controller().tuner
        self._fixed = self._compiled(self._one_fixed, per_seed=True)

    def fixed(self, theta: np.ndarray) -> Result:
        """Run fixed gains, (seed, candidate, d), with the estimator and the limits of the control, but no tuner."""
        cost, code = self._fixed(self.scenarios, jnp.asarray(theta))
        return Result(np.asarray(cost), np.asarray(code))

    def tuned(self, theta: np.ndarray, low: np.ndarray, high: np.ndarray, *, rows: int) -> Result:
        """Run the default tuner and guard of `Loop` from each start, (start, d), within its box."""
        run = self._compiled(partial(self._one_tuned, rows=rows), per_seed=False)
        cost, code, thetas, final = run(self.scenarios, *map(jnp.asarray, (theta, low, high)))
        return Result(np.asarray(cost), np.asarray(code), np.asarray(thetas), np.asarray(final))

    def _compiled(self, one: Callable[..., Any], *, per_seed: bool) -> Callable[..., Any]:
        """Return `one(scenario, *arrays)` for all seeds and candidates. The scenario depends on the seed; the arrays
        do if `per_seed`."""

        def all_of(scenarios: Any, *arrays: Any) -> Any:
            inner = jax.vmap(one, (None, *(0 for _ in arrays)))
            return jax.vmap(inner, (0, *(0 if per_seed else None for _ in arrays)))(scenarios, *arrays)

        return jax.jit(all_of)

    def _simulate(self, controller: Any, scenario: Any, theta: Any, guard: st.Guard, record: tuple[str, ...]) -> Any:
        return self.loop.simulate(
            plant=self.plant,
            scenario=scenario,
            controller=controller,
            guard=guard,
            theta=theta,
            record=record,
            throw=False,
        )

    def _one_fixed(self, scenario: Any, theta: jax.Array) -> Any:
        unravel = ravel_pytree(self.loop.theta)[1]
        controller = self.loop.controller(tuner=st.Fixed())
        run = self._simulate(controller, scenario, unravel(theta), self.plain, ("cost",))
        return run.cost, run.outcome.code

    def _one_tuned(self, scenario: Any, theta: jax.Array, low: jax.Array, high: jax.Array, *, rows: int) -> Any:
        unravel = ravel_pytree(self.loop.theta)[1]
        # The loop's own tuner. The box of each start is around the gains that the user gave.
        tuner = eqx.tree_at(lambda tuner: tuner.constraint, self.tuner, st.Box(unravel(low), unravel(high)))
        controller = self.loop.controller(tuner=tuner)
        run = self._simulate(controller, scenario, unravel(theta), self.guard, ("cost", "theta"))
        every = np.arange(rows) * self.length // rows
        thetas = jax.vmap(lambda tree: ravel_pytree(tree)[0])(jax.tree.map(lambda leaf: leaf[every], run.theta))
        return run.cost, run.outcome.code, thetas, ravel_pytree(run.final.state.theta)[0]


def rule_gains(case: Case, plant_name: str, length: int) -> dict[str, dict[str, float] | None]:
    """Return the gains of each rule for a loop; None if the rule gives none, such as a relay that does not oscillate.

    The model-based rules know the model alone. The relay experiment runs on the true plant, without load.
    """
    model, derivative = case.model, "kd" in case.gains
    process, ultimate = rules.process_of(model), rules.ultimate_of(model)
    plant, period = case.true_plant(plant_name), case.reference.period(case.model.dt)
    middle = float(np.mean([case.reference.low, case.reference.high]))
    measured = rules.relay(plant, middle, case.limits, case.noise, round(RELAY_PERIODS * period))
    made = {
        "Ziegler–Nichols": rules.ziegler_nichols(ultimate, derivative=derivative),
        "SIMC": rules.simc(process, derivative=derivative),
        "AMIGO": rules.amigo(process, derivative=derivative),
        "relay": rules.tyreus_luyben(measured, derivative=derivative),
    }
    return {rule: made[rule] if np.isfinite(list(made[rule].values())).all() else None for rule in RULES}


def best_static(batch: Batch, candidates: np.ndarray, settings: Settings) -> np.ndarray:
    """Return for each seed the gains of least cost over the whole run, (seed, d); never worse than a candidate.

    A random search around the best gains so far, whose spread shrinks from a factor of e to a few percent.
    """
    random = np.random.default_rng(0)
    seeds, _, d = candidates.shape

    def best_of(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        made = batch.fixed(theta)
        cost = np.where(made.code == result_codes.OK, made.cost.mean(-1), np.inf)
        cost = np.where(np.isfinite(cost), cost, np.inf)
        at = np.argmin(cost, axis=1)
        return theta[np.arange(seeds), at], cost[np.arange(seeds), at]

    count = settings.candidates
    # All batches have the same size, so that one program serves them.
    padded = [candidates[:, i : i + count] for i in range(0, candidates.shape[1], count)]
    padded = [np.concatenate([part, np.repeat(part[:, :1], count - part.shape[1], 1)], 1) for part in padded]
    best, least = best_of(padded[0])
    spread = 1.0
    for i in range(settings.rounds + len(padded) - 1):
        if i < len(padded) - 1:
            tried = padded[1 + i]
        else:
            tried = best[:, None] + spread * random.normal(size=(seeds, count, d))
            spread *= 0.05 ** (1 / max(1, settings.rounds))
        new, cost = best_of(tried)
        better = cost < least
        best, least = np.where(better[:, None], new, best), np.where(better, cost, least)
    return best

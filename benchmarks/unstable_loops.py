"""How many runs of a `Loop` fall if its plant is unstable without control.

python -m benchmarks.unstable_loops                  all plants, 20 seeds
python -m benchmarks.unstable_loops cart-pole        only the plants whose name begins so
python -m benchmarks.unstable_loops --agent          also with an agent beside the plant, in place of a simulation

Each run starts at rest. A run falls if an output exceeds its limit, or if the run fails. The true plant is the model
itself or another one, the disturbances are those of `Loop.scenario` (weak) or ten times the sensor noise and a random
push at every step (strong). The columns: the start gains held, the loop as it is, and with a `rest` of 10 time
constants in its tuner; behind each number of falls, the median of the runs' mean costs.
"""

import argparse
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune import models, policies
from selftune.tuners.gauss_newton import time_constant


@dataclass(frozen=True)
class Plant:
    """A loop, the true plants, the state that must not exceed a limit, and the random push at every step."""

    loop: st.Loop
    others: Mapping[str, models.AbstractModel]
    watched: int
    limit: float
    push: tuple[float, ...]


def linear(model: models.AbstractModel) -> tuple[np.ndarray, np.ndarray]:
    f = model.residual(model.x0, model.a_hat, 0)
    A, B = jax.jacfwd(model.dynamics, (0, 1))(model.x0, jnp.zeros(len(model.controls)), f, 0)
    return np.asarray(A), np.asarray(B)


def cart_pole(effort: float, *, full_state: bool = True, wide: float = 1.0) -> Plant:
    def model(cart: float = 1.0, pole: float = 0.1) -> models.CartPole:
        return models.CartPole(dt=0.02, cart_mass=cart, pole_mass=pole, cart_friction=0.1, output=("position", "angle"))

    A, B = linear(model())
    policy = policies.StateFeedback.lqr(A, B, np.diag([1.0, 0.1, 10.0, 0.1]), [[effort]], u_min=-30.0, u_max=30.0)
    policy = policies.StateFeedback(
        policy.gains(policy.theta)["K"], feedforward=[[policy.gains(policy.theta)["K"][0, 0], 0.0]], u_min=-30.0,
        u_max=30.0, constraint=None if wide == 1 else st.Box(-10 * wide, 10 * wide),
    )  # fmt: skip
    others = {"25 % heavier": model(1.25, 0.12), "25 % lighter": model(0.75, 0.08)}
    push = 0.5 * math.sqrt(0.02)
    return Plant(st.Loop(model(), policy, full_state=full_state), others, 2, 1.0, (0, push, 0, push))


def first_order(kp: float, ki: float) -> Plant:
    def model(rate: float = 2.0) -> models.StateSpace:
        return models.StateSpace([[rate]], [[1.0]], [[1.0]], dt=0.02)

    policy = policies.PID(kp=kp, ki=ki, u_min=-20.0, u_max=20.0)
    return Plant(st.Loop(model(), policy), {"25 % faster": model(2.5)}, 0, 8.0, (0.1,))


def ball(kp: float, kd: float, ki: float, *, full_state: bool = False) -> Plant:
    """A levitated ball: the magnet pulls stronger the closer the ball is."""

    def model(stiffness: float = 100.0, gain: float = 10.0) -> models.StateSpace:
        return models.StateSpace([[0.0, 1.0], [stiffness, 0.0]], [[0.0], [gain]], [[1.0, 0.0]], dt=0.002)

    policy = policies.PID(kp=kp, ki=ki, kd=kd, u_min=-30.0, u_max=30.0)
    others = {"25 % stiffer": model(125.0), "25 % weaker magnet": model(100.0, 7.5)}
    return Plant(st.Loop(model(), policy, full_state=full_state), others, 0, 2.5, (0.0, 0.03))


def double_integrator(kp: float, kd: float) -> Plant:
    def model(mass: float = 1.0) -> models.DoubleIntegrator:
        return models.DoubleIntegrator(mass=mass, dt=0.02)

    policy = policies.PID(kp=kp, kd=kd, u_min=-30.0, u_max=30.0)
    loop = st.Loop(model(), policy)
    return Plant(loop, {"25 % heavier": model(1.25)}, 0, 20 * float(loop.plant.outputs[0].scale), (0.0, 0.05))


PLANTS: dict[str, Callable[[], Plant]] = {
    "cart-pole, LQR": lambda: cart_pole(0.1),
    "cart-pole, weak LQR": lambda: cart_pole(100.0),
    "cart-pole, weak LQR, wide Θ": lambda: cart_pole(100.0, wide=10.0),
    "cart-pole, LQR, observer": lambda: cart_pole(0.1, full_state=False),
    "cart-pole, weak LQR, observer": lambda: cart_pole(100.0, full_state=False),
    "unstable first order, PI": lambda: first_order(6.0, 6.0),
    "unstable first order, weak PI": lambda: first_order(3.0, 0.5),
    "levitated ball, PID": lambda: ball(30.0, 2.0, 30.0),
    "levitated ball, weak PID": lambda: ball(14.0, 1.0, 5.0),
    "double integrator, PD": lambda: double_integrator(4.0, 3.0),
    "double integrator, weak PD": lambda: double_integrator(0.3, 0.3),
}


def scenario(plant: Plant, true: models.AbstractModel, seed: int, steps: int, strong: bool) -> st.Scenario:
    made = plant.loop.scenario(steps, seed, plant=true)
    if not strong:
        return made
    w = jax.random.normal(jax.random.key(10_000 + seed), made.w.shape, made.w.dtype) * jnp.asarray(plant.push)
    return eqx.tree_at(lambda s: (s.w, s.measurement_noise), made, (w, 10 * made.measurement_noise))


def falls(
    plant: Plant, true: models.AbstractModel, made: st.Scenario, controller: Any, agent: bool
) -> tuple[bool, float]:
    """Return whether the run falls, and its mean cost."""
    if agent:
        return _agent_falls(plant, true, made, controller)
    given = None if true is plant.loop.plant else true
    run = plant.loop.simulate(scenario=made, controller=controller, plant=given, record=("x", "cost"), throw=False)
    x = np.asarray(run.x)[:, plant.watched]
    return not bool(run.outcome.ok) or not np.max(np.abs(x)) < plant.limit, float(np.mean(run.cost))


def _agent_falls(plant: Plant, true: models.AbstractModel, made: st.Scenario, controller: Any) -> tuple[bool, float]:
    from selftune.loop.dry_run import SimulatedPlant

    loop = plant.loop
    beside = SimulatedPlant(loop, true, made)
    agent, measured, costs = loop.agent(controller=controller), beside.measure(), []
    for row in np.asarray(made.t.reference):
        measured = beside.step(agent.act(measured, reference=row))
        costs.append(float(agent.info.cost))
        if not abs(float(beside._x[plant.watched])) < plant.limit:
            return True, math.nan
    return False, float(np.mean(costs))


def controllers(loop: st.Loop, rests: list[float]) -> Iterator[tuple[str, Any]]:
    default = loop.controller()
    yield "held", loop.controller(tuner=st.Fixed())
    yield "loop", loop.controller(tuner=default.tuner)
    tau = time_constant(loop.margins().spectral_radius)
    for rest in rests:
        yield f"{rest:g} τ", loop.controller(tuner=dataclasses.replace(default.tuner, rest=math.ceil(rest * tau)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", help="the beginnings of the names of plants")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rests", type=float, nargs="*", default=[10.0])
    parser.add_argument("--agent", action="store_true")
    options = parser.parse_args()
    logging.getLogger("selftune").setLevel(logging.ERROR)  # the guards' interventions are expected here
    seeds = range(options.first, options.first + options.seeds)
    with jax.enable_x64(True):
        for name, make in PLANTS.items():
            if options.plants and not any(name.startswith(one) for one in options.plants):
                continue
            plant = make()
            margins = plant.loop.margins()
            print(f"{name}: {margins}; τ = {time_constant(margins.spectral_radius):.3g} steps", flush=True)
            tuned = dict(controllers(plant.loop, options.rests))
            for title, true in {"the model": plant.loop.plant, **plant.others}.items():
                for strong in (False, True):
                    made = [scenario(plant, true, seed, options.steps, strong) for seed in seeds]
                    cells = []
                    for kind, controller in tuned.items():
                        ends = [falls(plant, true, one, controller, options.agent) for one in made]
                        cost = float(np.median([cost for _, cost in ends]))
                        cells.append(f"{kind} {sum(fell for fell, _ in ends)} ({cost:.3g})")
                    print(f"  {title:20} {'strong' if strong else 'weak':7} {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()

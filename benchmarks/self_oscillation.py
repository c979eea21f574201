"""The gradient of a loop that oscillates by itself: by the model, and on the true plant.

    python -m benchmarks.self_oscillation

The motor speed of `selftune bench loops` on the plant that is 30 % heavier, with fixed gains that are too high for it.
Printed is the derivative of the mean cost by log ki, divided by the mean cost, for several ki: the one that M-GAPS
computes with the model, and the difference quotient of runs on the true plant with the same noise.
"""

import argparse

import jax
import numpy as np

import selftune as st
from selftune.experiments.logs import errors_alone
from selftune.experiments.loops.cases import load

PERIODS = 30
FACTORS = (1.0, 2.0, 4.0, 7.0, 10.0)
"""The multiples of the nominal ki."""
STEP = 0.05
"""The step of log ki in the difference quotient."""


def derivatives(factor: float, seed: int) -> tuple[float, float, float]:
    """Return the mean cost, and its derivative by log ki: by the model and on the plant."""
    case = load("motor speed")
    loop = case.loop(case.gains | {"ki": factor * case.gains["ki"]})
    plant = case.true_plant("heavy")
    scenario = loop.scenario(round(PERIODS * case.reference.period(case.model.dt)), seed, plant=plant)
    controller = loop.controller(tuner=st.MGAPS(1e-12, constraint=loop.constraint))  # θ stays
    guard = loop.guard(rollback=None, authority=None, swing=None)

    def run(change: float) -> st.Run:
        theta = loop.theta | {"log_ki": loop.theta["log_ki"] + change}
        fields = ("cost", "gradient")
        return loop.simulate(
            plant=plant, scenario=scenario, controller=controller, guard=guard, theta=theta, record=fields
        )

    here = run(0.0)
    by_model = float(np.mean(here.gradient, axis=0)[sorted(loop.theta).index("log_ki")])
    on_plant = float(np.mean(run(STEP).cost) - np.mean(run(-STEP).cost)) / (2 * STEP)
    return float(np.mean(here.cost)), by_model, on_plant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    given, _ = parser.parse_known_args()
    print("\nderivative of the cost by log ki, divided by the cost: means over the seeds")
    print("  ki       cost   by the model   on the plant")
    with jax.enable_x64(True), errors_alone():
        for factor in FACTORS:
            cost, by_model, on_plant = np.mean([derivatives(factor, seed) for seed in range(given.seeds)], axis=0)
            print(f"  × {factor:<4g} {cost:7.4f} {by_model / cost:+14.2f} {on_plant / cost:+14.2f}")


if __name__ == "__main__":
    main()

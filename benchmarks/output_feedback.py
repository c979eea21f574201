"""How exact is the gradient of a loop that measures a part of the state?

python -m benchmarks.output_feedback

The tuner differentiates plant and observer at the estimated state. The exact gradient differentiates the whole rollout
of the true plant, with the same noise and disturbances. Printed is the relative error of the mean gradient over the
run, |mean of G − exact| / |exact|, as the median over the seeds, for noise and disturbances of several sizes.
"""

import argparse
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import models, policies

NOISES = (0.0, 1e-3, 1e-2, 5e-2)
"""The standard deviation of the sensor noise, as a share of the output's scale."""
DISTURBANCES = (0.0, 1e-2, 1e-1)
"""The standard deviation of a force at the plant's input, new at each step, as a share of the control's scale."""


def loops() -> dict[str, st.Loop]:
    plant = models.DoubleIntegrator(mass=1.0, dt=0.02)
    reference = st.references.Square(8.0, low=0.0, high=1.0)
    feedback = policies.StateFeedback([[4.0, 3.0]], feedforward=[[4.0]])
    return {
        "PID": st.Loop(plant, policies.PID(kp=4.0, ki=0.5, kd=3.0), reference=reference, noise=1e-2),
        "state feedback with an observer": st.Loop(plant, feedback, reference=reference, noise=1e-2),
    }


@eqx.filter_jit
def rollout_gradient(loop: st.Loop, scenario: st.Scenario) -> jax.Array:
    """Return the derivative of the mean cost of the true rollout with respect to a constant θ."""
    system = loop.system
    flat, unravel = ravel_pytree(loop.theta)

    def mean_cost(flat: jax.Array) -> jax.Array:
        theta = unravel(flat)

        def step(loop_state: jax.Array, inputs: Any) -> tuple[jax.Array, jax.Array]:
            a, w, t, noise = inputs
            x, memory = system.split(loop_state)
            measured = system.measurement(x, t) + noise
            f_hat = system.residual(system.state_estimate(measured, memory, theta, t), a, t)
            u, following = system.decide(measured, memory, theta, f_hat, t)
            x_next = system.dynamics(x, u, system.residual(x, a, t), t) + w
            return system.join(x_next, following), system.stage_cost(x, memory, u, theta, t)

        rows = (scenario.a_star, scenario.w, scenario.t, scenario.measurement_noise)
        return jnp.mean(jax.lax.scan(step, system.first(scenario.x0), rows)[1])

    return jax.jacfwd(mean_cost)(flat)


def error(loop: st.Loop, noise: float, disturbance: float, seed: int, steps: int) -> float:
    """Return the relative error of the mean gradient."""
    key, made = jax.random.key(1000 + seed), loop.scenario(steps, seed)
    output, control = loop.plant.outputs[0].scale, loop.plant.controls[0].scale
    force = disturbance * control * jax.random.normal(key, (steps, 1))
    push = jax.jacfwd(loop.plant.dynamics, argnums=1)(loop.x, jnp.zeros(1), jnp.zeros(1), 0)  # linear in u
    scenario = st.Scenario(
        made.x0,
        jnp.zeros_like(made.a_star),
        force @ push.T,
        t=made.t,
        measurement_noise=noise * output * jax.random.normal(jax.random.fold_in(key, 1), (steps, 1)),
    )
    controller = st.Controller(loop.system, st.MGAPS(1e-12), st.Known())  # θ stays
    run = st.simulate(controller, scenario, theta=loop.theta, record=("gradient",))
    exact = np.asarray(rollout_gradient(loop, scenario))
    return float(np.linalg.norm(np.mean(run.gradient, axis=0) - exact) / np.linalg.norm(exact))


def table(steps: int, seeds: int) -> str:
    lines = []
    for name, loop in loops().items():
        lines.append(f"| {name}: noise | " + " | ".join(f"disturbance {100 * d:g} %" for d in DISTURBANCES) + " |")
        lines.append("|---" * (len(DISTURBANCES) + 1) + "|")
        for noise in NOISES:
            cells = [np.median([error(loop, noise, d, seed, steps) for seed in range(seeds)]) for d in DISTURBANCES]
            lines.append(f"| {100 * noise:g} % | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=4)
    given, _ = parser.parse_known_args()
    with jax.enable_x64(True):
        print(table(given.steps, given.seeds))


if __name__ == "__main__":
    main()

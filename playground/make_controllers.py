"""Export the controllers of the paper's panel and of the PID's panel, and record Python runs for the tests.

Run it from the root of the repository: `python playground/make_controllers.py`. It writes `src/controllers/`, one
folder for each controller, and `tests/recorded.json`.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune import models, policies, references
from selftune.experiments.loops import rules
from selftune.experiments.paper import run as paper

HERE = Path(__file__).parent
OPEN_GUARD = st.Guard(
    x_limit=None,
    f_limit=None,
    gate=None,
    safe_u=None,
    rate=None,
    authority=None,
    y_limit=None,
    rollback=None,
    contraction=None,
)
"""No limits: the panel shows the algorithms as the paper writes them."""
MEMORY = 1000
"""The number of steps over which the tuners estimate the contraction ρ̂."""


def paper_controllers() -> dict[str, st.Controller]:
    """The paper's example with three learning rules."""
    settings = paper.Settings()
    estimator = paper.controllers(settings)["M-GAPS"].estimator
    box = settings.constraint
    tuners = {
        "mgaps": st.MGAPS(settings.learning_rate, constraint=box, contraction_memory=MEMORY),
        "mgaps_faster": st.MGAPS(100 * settings.learning_rate, constraint=box, contraction_memory=MEMORY),
        "gauss_newton": st.GaussNewton(constraint=box, contraction_memory=MEMORY),
    }
    return {name: st.Controller(paper.example_system(), tuner, estimator) for name, tuner in tuners.items()}


def motor_loop() -> st.Loop:
    """A PID for the position of a DC motor; its model has one sample of delay."""
    motor = models.DCMotor(
        resistance=1.2,
        torque_constant=0.04,
        rotor_inertia=2e-5,
        gear_ratio=20.0,
        load_inertia=0.01,
        dt=0.005,
        output="position",
        unknown=(models.Load(bound=2.0), models.Viscous(bound=0.2), models.Coulomb(bound=2.0)),
    )
    return st.Loop(
        models.Delayed(motor, samples=1),
        policies.PID(kp=20.0, ki=20.0, kd=0.2, u_min=-24.0, u_max=24.0),
        st.Tracking(effort=0.01, effort_rate=1e-5),
        references.Steps(hold=1.0, low=-1.5, high=1.5),
        noise=1e-3,
    )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    folder = HERE / "src" / "controllers"
    start: dict[str, Any] = {"theta": jnp.ones(1), "a_hat": jnp.zeros(3)}
    recorded = {}
    keys = jax.random.split(jax.random.key(0))
    steps = 5_000
    scenario = st.Scenario(
        x0=jnp.zeros(1),
        a_star=st.PiecewiseConstant(1_000, -0.25, 0.25)(keys[0], steps, 3),
        w=st.OrnsteinUhlenbeck(0.95, 0.1)(keys[1], steps, 1),
    )
    for name, controller in paper_controllers().items():
        st.export_web(
            controller,
            folder / f"paper_{name}",
            x=scenario.x0,
            **start,
            dtype="float64",
            name=f"paper_{name}",
            guard=OPEN_GUARD,
            scenario=scenario[:200],
            overwrite=True,
        )
        run = st.simulate(controller, scenario, **start)
        recorded[name] = {"theta": run.theta[:, 0].tolist(), "total": float(jnp.sum(run.cost))}
        if isinstance(controller.tuner, st.MGAPS):
            regret = st.local_regret(
                controller.system, scenario, run.theta, learning_rate=1e-4, constraint=paper.Settings().constraint
            )
            recorded[name]["local"] = (regret.projected_gradient[::5, 0] ** 2).tolist()
    nature = {"a_star": np.asarray(scenario.a_star)[::1_000].tolist(), "w": np.asarray(scenario.w)[:, 0].tolist()}
    loop = motor_loop()
    loop.export_web(folder / "motor_pid", dtype="float64", name="motor_pid", overwrite=True)
    textbook = rules.ziegler_nichols(rules.ultimate_of(loop.plant), derivative=True)
    gains = {"nominal": {"kp": 20.0, "ki": 20.0, "kd": 0.2}, "zieglerNichols": textbook}
    (folder / "motor_gains.json").write_text(json.dumps(gains) + "\n")
    about = {"nature": nature, "period": 1_000, "paper": recorded}
    (HERE / "tests" / "recorded.json").write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()

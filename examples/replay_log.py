"""A recorded log, replayed: does the model fit, and what would an agent have learned and saved?

`arm_log.csv` is a one-joint arm under somebody's PD controller (`record_log.py` says whose), and `arm_log.toml` says
where the signals are. Put your own log in their place.

    .venv/bin/python examples/replay_log.py

The same as a command, with a report:

    selftune replay examples/arm_log.csv --loop examples/replay_log.py:loop --map examples/arm_log.toml -o results/arm
"""

from pathlib import Path

import selftune as st
from selftune import models, policies

MASS, LENGTH, INERTIA = 1.2, 0.45, 0.3  # kg, m and kg·m² about the joint: what the builder of the arm believes
KP, KD = 4.0, 0.6  # N·m/rad and N·m·s/rad: the gains of the log

spin = INERTIA - MASS * LENGTH**2  # about the center of mass
link = models.Link(
    "joint",
    axis=(0.0, 1.0, 0.0),
    mass=MASS,
    center=(0.0, 0.0, -LENGTH),
    inertia=((spin, 0.0, 0.0), (0.0, spin, 0.0), (0.0, 0.0, spin)),
)
body = models.RigidBody((link,), tool_position=(0.0, 0.0, -0.5))
frequency = (KP / INERTIA) ** 0.5
loop = st.Loop(
    models.RobotArm(body, torque_limits=12.0, dt=0.02, lag=0.008),
    policies.GravityPD(frequency=frequency, damping=KD / (2 * frequency * INERTIA)),
    noise=[2e-4, 2e-3, 1e-3],
)

if __name__ == "__main__":
    here = Path(__file__).parent
    replayed = st.replay(loop, here / "arm_log.csv", here / "arm_log.toml")
    print(replayed)
    found = dict(zip([one.name for one in loop.plant.parameters], replayed.a_hat[-1], strict=True))
    print("the estimator would have found", ", ".join(f"{name} {value:.2f}" for name, value in found.items()))

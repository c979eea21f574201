"""A recorded log, replayed: what would the tuner and the estimator have done?

`arm_log.csv` is a one-joint arm under somebody's PD controller (`record_log.py` says whose). Put yours in its place.

    .venv/bin/python examples/replay_log.py

What it tells. The *estimator* is shown what the torque of the log did, so â is what it would have been on the robot;
and each error in the table is of a step that it had not yet seen. The *tuner* is asked at every recorded state for its
gradient, which is right while θ is near the gains of the log: its direction is real, and so are the sizes of G and y,
from which to choose a learning rate. What it does not tell is where θ would end: the recorded arm never feels the new
gains, its errors do not shrink, and the tuner goes on asking for more.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

DT, INERTIA, WEIGHT = 0.02, 0.3, 5.3  # s, kg m², N m: what the builder of the arm believes


def dynamics(x, v, t):
    rate = x[1] + DT * (v[0] - WEIGHT * jnp.sin(x[0])) / INERTIA
    return jnp.stack([x[0] + DT * rate, rate])


def residual(x, a, t):  # dry friction, viscous friction, a payload's weight times its arm; all in N m
    return jnp.stack([-a[0] * jnp.tanh(x[1] / 0.05) - a[1] * x[1] - a[2] * jnp.sin(x[0])])


def actuation(x, theta, t):  # t is what the log has as the target: its angle and rate
    kp, kd = jnp.exp(theta)
    return jnp.stack([kp * (t[0] - x[0]) + kd * (t[1] - x[1]) + WEIGHT * jnp.sin(x[0])])


def cost(x, u, theta, t):
    return (x[0] - t[0]) ** 2 + 1e-4 * u[0] ** 2


system = st.MatchedSystem(dynamics, residual, actuation, cost)
controller = st.Controller(
    system,
    tuner=st.MGAPS(0.02, constraint=st.Box(np.log([1.0, 0.2]), np.log([40.0, 8.0])), contraction_memory=100),
    estimator=st.GradientEstimator(0.05, constraint=st.Box(-3.0, 3.0), normalized=True),
)

if __name__ == "__main__":
    log = np.genfromtxt(Path(__file__).parent / "arm_log.csv", delimiter=",", names=True)
    x, u = np.stack([log["angle"], log["rate"]], axis=1), log["torque"][:, None]
    targets = np.stack([log["target"], log["target_rate"]], axis=1)
    infer = jax.vmap(lambda x, u, x_next, t: st.infer_residual(system, x, u, x_next, t))
    seen = np.asarray(infer(x[:-1], u[:-1], x[1:], targets[:-1]))  # from the torque of the log, not the agent's

    agent = st.Agent(controller, x=x[0], theta=np.log([4.0, 0.6]), a_hat=np.zeros(3), t=targets[0])
    print("  until   N m unexplained    â: dry, viscous   gains, as they      ρ̂   largest")
    print("      s   model    with â    and payload       would have gone            |y|")
    unexplained, y = [], 0.0
    for k in range(len(seen)):
        agent.act(x[k], targets[k])
        unexplained.append(seen[k] - agent.info.f_hat)
        y = max(y, np.max(np.abs(np.asarray(agent.info.tuner.y))))
        agent.observe(seen[k])
        if (k + 1) % 199 == 0:
            errors = (np.sqrt(np.mean(np.square(e[k - 198 : k + 1]))) for e in (seen, unexplained))
            row = (log["time"][k + 1], *errors, *agent.a_hat, *np.exp(agent.theta), agent.info.tuner.contraction, y)
            print("{:7.1f} {:7.2f} {:9.2f} {:8.2f} {:5.2f} {:5.2f} {:9.1f} {:6.2f} {:9.3f} {:6.2f}".format(*row))

# %% [markdown]
# # Replaying a log
# You have a recorded run of your robot: states and controls. Without moving the robot again, you can ask: does the model fit? What would
# the estimator have learned? In which direction would the tuner have moved the gains? This tutorial answers these questions for an arm
# with one joint, recorded at 50 Hz for 24 s. After 12 s the arm picked up a payload.

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import selftune as st

here = Path(__file__).parent if "__file__" in globals() else Path.cwd()
log = np.genfromtxt(here.parents[1] / "examples" / "arm_log.csv", delimiter=",", names=True)
x, u = np.stack([log["angle"], log["rate"]], axis=1), log["torque"][:, None]
targets = np.stack([log["target"], log["target_rate"]], axis=1)
print(f"{len(x)} rows: {', '.join(log.dtype.names)}")
assert len(x) > 1_000

# %% [markdown]
# ## The model
# What the builder of the arm believes: an inertia and a weight. The unknown part has dry friction, viscous friction and a payload. The
# context `t` of each step is the target of the log.

# %%
DT, INERTIA, WEIGHT = 0.02, 0.3, 5.3  # s, kg m², N m


def dynamics(x, v, t):
    rate = x[1] + DT * (v[0] - WEIGHT * jnp.sin(x[0])) / INERTIA
    return jnp.stack([x[0] + DT * rate, rate])


def residual(x, a, t):
    return jnp.stack([-a[0] * jnp.tanh(x[1] / 0.05) - a[1] * x[1] - a[2] * jnp.sin(x[0])])


def actuation(x, theta, t):
    kp, kd = jnp.exp(theta)
    return jnp.stack([kp * (t[0] - x[0]) + kd * (t[1] - x[1]) + WEIGHT * jnp.sin(x[0])])


def cost(x, u, theta, t):
    return (x[0] - t[0]) ** 2 + 1e-4 * u[0] ** 2


system = st.MatchedSystem(dynamics, residual, actuation, cost)

# %% [markdown]
# ## Does the model fit?
# `infer_residual` computes, for each recorded transition, the torque that the model cannot explain. Without noise and with a perfect
# model it would be zero.

# %%
infer = jax.vmap(lambda x, u, x_next, t: st.infer_residual(system, x, u, x_next, t))
seen = np.asarray(infer(x[:-1], u[:-1], x[1:], targets[:-1]))
print(f"unexplained torque: {np.sqrt(np.mean(seen**2)):.2f} N·m, of {np.sqrt(np.mean(u**2)):.2f} N·m in the log")
assert np.isfinite(seen).all()

# %% [markdown]
# ## What would the estimator have learned?
# The agent gets the recorded measurements and the inferred residuals. `agent.info.f_hat` is its prediction *before* it saw the step, so
# the comparison is fair.

# %%
controller = st.Controller(
    system,
    tuner=st.MGAPS(0.02, constraint=st.Box(np.log([1.0, 0.2]), np.log([40.0, 8.0])), contraction_memory=100),
    estimator=st.AutoEstimator(constraint=st.Box(-3.0, 3.0)),
)
agent = st.Agent(controller, x=x[0], theta=np.log([4.0, 0.6]), a_hat=np.zeros(3), t=targets[0])
rows = []
for k in range(len(seen)):
    agent.act(x[k], targets[k])
    rows.append((seen[k, 0] - agent.info.f_hat[0], *agent.a_hat, *agent.info.tuner.gradient))
    agent.observe(seen[k])
left_over, a_hat, gradient = np.array(rows)[:, 0], np.array(rows)[:, 1:4], np.array(rows)[:, 4:]
before, after = np.sqrt(np.mean(seen[-400:] ** 2)), np.sqrt(np.mean(left_over[-400:] ** 2))
print(f"unexplained in the last 8 s: {before:.2f} N·m by the model, {after:.2f} N·m with the estimates")
assert after < before / 2

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
axes.plot(log["time"][:-1], a_hat, label=["dry friction, N·m", "viscous friction, N·m·s", "payload, N·m"])
axes.axvline(12.0, color="grey", linestyle="--")
axes.set(xlabel="time, s", title="estimates; the payload was picked up at 12 s")
_ = axes.legend()

# %% [markdown]
# ## Where would the gains have gone?
# The gradient is right while θ is near the gains of the log. Its mean says in which direction the cost falls:

# %%
mean = gradient[200:].mean(axis=0)
print(f"mean gradient by log kp {mean[0]:+.4f}, by log kd {mean[1]:+.4f}")
print("higher kp lowers the cost" if mean[0] < 0 else "lower kp lowers the cost")
assert mean[0] < 0  # the recorded gains were too low

# %% [markdown]
# **What a replay does not tell:** where θ would end. The recorded arm never felt the new gains, so its errors do not shrink, and the
# tuner goes on asking for more. For that, simulate with the learned parameters, or go to the robot with
# [the steps in order](../tune-your-own-robot.md).

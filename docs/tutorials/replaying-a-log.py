# %% [markdown]
# # Replaying a log
# You have a recorded run of your robot: measurements, controls and references. Without moving the robot again, you can ask: does the model
# fit? What would the estimator have learned? What would the tuner have done, and how much would the tuner have saved? This tutorial answers
# these questions for an arm with one joint, recorded at 50 Hz for 24 s. After 12 s the arm picked up a payload.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import selftune as st
from selftune import models, policies

here = Path(__file__).parent if "__file__" in globals() else Path.cwd()
examples = here.parents[1] / "examples"
header, *rows = (examples / "arm_log.csv").read_text().splitlines()
print(f"{len(rows)} rows: {header}")
assert len(rows) > 1_000

# %% [markdown]
# ## The loop
# The model has the numbers of the arm's data sheet: a mass, its distance from the joint, and an inertia. The unknown part of a `RobotArm` has a payload,
# viscous and dry friction, and an offset. The policy is the one that made the log: a PD controller that carries the weight of the arm,
# with its gains.

# %%
MASS, LENGTH, INERTIA = 1.2, 0.45, 0.3  # kg, m, kg·m² about the joint
KP, KD = 4.0, 0.6  # N·m/rad, N·m·s/rad

spin = INERTIA - MASS * LENGTH**2
link = models.Link(
    "joint",
    axis=(0.0, 1.0, 0.0),
    mass=MASS,
    center=(0.0, 0.0, -LENGTH),
    inertia=((spin, 0.0, 0.0), (0.0, spin, 0.0), (0.0, 0.0, spin)),
)
frequency = (KP / INERTIA) ** 0.5
loop = st.Loop(
    models.RobotArm(models.RigidBody((link,), tool_position=(0.0, 0.0, -0.5)), torque_limits=12.0, dt=0.02, lag=0.008),
    policies.GravityPD(frequency=frequency, damping=KD / (2 * frequency * INERTIA)),
    noise=[2e-4, 2e-3, 1e-3],
)

# %% [markdown]
# ## The mapping
# A TOML file says where the signals of the loop are in the log, and in which units. The loop measures angle, rate and torque. The drive
# reports no torque, so the mapping filters the command with the lag of the motor.

# %%
mapping = (examples / "arm_log.toml").read_text()
print(mapping)
assert "[[measurement]]" in mapping

# %% [markdown]
# ## The replay
# One call. The same from the shell: `selftune replay arm_log.csv --loop replay_log.py:loop --map arm_log.toml --out results/arm`.

# %%
replayed = st.replay(loop, examples / "arm_log.csv", examples / "arm_log.toml")
print(replayed)
assert replayed.ok

# %% [markdown]
# ## Does the model fit?
# The row *model* says how well the model predicts, with the parameters that it begins with. Over time:


# %%
def smoothed(rows, steps=25):
    return np.sqrt(np.convolve(rows**2, np.ones(steps) / steps, "same"))


figure, axes = plt.subplots(figsize=(7, 2.8))
axes.semilogy(replayed.time[1:], smoothed(replayed.mismatch[:, 1]), label="first parameters")
axes.semilogy(replayed.time[1:], smoothed(replayed.mismatch_learned[:, 1]), label="with the estimator")
axes.axvline(12.0, color="grey", linestyle="--")
axes.set(xlabel="time, s", title="error of the rate one step ahead, rad/s; payload at 12 s")
_ = axes.legend()
last = slice(-400, None)
assert np.std(replayed.mismatch_learned[last, 1]) < np.std(replayed.mismatch[last, 1]) / 2

# %% [markdown]
# ## What would the estimator have learned?
# Each estimate at time t used only the log up to t. The recording had 0.3 N·m of dry friction, and 0.4 kg from 12 s on. The estimator
# finds the payload, but only 0.2 N·m of the friction: the model takes the friction from the wanted rate, and with the low gains of this log
# the arm moved later than wanted. An arm that tracks well gives a better estimate.

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
axes.plot(replayed.time, replayed.a_hat, label=loop.names["a_hat"])
axes.axvline(12.0, color="grey", linestyle="--")
axes.set(xlabel="time, s", title="estimates")
_ = axes.legend()
payload, _, dry, _ = replayed.a_hat[-1]
assert 0.3 < payload < 0.5 and 0.1 < dry < 0.3

# %% [markdown]
# ## What would the tuner have done and saved?
# The replay infers the disturbances from the log, and simulates the model with them: with the logged gains, and as an agent that learns.
# With the logged gains, the simulation must give the log again; otherwise the loop's policy is not the one that made the log.

# %%
print(f"the simulation with the logged gains differs from the log by {100 * replayed.reproduction:.2f} % of the motion")
print(f"predicted saving of the agent during the log: {replayed.saving}")
assert replayed.reproduction < 0.01 and replayed.saving.low > 0.3

figure, axes = plt.subplots(figsize=(7, 2.8))
for name, path in replayed.gains.items():
    axes.semilogy(replayed.time, path, label=name)
axes.set(xlabel="time, s", title="natural frequency (rad/s) and damping of the agent")
_ = axes.legend()

# %% [markdown]
# ## Start gains
# The suggested gains are constant gains for the same controller. Their saving is measured on the half of the log that they were not
# chosen on.

# %%
for name, gain in loop.gains(replayed.start_theta).items():
    print(f"{name}: {loop.gains(replayed.theta)[name][0]:.2f} in the log, {gain[0]:.2f} suggested")
print(f"predicted saving of constant gains: {replayed.start_saving}")
assert loop.gains(replayed.start_theta)["frequency"][0] > 2 * frequency  # the recorded gains were too low

# %% [markdown]
# **A replay does not show how the robot behaves outside the log.** The prediction is as good as the model with the inferred
# disturbances. The interval covers the variation over time, but not the errors of the model:
# [how the saving is predicted](../replay-a-log.md#how-the-saving-is-predicted) explains why. Next:
# [commission the loop](../commissioning.md) on the robot, with an emergency stop within reach.

# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # A self-tuning PID on a motor
# A DC motor turns a load. You know the motor from its data sheet, but not the load: its inertia is twice what you believe, and a
# constant torque pulls at the shaft. You start with cautious gains. At the end of this tutorial the loop has found better gains
# on the true motor, and you have checked the margins of these gains on the model and on the true motor.

# %%
import matplotlib.pyplot as plt
import numpy as np

import selftune as st
from selftune import models, policies

data_sheet = dict(resistance=1.0, torque_constant=0.05, rotor_inertia=1e-4, dt=0.01)
believed = models.DCMotor(**data_sheet, load_inertia=1e-3)
true = models.DCMotor(**data_sheet, load_inertia=2e-3)

# %% [markdown]
# ## The loop
# The model is the motor that you *believe* in. The controller never sees the true one. `Tracking` says what is good: an error of the
# size of the output's scale costs 1. The scales come from the model; here the motor's speed at its rated voltage.

# %%
loop = st.Loop(
    plant=believed,
    policy=policies.PID(kp=0.02, ki=0.02, u_min=-24.0, u_max=24.0),
    cost=st.Tracking(error=1.0, effort=0.001),
    reference=st.references.Square(8.0, low=0.0, high=100.0),  # rad/s
)
print(believed.outputs[0], believed.controls[0], sep="\n")
assert believed.outputs[0].unit == "rad/s"

# %% [markdown]
# ## Tune on the true motor
# `plant=true` replaces the plant of the simulation. On a real motor, you would call `loop.agent()` instead, and send its controls.

# %%
scenario = loop.scenario(steps=8_000, seed=1, plant=true)  # the reference, the load torque and the noise of the sensor
run = loop.simulate(scenario=scenario, plant=true)
first, last = (loop.gains({name: value[row] for name, value in run.theta.items()}) for row in (0, -1))
print(f"kp from {first['kp']:.3f} to {last['kp']:.3f}, ki from {first['ki']:.3f} to {last['ki']:.3f}")
print(f"mean cost {run.cost[:800].mean():.4f} in the first period, {run.cost[-800:].mean():.4f} in the last")
assert last["kp"] > 2 * first["kp"]
assert run.cost[-800:].mean() < 0.5 * run.cost[:800].mean()

# %%
time = np.arange(8_000) * loop.plant.dt
figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 4.5), sharex=True)
upper.plot(time, run.reference[:, 0], "--", color="grey", label="reference")
upper.plot(time, run.measured[:, 0], label="speed, rad/s")
for name in ("kp", "ki"):
    lower.plot(time, np.exp(run.theta[f"log_{name}"]), label=name)
lower.set(yscale="log", xlabel="time, s")
_ = upper.legend(), lower.legend()

# %% [markdown]
# The guard limits how fast the gains rise: on average, θ moves by at most a tenth of its range in a period of the reference. So you can watch
# the effect of each change before the next one.
#
# ## Are the new gains safe?
# A tuner lowers the cost and does not look at margins. So look at the margins yourself. They say how far the loop is from instability:
#
# - `gain ×… up`: so many times higher may the loop gain be. `×0 down`: lower gains are also stable.
# - `delay`: so much more dead time, in seconds, may the loop have.
# - `phase`: so much more phase lag, in degrees.

# %%
before, after = loop.margins(), loop.margins({name: value[-1] for name, value in run.theta.items()})
print("before:", before)
print("after: ", after)
assert after.gain_margin > 2.0 and after.phase_margin > 45.0

# %% [markdown]
# If a margin is too small for your plant, put the delay that you know into the model (`models.Delayed`), or lower the upper bound of the
# gains. `loop.back_off(theta)` lowers gains that are too high: until the gain margin is 2 and the phase margin is 30°.
#
# These margins hold for the model. For another plant, make a loop with this plant and the same policy. Here it is the true motor. On a real
# plant, take the worst plant that you can imagine: more gain, more delay.

# %%
tuned = {name: value[-1] for name, value in run.theta.items()}
on_true = st.Loop(true, loop.policy).margins(tuned)
on_delayed = st.Loop(models.Delayed(true, samples=5), loop.policy).margins(tuned)
print("on the true motor:            ", on_true)
print("with 50 ms more delay as well:", on_delayed)
assert on_true.gain_margin > 2.0 and on_true.phase_margin > 45.0
assert on_delayed.is_stable

# %% [markdown]
# ## What did the estimator learn?
# The load pulls with a torque that changes in the middle of the run. The estimate follows this torque. The true inertia is larger than that
# of the model, so each acceleration needs more torque than the model expects. The estimator takes the difference for a load, so the estimate
# moves at each step of the reference.

# %%
late = np.asarray(run.a_hat[-400:, 0])
truth = float(scenario.a_star[-1, 0])
print(f"load torque {truth:.4f} N·m, estimated {np.median(late):.4f} N·m")
assert abs(np.median(late) - truth) < 0.2 * abs(truth) + 0.005

# %% [markdown]
# ## Next
# - For your own plant, [a recorded step gives a model](../recipes.md#your-plant-in-three-numbers).
# - On a real motor, let [commissioning](../commissioning.md) check the loop first.
# - [Common loops](../recipes.md) has delays, filters, rate limits and cascades.
# - [From Python to a microcontroller](python-to-microcontroller.py) exports this loop as C.

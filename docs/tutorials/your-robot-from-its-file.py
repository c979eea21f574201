# %% [markdown]
# # Your robot from its file
# You have a robot arm and its URDF or MJCF file. This tutorial goes from the file to tuned gains, a report and C. It uses a small arm
# with two joints, whose file stands below; put your own file in its place, and remove the lines with `assert`, which check the numbers
# of this arm. You need `pip install 'selftune[experiments,robots]'` and a C compiler.
#
# ## The file
# A URDF names the links with their masses and inertias, and the joints with their axes and limits. selftune reads these numbers, and needs
# no meshes.

# %%
import logging
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import selftune as st
from selftune import models, policies
from selftune.robots.file_arm_plant import FileArmPlant

folder = Path(tempfile.mkdtemp())
urdf = """<robot name="arm">
  <link name="base"/>
  <joint name="shoulder" type="revolute"><origin xyz="0 0 0.5"/><parent link="base"/><child link="upper"/>
    <axis xyz="0 1 0"/><limit lower="-2" upper="2" effort="30" velocity="3"/></joint>
  <link name="upper"><inertial><origin xyz="0 0 -0.2"/><mass value="1.5"/>
    <inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.002"/></inertial></link>
  <joint name="elbow" type="continuous"><origin xyz="0 0 -0.4"/><parent link="upper"/><child link="fore"/>
    <axis xyz="0 1 0"/><limit effort="15" velocity="3"/></joint>
  <link name="fore"><inertial><origin xyz="0 0 -0.15"/><mass value="0.9"/>
    <inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.001"/></inertial></link>
  <joint name="flange" type="fixed"><origin xyz="0 0 -0.3"/><parent link="fore"/><child link="tool0"/></joint>
  <link name="tool0"/>
</robot>"""
(folder / "arm.urdf").write_text(urdf)

# %% [markdown]
# ## Read it
# Check the result before you go on: the joints, the torque limits, and the notes, which name every part that was left out.

# %%
robot = models.RobotArm.from_file(folder / "arm.urdf")
for link, limit, low, high in zip(robot.body.links, robot.torque_limits, robot.low, robot.high, strict=True):
    print(f"{link.name}: {link.kind}, ±{limit:g} N·m, from {low:g} to {high:g} rad, {link.mass:g} kg")
print("notes:", robot.notes or "none")
print("unknown:", ", ".join(f"{parameter.name} ({parameter.unit})" for parameter in robot.parameters))
assert robot.joints == 2 and robot.torque_limits == (30.0, 15.0) and robot.notes == ()

# %% [markdown]
# The last line lists the numbers that no file contains: the payload at the tool, and the friction and the offset of each joint. The
# estimator learns them while the arm runs. `robot.states` names the parts of a measurement: positions, rates, torques.
#
# ## The loop
# `ComputedTorque` makes each joint move like a mass on a spring with a damper. Its gains are a natural frequency (rad/s) and a damping
# ratio for each joint. Here the frequencies are low and the joints swing. Everything else (the path, the cost, the scales, the bounds of the
# gains) comes from [rules](../robots-from-files.md#the-rules), and each can be given instead.

# %%
loop = st.Loop(robot, policies.ComputedTorque(frequency=15.0, damping=0.5))
first = loop.gains(loop.theta)
print("gains:  ", {name: np.round(np.asarray(value), 2).tolist() for name, value in first.items()})
print("margins:", loop.margins())
assert loop.margins().gain_margin > 2.0

# %% [markdown]
# ## A robot to learn on
# Before your real robot, let the loop learn on a simulated one that *differs* from the model. `FileArmPlant` builds it in MuJoCo
# from the same file: its links are up to 12 % heavier, its motors 25 % slower, it has friction, noise, a delay of one period,
# and a payload, which grows from 0.05 kg to 0.25 kg during the run.

# %%
plant = FileArmPlant(
    robot, seed=0, payload=(0.05, 0.25), payload_step=10_000
)  # from 0.05 to 0.25 kg after 10,000 steps
print("measurement:", np.round(plant.measure(), 3), "= positions, rates, torques")
assert plant.measure().shape == (3 * robot.joints,)

# %% [markdown]
# Your real robot needs the same two methods: `measure()`, and `step(u)`, which sends the torques, waits for the next sample and returns
# its measurement.
#
# ## Commission
# [Commissioning](../commissioning.md) checks the model, makes a dry run on the plant without learning, and sets the guard. It ends with
# a decision: go or no-go.

# %%
logging.getLogger("selftune").setLevel(logging.ERROR)  # the guard reports each unusual step; the counts come below
commissioned = st.commission(loop, FileArmPlant(robot, seed=0, payload=(0.05, 0.05)), seed=0)
print(commissioned)
assert commissioned.ok

# %% [markdown]
# ## Learn
# Call `act` once in each control period. The reference of a step has the wanted positions, rates and accelerations. The run has 20,000
# steps, which are 40 s.

# %%
steps, lap = 20_000, round(loop.reference.period(robot.dt))
scenario = loop.scenario(steps=steps, seed=0)
wanted = np.asarray(scenario.t.reference)
agent = commissioned.agent()
measured, error, gains, decisions = plant.reset(), [], [], {}
for t in range(steps):
    error.append(plant.truth[: robot.joints] - wanted[t, : robot.joints])
    if t % 50 == 0:
        gains.append(np.concatenate([loop.gains(agent.theta)[name] for name in ("frequency", "damping")]))
    measured = plant.step(agent.act(measured, reference=wanted[t]))
    for decision in str(agent.decisions).split(", ") if agent.decisions else []:
        decisions[decision] = decisions.get(decision, 0) + 1
error, gains = np.degrees(error), np.array(gains)
before, after = (np.sqrt(np.mean(np.square(part))) for part in (error[:lap], error[-lap:]))
print(f"error {before:.2f}° in the first lap, {after:.2f}° in the last")
print("the guard's decisions:", decisions)
assert after < 0.7 * before and after < 0.15

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
names = [link.name for link in robot.body.links]
axes[0].plot(np.arange(steps) * robot.dt, error, label=names)
axes[1].plot(np.arange(0, steps, 50) * robot.dt, gains[:, : robot.joints], label=names)
axes[2].plot(np.arange(0, steps, 50) * robot.dt, gains[:, robot.joints :], label=names)
for axis, title in zip(axes, ("error, degrees", "natural frequency, rad/s", "damping ratio"), strict=True):
    axis.set(title=title, xlabel="time, s")
_ = axes[0].legend()

# %% [markdown]
# ## Look at the margins
# The tuner lowers the cost, and does not look at stability margins. Compare the margins of the tuned gains with those of the start. The
# delay margin is the delay, beyond those in the model, at which the model becomes unstable. `back_off` looks for gains nearby that have
# a gain margin of 2 and a phase margin of 30°. Put these on a real robot first.

# %%
print("tuned:       ", loop.margins(agent.theta))
safe = loop.back_off(agent.theta)
print("with margins:", loop.margins(safe))
print({name: np.round(np.asarray(value, float), 2).tolist() for name, value in loop.gains(safe).items()})
assert loop.margins(safe).gain_margin >= 2.0 and loop.margins(safe).phase_margin >= 30.0

# %% [markdown]
# The payload is not in the file, but the estimator finds it. The estimate is above the true 0.25 kg, because the links are also
# heavier than the file says:

# %%
learned = dict(zip([parameter.name for parameter in robot.parameters], np.asarray(agent.a_hat), strict=True))
for name, value in learned.items():
    print(f"{name:16s} {float(value):6.3f}")
assert 0.2 < learned["payload"] < 0.4

# %% [markdown]
# ## The report
# `commissioned.report` writes a page with the checks and the dry runs. The command `selftune tune arm.urdf --export -o results/arm`
# does all steps of this tutorial at once, with a payload that grows, and its report adds the errors, the gains over time, the margins and
# a video.

# %%
page = commissioned.report(folder / "report")
print(page.name, [path.name for path in sorted(page.parent.iterdir())])
assert page.exists()

# %% [markdown]
# ## C
# The controller as C99 in `float`, with the gains with margins and the learned parameters as its start. `arm.h` names each number of the
# measurement, of the reference and of the control.
# [From Python to a microcontroller](python-to-microcontroller.py) compiles such a folder and compares it with Python.

# %%
exported = loop.export_c(
    folder / "arm",
    controller=commissioned.controller,
    guard=commissioned.guard,
    theta=safe,
    a_hat=agent.a_hat,
)
print(*sorted(path.name for path in exported.iterdir()))
assert "arm_act(" in (exported / "arm.h").read_text()

# %% [markdown]
# ## On the real robot
# 1. Set `safe_u` first: with the default, a failed sensor ends in a torque of 0, and the arm falls
#    ([robots from files](../robots-from-files.md#the-same-in-python)).
# 2. Replace `plant` by an object with `measure` and `step` of your robot, and commission again. Start with the gains with margins:
#    `st.commission(loop, your_robot, theta=safe)`.
# 3. Hold the gains for the first laps: `agent.pause()`. Then `agent.resume()`.
# 4. Keep an emergency stop within reach that does not depend on this software. [Safety](../safety.md) lists the promises of the guard, and
#    their limits.
# 5. [Watch the agent](../watch-an-agent.md) while it learns.
# 6. `agent.save("arm.npz")` writes the gains and the learned parameters; [saving and resuming](../recipes.md#saving-and-resuming) shows how
#    to continue.
#
# ## Next
# - [From a URDF to a tuned arm and its C](../robots-from-files.md): the parts of a file, every rule, paths of the tool, other policies.
# - [Your own four functions](your-own-four-functions.py): a robot without a file, or one that flies or drives.

# %% [markdown]
# # From Python to a microcontroller
# The controller that you tuned in Python also runs on a microcontroller. selftune writes its step as C99 in `float`. The C uses no heap and no
# global variables, and a step takes a fixed time. This tutorial exports a loop, compiles the C on your own machine, and checks that the C
# computes the same numbers.

# %%
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import selftune as st
from selftune import models, policies

loop = st.Loop(
    plant=models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01),
    policy=policies.PID(kp=0.5, ki=0.5, u_min=-10.0, u_max=10.0),
)

# %% [markdown]
# ## Export
# The name of the folder becomes the name of the C functions.

# %%
folder = Path(tempfile.mkdtemp())
exported = loop.export_c(folder / "heater")
names = sorted(path.name for path in exported.iterdir())
print(*names, sep="\n")
assert {"heater.c", "heater.h", "main.c", "README.md"} <= set(names)

# %% [markdown]
# - `heater.h` has the interface.
# - `heater.c` has the step.
# - `main.c` replays a recorded run.
# - `README.md` lists the operations and the bytes of a step.
#
# These are the functions that your firmware calls:

# %%
header = (exported / "heater.h").read_text()
calls = re.findall(r"^(?:int|void) heater_\w+\(.*?\);", header, flags=re.DOTALL | re.MULTILINE)
print(*calls, sep="\n")
assert any("heater_act" in call for call in calls)

# %% [markdown]
# ## Compile and compare
# Any C99 compiler will do; for a Cortex-M4F you would call `arm-none-eabi-gcc` with the same files. The program replays 200 recorded
# steps and prints the largest difference to Python.

# %%
compiler = shutil.which("cc") or shutil.which("gcc")
if compiler:
    build = [compiler, "-std=c99", "-O2", "-ffp-contract=off", "heater.c", "main.c", "-lm", "-o", "replay"]
    subprocess.run(build, cwd=exported, check=True)
    done = subprocess.run(["./replay"], cwd=exported, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0

# %% [markdown]
# A return code of 0 means that every number agrees and that a measurement of NaN was refused.
#
# ## In your firmware
# Call `heater_init` once. In the timer interrupt, call `heater_observe_state` with the new measurement, and then `heater_act`. The context has the
# reference of this step:

# %%
firmware = """
#include "heater.h"

float read_sensor(void), wanted_output(void);
void send(float);

static heater_state state;
static heater_context now; /* the number of the step, and the reference */

void setup(void) { heater_init(&state); }

void every_10_ms(void)
{
    float measured[HEATER_Q] = {read_sensor()}, u[HEATER_M];
    now.reference[0] = wanted_output();
    heater_observe_state(&state, measured); /* learn from the last step; before the first act this does nothing */
    int code = heater_act(&state, measured, &now, u, 0);
    now.step++;
    send(u[0]); /* always finite and inside the limits; code tells why a measurement was refused */
    (void)code;
}
"""
(exported / "firmware.c").write_text(firmware)
if compiler:
    subprocess.run([compiler, "-std=c99", "-Wall", "-Werror", "-c", "firmware.c"], cwd=exported, check=True)

# %% [markdown]
# `HEATER_Q` is the number of measured values, and `HEATER_M` the number of controls. The C starts as `loop.agent()` does. If the plant runs when the
# firmware starts, give the policy `u_start=…` before you export: the integral then starts there.
#
# The struct has no lock: call its functions from one interrupt, or protect them yourself. `heater_pause`, `heater_freeze`, `heater_resume` and
# `heater_restore` do the same as the methods of the agent.
#
# ## What does it cost?
# [C for a microcontroller](../export/c.md#what-it-costs) has the measured instructions on an emulated Cortex-M4F. Parts of the guard that are switched
# off (`loop.guard(rollback=None)`) take no time and no memory.
#
# Next: [Arduino, ROS 2, PX4, Crazyflie and FMU](../export/index.md) for other targets, and [safety](../safety.md) before the machine moves.

# %%
shutil.rmtree(folder)

"""How `arm_log.csv` was made: an arm of one joint in MuJoCo, which `replay_log.py` knows nothing about.

1 kg at the end of a rod of 0.5 m and 0.2 kg, dry and viscous friction in the joint, a payload of 0.4 kg from 12 s on,
noise on what is measured; under a PD controller with gravity compensation, whose gains are low. 50 Hz, 24 s.

    .venv/bin/python examples/record_log.py > examples/arm_log.csv
"""

# MuJoCo's names come from C++, where pyright does not see them.
# pyright: reportAttributeAccessIssue=false

import mujoco
import numpy as np

XML = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body>
      <joint name="joint" axis="0 1 0" damping="0.15" frictionloss="0.3"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.01" mass="0.2" contype="0"/>
      <body name="load" pos="0 0 -0.5"><geom type="sphere" size="0.03" mass="1.0" contype="0"/></body>
    </body>
  </worldbody>
  <actuator><motor joint="joint" ctrlrange="-12 12" ctrllimited="true"/></actuator>
</mujoco>
"""

if __name__ == "__main__":
    model = mujoco.MjModel.from_xml_string(XML)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    print("time,target,target_rate,angle,rate,torque")
    for k in range(1200):
        time = 0.02 * k
        target, target_rate = 0.7 * np.sin(1.3 * time), 0.7 * 1.3 * np.cos(1.3 * time)
        angle, rate = data.qpos[0] + 2e-4 * rng.normal(), data.qvel[0] + 2e-3 * rng.normal()
        torque = 4.0 * (target - angle) + 0.6 * (target_rate - rate) + 1.2 * 9.81 * 0.45 * np.sin(angle)
        print(f"{time:.2f},{target:.4f},{target_rate:.4f},{angle:.4f},{rate:.4f},{torque:.4f}")
        if k == 600:
            model.body("load").mass[0] += 0.4
            mujoco.mj_setConst(model, mujoco.MjData(model))
        data.ctrl[0] = torque
        mujoco.mj_step(model, data, nstep=10)

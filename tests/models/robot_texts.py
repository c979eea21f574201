"""Small robots as MJCF and URDF texts, written for the tests, with the oddities that real files have."""

NESTED = """<mujoco model="nested">
  <compiler angle="degree" eulerseq="ZYX"/>
  <option gravity="0.5 -0.3 -9.0"/>
  <default><joint damping="0.3" armature="0.02"/><geom density="400"/></default>
  <worldbody>
    <frame pos="0.1 0 0.2" euler="0 30 0">
      <body name="base" pos="0 0 0.3">
        <geom type="box" size="0.1 0.1 0.1"/>
        <body name="one" pos="0 0 0.1" euler="10 20 30">
          <joint name="turn" axis="0 0 1" range="-120 120"/>
          <inertial pos="0.02 0.01 0.1" quat="0.9 0.1 -0.3 0.2" mass="2.5" diaginertia="0.02 0.03 0.04"/>
          <body name="welded" pos="0.05 0.02 0.1" euler="0 90 0">
            <geom type="capsule" size="0.03" fromto="0 0 0 0 0.1 0.2"/>
            <body name="two" pos="0 0.1 0.2">
              <joint name="push" type="slide" axis="0.6 0 0.8" range="-0.2 0.3" ref="0.05" stiffness="20"
                springref="0.1"/>
              <joint name="swing" axis="1 0.2 0" pos="0.01 0.02 0.03" ref="25" range="-90 90"/>
              <geom type="sphere" size="0.05" pos="0.1 0 0"/>
              <body name="tip" pos="0.2 0 0"><geom type="sphere" size="0.02"/><site name="tcp" pos="0 0 0.1"/></body>
            </body>
          </body>
          <body name="branch" pos="-0.1 0 0.1"><joint name="side" axis="0 1 0"/><geom type="sphere" size="0.06"
            pos="0 0 0.2"/></body>
        </body>
      </body>
    </frame>
  </worldbody>
  <actuator>
    <position joint="turn" kp="50" forcerange="-40 40"/>
    <motor joint="push" gear="20" ctrlrange="-2 2" ctrllimited="true"/>
    <general joint="swing" gainprm="3" ctrlrange="-4 4" ctrllimited="true" forcelimited="true" forcerange="-9 9"
      dyntype="filterexact" dynprm="0.012"/>
    <velocity joint="side" kv="1" forcerange="-5 5"/>
  </actuator>
</mujoco>"""
"""Frames, degrees, Euler angles, two joints in one body, a slide, a branch, welded bodies, rotated inertias, masses
from shapes, a spring, four kinds of actuators, and gravity that is not along z."""

ARM_URDF = """<robot name="planar">
  <link name="base"><visual><geometry><mesh filename="package://nowhere/base.dae"/></geometry></visual></link>
  <joint name="shoulder" type="revolute"><origin xyz="0 0 0.5" rpy="0 0 0"/><parent link="base"/><child link="upper"/>
    <axis xyz="0 1 0"/><limit lower="-2" upper="2" effort="30" velocity="3"/><dynamics damping="0.2" friction="0.1"/>
  </joint>
  <link name="upper"><inertial><origin xyz="0.01 0 -0.2" rpy="0.1 0.2 0.3"/><mass value="1.5"/>
    <inertia ixx="0.02" ixy="0.001" ixz="0" iyy="0.021" iyz="0.0005" izz="0.004"/></inertial>
    <collision><geometry><mesh filename="package://nowhere/upper.stl"/></geometry></collision></link>
  <joint name="elbow" type="continuous"><origin xyz="0 0 -0.4" rpy="0 0 1.5707963267948966"/><parent link="upper"/>
    <child link="fore"/><axis xyz="1 0 0"/><limit effort="15" velocity="3"/></joint>
  <link name="fore"><inertial><origin xyz="0 0 -0.15" rpy="0 0 0"/><mass value="0.9"/>
    <inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.002"/></inertial></link>
  <joint name="flange" type="fixed"><origin xyz="0 0 -0.3" rpy="0 0 0"/><parent link="fore"/><child link="tool0"/>
  </joint>
  <link name="tool0"/>
  <joint name="left" type="prismatic"><parent link="tool0"/><child link="left_finger"/><axis xyz="0 1 0"/>
    <limit lower="0" upper="0.04" effort="5" velocity="1"/></joint>
  <link name="left_finger"><inertial><mass value="0.05"/>
    <inertia ixx="1e-5" ixy="0" ixz="0" iyy="1e-5" iyz="0" izz="1e-5"/></inertial></link>
  <joint name="right" type="prismatic"><parent link="tool0"/><child link="right_finger"/><axis xyz="0 -1 0"/>
    <limit lower="0" upper="0.04" effort="5" velocity="1"/><mimic joint="left"/></joint>
  <link name="right_finger"><inertial><mass value="0.05"/>
    <inertia ixx="1e-5" ixy="0" ixz="0" iyy="1e-5" iyz="0" izz="1e-5"/></inertial></link>
</robot>"""
"""Meshes that do not exist, a continuous joint, a tool without a mass, and fingers that mimic each other."""

TWO_LINKS = """<mujoco model="two links">
  <compiler angle="radian"/>
  <worldbody><body name="upper" pos="0 0 1"><joint name="shoulder" axis="0 -1 0" range="-2.5 2.5" armature="0.1"/>
    <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.4" mass="1.5"/>
    <body name="fore" pos="0 0 -0.4"><joint name="elbow" axis="0 -1 0" range="-2.5 2.5" armature="0.05"/>
      <geom type="capsule" size="0.025" fromto="0 0 0 0 0 -0.35" mass="1"/>
      <site name="tool" pos="0 0 -0.35"/></body></body></worldbody>
  <actuator><motor joint="shoulder" ctrlrange="-20 20"/><motor joint="elbow" ctrlrange="-10 10"/></actuator>
  <keyframe><key name="folded" qpos="1 1"/><key name="home" qpos="0.6 0.8"/></keyframe>
</mujoco>"""

"""A quadrotor of `selftune.robots` with a payload: a video of a lap with its first gains, and of one after tuning.

MuJoCo simulates both flights, with lags, noise and a delay that the model does not know, and draws them off screen.
Before this lap, the quadrotor flew for 20 s without and for 16 s with the payload.
"""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false

import itertools
import logging

import mujoco
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import selftune as st
from selftune.robots import quadrotor
from selftune.robots.base import drive

from .svg import FIGURES

LAPS, FRAMES, WIDTH, HEIGHT = 10, 64, 720, 405
COLOURS = {"with the first gains": (0.85, 0.38, 0.10), "tuned": (0.10, 0.42, 0.82)}
DRONE = """<body name="{name}" mocap="true"><geom type="box" size="0.032 0.024 0.012" rgba="{colour} 1"/>
  <geom type="capsule" size="0.008" fromto="-0.065 -0.065 0 0.065 0.065 0" rgba="0.15 0.16 0.18 1"/>
  <geom type="capsule" size="0.008" fromto="-0.065 0.065 0 0.065 -0.065 0" rgba="0.15 0.16 0.18 1"/>
  <geom type="cylinder" size="0.046 0.002" pos="0.065 0.065 0.02" rgba="{colour} 0.6"/>
  <geom type="cylinder" size="0.046 0.002" pos="-0.065 0.065 0.02" rgba="{colour} 0.6"/>
  <geom type="cylinder" size="0.046 0.002" pos="0.065 -0.065 0.02" rgba="{colour} 0.6"/>
  <geom type="cylinder" size="0.046 0.002" pos="-0.065 -0.065 0.02" rgba="{colour} 0.6"/></body>"""
SCENE = """<mujoco><visual><global offwidth="{width}" offheight="{height}" fovy="38"/>
    <headlight ambient="0.6 0.6 0.6" diffuse="0.3 0.3 0.3" specular="0 0 0"/><map znear="0.02" zfar="60"/></visual>
  <asset><texture type="skybox" builtin="gradient" rgb1="0.97 0.98 1" rgb2="0.80 0.86 0.93" width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1="0.90 0.91 0.93" rgb2="0.86 0.87 0.90" width="64"
      height="64"/><material name="floor" texture="floor" texrepeat="2 2" texuniform="true" specular="0"/></asset>
  <worldbody><light pos="0 0 5" dir="0 0 -1" diffuse="0.3 0.3 0.3"/>
    <geom type="plane" size="8 8 0.1" pos="0 0 -0.9" material="floor"/>{drones}</worldbody></mujoco>"""


def flights() -> dict[str, np.ndarray]:
    """The true states of the last lap with each tuner, (lap, 16)."""
    logging.getLogger("selftune").setLevel(logging.ERROR)  # the guard limits the first steps
    robot = quadrotor.make()
    steps, found = LAPS * robot.lap, {}
    for name, tuner in zip(COLOURS, (st.Fixed(), st.GaussNewton(constraint=robot.theta_box)), strict=True):
        plant = robot.make_plant("payload", 0, steps)
        controller = robot.controller(tuner, st.AutoEstimator(constraint=robot.a_box))
        agent = st.Agent(
            controller, x=plant.reset(), theta=robot.detuned(0.25), a_hat=robot.a_hat, guard=st.Guard(**robot.guard)
        )
        made = drive(robot, agent, plant, steps, stride=100)
        if made.crashed:
            raise RuntimeError(f"the quadrotor {name} crashed")
        found[name] = made.x[-robot.lap :]
    return found


def draw(found: dict[str, np.ndarray]) -> None:
    """Write quadrotor-flight.webp: both quadrotors in one scene, with the wanted path and the paths flown."""
    size = np.array(quadrotor.SIZE)
    wanted = size * np.sin(np.linspace(0, 2 * np.pi, 161)[:, None] * np.array([1, 2, 1]))
    drones = "".join(
        DRONE.format(name=name, colour=" ".join(f"{part:g}" for part in colour)) for name, colour in COLOURS.items()
    )
    model = mujoco.MjModel.from_xml_string(SCENE.format(width=WIDTH, height=HEIGHT, drones=drones))
    data = mujoco.MjData(model)
    camera = mujoco.MjvCamera()
    camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = (0.0, 0.0, -0.2), 2.7, 108, -34
    rows = np.linspace(0, quadrotor.LAP - 1, FRAMES + 1).astype(int)[1:]
    errors = {name: 100 * rms(states[:, :3], size) for name, states in found.items()}
    frames = []
    with mujoco.Renderer(model, HEIGHT, WIDTH, max_geom=2_000) as renderer:
        for row in rows:
            for name, states in found.items():
                body = model.body(name).mocapid[0]
                data.mocap_pos[body] = states[row, :3]
                angle = np.linalg.norm(states[row, 6:9])
                mujoco.mju_axisAngle2Quat(data.mocap_quat[body], states[row, 6:9] / max(angle, 1e-12), angle)
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            for start, end in itertools.pairwise(wanted[::2]):
                tube(renderer.scene, start, end, 0.003, (0.35, 0.37, 0.40))
            for name, states in found.items():
                for start, end in itertools.pairwise(states[max(0, row - 1_000) : row : 25, :3]):
                    tube(renderer.scene, start, end, 0.007, COLOURS[name])
            frames.append(labelled(renderer.render(), errors))
    frames[0].save(
        FIGURES / "quadrotor-flight.webp",
        save_all=True,
        append_images=frames[1:],
        duration=round(1000 * quadrotor.LAP * quadrotor.DT / FRAMES),
        loop=0,
        quality=60,
        method=6,
    )


def rms(path: np.ndarray, size: np.ndarray) -> float:
    """The root mean square distance to the wanted position, in metres."""
    phase = 2 * np.pi * np.arange(len(path))[:, None] / quadrotor.LAP
    return float(np.sqrt(np.mean(np.sum((path - size * np.sin(phase * np.array([1, 2, 1]))) ** 2, axis=1))))


def labelled(picture: np.ndarray, errors: dict[str, float]) -> Image.Image:
    image = Image.fromarray(picture)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(17)
    for line, (name, error) in enumerate(errors.items()):
        colour = tuple(round(200 * part) for part in COLOURS[name])
        pen.text((14, 12 + 24 * line), f"{name}: error {error:.0f} cm", fill=colour, font=font)
    return image


def tube(scene, start: np.ndarray, end: np.ndarray, radius: float, colour: tuple[float, ...]) -> None:
    """Draw a line from one point to another."""
    geom, kind = scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_CAPSULE
    mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), np.array([*colour, 1.0], np.float32))
    mujoco.mjv_connector(geom, kind, radius, np.asarray(start, float), np.asarray(end, float))
    scene.ngeom += 1

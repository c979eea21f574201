"""Pictures of the quadrotor's flight from MuJoCo's offscreen renderer, drawn in a separate process.

Without graphics, some libraries end the process that asks for them. Here that is a child process, which runs this file
alone and needs nothing else of the package.
"""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false
import io
import itertools
import os
import sys
from pathlib import Path

import numpy as np

TIMEOUT = 120.0
"""The time limit of one attempt, in seconds."""
BEFORE, AFTER, WANTED = (0.93, 0.42, 0.18), (0.10, 0.42, 0.82), (0.25, 0.27, 0.30)
WIDTH, HEIGHT = 1600, 900
ENLARGED = 2.0
"""The quadrotor is drawn larger by this factor, once on each path, where the two paths are farthest apart."""


def flight(path_before: np.ndarray, path_after: np.ndarray, file: str | os.PathLike[str]) -> bool:
    """Write a PNG of two flights and the reference; returns whether that succeeded.

    A path is (T, 3), positions, or (T, n), states; for states the attitude is drawn too. The environment variable
    MUJOCO_GL chooses the graphics; if it is not set, EGL and then OSMesa are tried.
    """
    from . import drawing_process
    from .quadrotor import SIZE

    wanted = np.array(SIZE) * np.sin(np.linspace(0, 2 * np.pi, 241)[:, None] * np.array([1, 2, 1]))
    paths = {"before": _path("path_before", path_before), "after": _path("path_after", path_after), "wanted": wanted}
    return drawing_process.draw(__file__, paths, file, timeout=TIMEOUT)


def _path(name: str, path: np.ndarray) -> np.ndarray:
    array = np.asarray(path, float)
    if array.ndim != 2 or len(array) < 2 or array.shape[1] < 3 or not np.all(np.isfinite(array)):
        raise ValueError(f"{name}: expected finite (T, 3) positions or (T, n) states, got shape {array.shape}")
    return array


def _scene_xml() -> str:
    arms = "".join(
        f'<geom type="capsule" size="0.004" fromto="0 0 0 {x * 0.0325} {y * 0.0325} 0" rgba="0.15 0.16 0.18 1"/>'
        f'<geom type="cylinder" size="0.005 0.006" pos="{x * 0.0325} {y * 0.0325} 0.004" rgba="0.15 0.16 0.18 1"/>'
        f'<geom type="cylinder" size="0.023 0.0008" pos="{x * 0.0325} {y * 0.0325} 0.012" rgba="{{rotor}} 0.55"/>'
        for x in (1, -1)
        for y in (1, -1)
    )
    body = arms + '<geom type="box" size="0.016 0.012 0.006" rgba="{rotor} 1"/>'

    def drone(name: str, colour: tuple[float, ...]) -> str:
        drawn = _enlarge(body.replace("{rotor}", " ".join(map(str, colour))))
        return f'<body name="{name}" mocap="true">{drawn}</body>'

    return f"""<mujoco>
  <visual>
    <global offwidth="{WIDTH}" offheight="{HEIGHT}" fovy="38"/>
    <quality shadowsize="4096" offsamples="8"/>
    <headlight ambient="0.62 0.62 0.62" diffuse="0.25 0.25 0.25" specular="0 0 0"/>
    <map znear="0.02" zfar="60"/>
  </visual>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.97 0.98 1" rgb2="0.80 0.86 0.93" width="256" height="256"/>
    <texture name="floor" type="2d" builtin="checker" rgb1="0.90 0.91 0.93" rgb2="0.86 0.87 0.90"
      mark="edge" markrgb="0.80 0.81 0.84" width="512" height="512"/>
    <material name="floor" texture="floor" texrepeat="2 2" texuniform="true" specular="0"/>
  </asset>
  <worldbody>
    <light pos="-0.6 -0.4 5" dir="0.12 0.08 -1" cutoff="60" exponent="0" diffuse="0.3 0.3 0.3" specular="0.1 0.1 0.1"/>
    <geom type="plane" size="8 8 0.1" pos="0 0 -0.55" material="floor"/>
    {drone("before", BEFORE)}{drone("after", AFTER)}
  </worldbody>
</mujoco>"""


def _enlarge(body: str) -> str:
    """The geoms with their sizes and places multiplied by ENLARGED."""
    out = []
    for part in body.split('"'):
        numbers = part.split(" ")
        is_place = bool(out) and any(out[-1].endswith(f" {key}=") for key in ("size", "pos", "fromto"))
        out.append(" ".join(str(ENLARGED * float(n)) for n in numbers) if is_place else part)
    return '"'.join(out)


def _draw(before: np.ndarray, after: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The picture, (height, width, 3) bytes."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(_scene_xml())
    data = mujoco.MjData(model)
    shared = min(len(before), len(after))
    apart = int(np.argmax(np.linalg.norm(before[:shared, :3] - after[:shared, :3], axis=1)))
    for name, path in (("before", before), ("after", after)):
        body = model.body(name).mocapid[0]
        data.mocap_pos[body] = path[apart, :3]
        if path.shape[1] >= 9:
            angle = np.linalg.norm(path[apart, 6:9])
            mujoco.mju_axisAngle2Quat(data.mocap_quat[body], path[apart, 6:9] / max(angle, 1e-12), angle)
    mujoco.mj_forward(model, data)
    camera = mujoco.MjvCamera()
    camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = (0.05, 0.05, -0.22), 2.6, 112, -38
    with mujoco.Renderer(model, HEIGHT, WIDTH, max_geom=20_000) as renderer:
        renderer.update_scene(data, camera)
        for i in range(0, len(wanted) - 1, 2):
            _tube(renderer.scene, wanted[i], wanted[i + 1], 0.004, (*WANTED, 1.0))
        for path, colour in ((before, BEFORE), (after, AFTER)):
            stride = max(1, len(path) // 500)
            points = path[::stride, :3]
            for p, q in itertools.pairwise(points):
                _tube(renderer.scene, p, q, 0.0075, (*colour, 1.0))
        return renderer.render()


def _tube(scene, start: np.ndarray, end: np.ndarray, radius: float, colour: tuple[float, ...]) -> None:
    import mujoco

    if scene.ngeom >= scene.maxgeom:
        return
    geom = scene.geoms[scene.ngeom]
    kind = mujoco.mjtGeom.mjGEOM_CAPSULE
    mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), np.array(colour, np.float32))
    mujoco.mjv_connector(geom, kind, radius, np.asarray(start, float), np.asarray(end, float))
    scene.ngeom += 1


def _write(picture: np.ndarray, file: Path) -> None:
    """Write the picture with a legend."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    figure = plt.figure(figsize=(WIDTH / 160, HEIGHT / 160), dpi=160)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(picture)
    axes.axis("off")
    handles = [
        Line2D([], [], color=WANTED, lw=1.8, ls=(0, (2, 1)), label="reference"),
        Line2D([], [], color=BEFORE, lw=3, label="before tuning"),
        Line2D([], [], color=AFTER, lw=3, label="after tuning"),
    ]
    axes.legend(handles=handles, loc="upper left", fontsize=11, framealpha=0.85, edgecolor="none", borderpad=0.8)
    figure.savefig(file, format="png")


def _main() -> None:
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as paths:
        picture = _draw(paths["before"], paths["after"], paths["wanted"])
    _write(picture, Path(sys.argv[1]))


if __name__ == "__main__":
    _main()

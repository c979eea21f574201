"""A video of a robot from a file before and after tuning, from MuJoCo's offscreen renderer, as an animated GIF.

Without graphics, some libraries end the process that asks for them. So this file also runs alone, as a child process,
and needs nothing else of the package then.
"""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false
import io
import os
import sys
from pathlib import Path

import numpy as np

TIMEOUT = 300.0
"""The time limit of one attempt, in seconds."""
WIDTH, HEIGHT = 480, 420
FRAMES = 60
"""The largest number of pictures in a lap."""


def video(
    text: str,
    before: np.ndarray,
    after: np.ndarray,
    wanted: np.ndarray,
    file: str | os.PathLike[str],
    *,
    seconds: float,
    reach: float,
) -> bool:
    """Write a GIF of two laps side by side, and return whether that succeeded.

    `text` is the robot in MuJoCo's XML; `before`, `after` and `wanted` are positions of its joints, (T, j). The wanted
    motion is drawn as a shadow. The environment variable MUJOCO_GL chooses the graphics; if it is not set, EGL and then
    OSMesa are tried.
    """
    from . import drawing_process

    Path(file).unlink(missing_ok=True)  # a report must not show the video of an earlier run
    count = min(len(before), len(after), len(wanted))
    rows = np.linspace(0, count - 1, min(FRAMES, count)).astype(int)
    arrays = {
        "text": np.frombuffer(_scene(text).encode(), np.uint8),
        "before": before[rows],
        "after": after[rows],
        "wanted": wanted[rows],
        "settings": np.array([seconds / len(rows), reach]),
    }
    return drawing_process.draw(__file__, arrays, file, timeout=TIMEOUT)


def _scene(text: str) -> str:
    """Return the robot's XML with a floor of sky, light and a size of the picture."""
    look = f"""<visual><global offwidth="{WIDTH}" offheight="{HEIGHT}"/>
      <headlight ambient="0.5 0.5 0.5" diffuse="0.4 0.4 0.4" specular="0 0 0"/></visual>
    <asset><texture type="skybox" builtin="gradient" rgb1="0.97 0.98 1" rgb2="0.80 0.86 0.93" width="64" height="64"/>
    </asset><worldbody>"""
    return text.replace("<worldbody>", look, 1)


def _draw(text: str, motions: dict[str, np.ndarray], reach: float) -> list[np.ndarray]:
    """Return the pictures, each (height, 2 · width, 3) bytes."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    places = [model.joint(f"joint{i}").qposadr[0] for i in range(motions["wanted"].shape[1])]
    points = []
    for q in motions["wanted"][::5]:
        data.qpos[places] = q
        mujoco.mj_kinematics(model, data)
        points.append(data.xpos[1:].copy())
    low, high = np.min(points, axis=(0, 1)), np.max(points, axis=(0, 1))
    camera = mujoco.MjvCamera()
    camera.lookat[:] = (low + high) / 2
    camera.distance = 1.6 * max(float(np.linalg.norm(high - low)), reach)
    camera.azimuth, camera.elevation = 120, -15
    colours = {"before": (0.93, 0.42, 0.18, 1), "after": (0.10, 0.42, 0.82, 1)}
    pictures = []
    with mujoco.Renderer(model, HEIGHT, WIDTH) as renderer:
        for row in range(len(motions["wanted"])):
            sides = []
            for name in ("before", "after"):
                model.geom_rgba[:] = colours[name]
                data.qpos[places] = motions[name][row]
                mujoco.mj_forward(model, data)
                renderer.update_scene(data, camera)
                _shadow(renderer.scene, model, motions["wanted"][row], places)
                sides.append(renderer.render().copy())
            pictures.append(np.concatenate(sides, axis=1))
    return pictures


def _shadow(scene, model, q: np.ndarray, places: list[int]) -> None:
    """Draw the wanted position of the links, transparent."""
    import mujoco

    ghost = mujoco.MjData(model)
    ghost.qpos[places] = q
    mujoco.mj_kinematics(model, ghost)
    for i in range(model.ngeom):
        if scene.ngeom >= scene.maxgeom:
            return
        geom = scene.geoms[scene.ngeom]
        colour = np.array([0.2, 0.2, 0.25, 0.25], np.float32)
        mujoco.mjv_initGeom(
            geom, model.geom_type[i], model.geom_size[i], ghost.geom_xpos[i], ghost.geom_xmat[i], colour
        )
        scene.ngeom += 1


def _write(pictures: list[np.ndarray], file: Path, seconds: float) -> None:
    from PIL import Image, ImageDraw

    frames = []
    for picture in pictures:
        image = Image.fromarray(picture)
        pen = ImageDraw.Draw(image)
        pen.text((12, 10), "before tuning", fill=(190, 80, 30))
        pen.text((WIDTH + 12, 10), "after tuning", fill=(20, 80, 170))
        frames.append(image.quantize(96))
    frames[0].save(
        file, format="GIF", save_all=True, append_images=frames[1:], duration=max(20, round(1000 * seconds)), loop=0
    )


def _main() -> None:
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as packed:
        text = packed["text"].tobytes().decode()
        seconds, reach = packed["settings"]
        pictures = _draw(text, {name: packed[name] for name in ("before", "after", "wanted")}, float(reach))
    _write(pictures, Path(sys.argv[1]), float(seconds))


if __name__ == "__main__":
    _main()

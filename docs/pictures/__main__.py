"""Draw all pictures: python -m docs.pictures, or only some of them: python -m docs.pictures gains car-path

The video of the quadrotor needs OpenGL without a screen: EGL (Debian: libegl1), or another one that MUJOCO_GL names.
"""

import os
import sys
from collections.abc import Callable

os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo reads this when it is imported

from . import arm_lap, car_path, data_flow, gains, moving_pid, one_step, quadrotor_flight
from .svg import FIGURES, save


def start_here() -> None:
    figure = moving_pid.loop.plot(moving_pid.runs()[0], fields=["measured", "theta", "cost"])
    figure.savefig(FIGURES / "start-here.png", dpi=80)


def with_data(name: str, compute: Callable, draw: Callable) -> Callable[[], None]:
    """A picture whose data are computed once, and drawn in both themes."""

    def make() -> None:
        found = compute()
        save(name, lambda colours: draw(colours, found))

    return make


PICTURES: dict[str, Callable[[], None]] = {
    "data-flow": lambda: save("data-flow", data_flow.draw),
    "one-step": lambda: save("one-step", one_step.draw),
    "moving-pid": lambda: save("moving-pid", moving_pid.draw),
    "start-here": start_here,
    "gains": with_data("gains", gains.paths, gains.draw),
    "car-path": with_data("car-path", car_path.laps, car_path.draw),
    "arm-lap": with_data("arm-lap", arm_lap.laps, arm_lap.draw),
    "quadrotor-flight": lambda: quadrotor_flight.draw(quadrotor_flight.flights()),
}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(PICTURES)
    if wrong := set(chosen) - set(PICTURES):
        sys.exit(f"unknown: {', '.join(sorted(wrong))}; the pictures are: {', '.join(PICTURES)}")
    for name in chosen:
        PICTURES[name]()

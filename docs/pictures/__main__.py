"""Draw all pictures: python -m docs.pictures"""

from . import car_path, data_flow, gains, moving_pid, one_step
from .svg import FIGURES, save

DRAWINGS = {"data-flow": data_flow.draw, "one-step": one_step.draw}
"""Pictures without data: a test compares the files with them."""

if __name__ == "__main__":
    for name, draw in {**DRAWINGS, "moving-pid": moving_pid.draw}.items():
        save(name, draw)
    found = gains.paths()
    save("gains", lambda colours: gains.draw(colours, found))
    driven = car_path.laps()
    save("car-path", lambda colours: car_path.draw(colours, driven))
    figure = moving_pid.loop.plot(moving_pid.runs()[0], fields=["measured", "theta", "cost"])
    figure.savefig(FIGURES / "start-here.png", dpi=80)

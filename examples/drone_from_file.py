"""A quadrotor from its MJCF file that tunes itself: python drone_from_file.py [drone.xml] [--seconds 40]

Without a file, the program flies a quadrotor of 0.5 kg. The plant in MuJoCo differs from the model, the wind blows with
2 m/s, and halfway the quadrotor takes up a payload of 30 % of its mass.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import numpy as np

import selftune as st
from selftune import models, quadrotor_rules, robot_rules
from selftune.robots.file_quadrotor_plant import FileQuadrotorPlant

jax.config.update("jax_enable_x64", True)

DRONE = """<mujoco model="drone"><worldbody><body name="frame" pos="0 0 0.1"><freejoint/>
  <inertial pos="0 0 0" mass="0.5" diaginertia="0.0025 0.0027 0.0045"/>
  <site name="r1" pos=".11 -.11 0"/><site name="r2" pos="-.11 -.11 0"/>
  <site name="r3" pos="-.11 .11 0"/><site name="r4" pos=".11 .11 0"/></body></worldbody>
  <default><motor ctrlrange="0 3"/></default>
  <actuator><motor site="r1" gear="0 0 1 0 0 .015"/><motor site="r2" gear="0 0 1 0 0 -.015"/>
    <motor site="r3" gear="0 0 1 0 0 .015"/><motor site="r4" gear="0 0 1 0 0 -.015"/></actuator></mujoco>"""


def fly(loop: st.Loop, agent: st.Agent, plant: FileQuadrotorPlant, steps: int) -> np.ndarray:
    """Fly the path of the loop, and return the distance from the path at each step, (T,), in m."""
    path = np.asarray(loop.reference.rows(jax.random.key(0), steps + 1, loop.plant.dt, 12))
    distances, measured = [], plant.reset()
    for t in range(steps):
        distances.append(np.linalg.norm(plant.truth[:3] - path[t, :3]))
        measured = plant.step(agent.act(measured, reference=path[t]))
        if plant.has_crashed(path[t + 1]):
            print(f"crashed after {t * loop.plant.dt:.1f} s")
            break
    return np.array(distances)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", nargs="?", help="an MJCF file with a free body and rotors")
    options.add_argument("--seconds", type=float, default=40.0)
    options.add_argument("--start", type=float, default=0.25, help="the factor on the feedback gains at the start")
    options.add_argument("--wind", type=float, default=2.0, help="in m/s")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--low", type=float, nargs="+", help="the least command of each actuator, if the file is wrong"
    )
    options.add_argument("--high", type=float, nargs="+", help="the largest command of each actuator")
    given = options.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(given.file) if given.file else Path(folder, "drone.xml")
        if not given.file:
            path.write_text(DRONE)
        limits = None if given.high is None else (given.low or 0.0, given.high)
        drone = models.Quadrotor.from_file(path, rotor_limits=limits)
    print(f"{drone.name}: {drone.mass:g} kg, thrust up to {drone.thrust_limit:.3g} N")
    for note in drone.notes:
        print(note)

    loop = st.Loop(drone, quadrotor_rules.geometric(drone))
    start = loop.constraint.project(robot_rules.detuned(loop.theta, given.start))
    agent = loop.agent(theta=start)
    steps = round(given.seconds / drone.dt)
    for learns in (False, True):
        plant = FileQuadrotorPlant(
            drone, given.seed, payload=(0.0, 0.3 * drone.mass), payload_step=steps // 2, wind=given.wind
        )
        agent.reset(x=drone.x0, theta=start, a_hat=loop.a_hat)
        agent.resume() if learns else agent.freeze()
        distances = fly(loop, agent, plant, steps)
        rms = [float(np.sqrt(np.mean(part**2))) for part in np.array_split(distances, 4)]
        name = "learning" if learns else "start gains"
        print(f"{name:12} RMS distance in each quarter, in cm:", *(f"{100 * value:.1f}" for value in rms))
    print("gains:", {name: np.round(gain, 2).tolist() for name, gain in loop.gains(agent.theta).items()})
    print(f"payload: {agent.a_hat[-1]:.3g} kg estimated, {plant.carried + plant.mass - drone.mass:.3g} kg true")


if __name__ == "__main__":
    main()

/** The panel's loop as a Python script. */
import type { Gains, World } from "./simulation";

export function pythonScript(gains: Gains, world: World): string {
  const number = (value: number) => value.toPrecision(6).replace(/\.?0+$/, "") || "0";
  return `"""The PID loop of the playground. Run it after: pip install 'selftune[experiments]'"""

import selftune as st
from selftune import models, policies, references


def motor(inertia):
    return models.Delayed(
        models.DCMotor(
            resistance=1.2,
            torque_constant=0.04,
            rotor_inertia=2e-5 * inertia,
            gear_ratio=20.0,
            load_inertia=0.01 * inertia,
            dt=0.005,
            output="position",
            unknown=(models.Load(bound=2.0), models.Viscous(bound=0.2), models.Coulomb(bound=2.0)),
        ),
        samples=1,
    )


def make():
    """Return the control loop; motor_pid.toml names this function."""
    return st.Loop(
        motor(1.0),
        policies.PID(kp=${number(gains.kp)}, ki=${number(gains.ki)}, kd=${number(gains.kd)}, u_min=-24.0, u_max=24.0),
        st.Tracking(effort=0.01, effort_rate=1e-5),
        references.Steps(hold=1.0, low=-1.5, high=1.5),
        noise=1e-3,
    )


def main():
    loop = make()
    run = loop.simulate(steps=12_000, seed=0, plant=motor(${number(world.inertia)}))
    print(run)
    print({name: round(float(gain), 3) for name, gain in loop.gains(run.final.state.theta).items()})
    loop.plot(run).savefig("motor_pid.png")


if __name__ == "__main__":
    main()
`;
}

/** The loop for `selftune run`, against its own model. */
export function tomlFile(): string {
  return `# selftune run motor_pid.toml
# The playground also gives motor_pid.py, which must lie beside this file. Its loop has its own tuner, estimator and guard.

[system]
make = "motor_pid:make"

[scenario]
steps = 12_000

[run]
seeds = 1
`;
}

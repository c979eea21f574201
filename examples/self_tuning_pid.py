"""A PI controller that tunes itself, and the picture of its run: python self_tuning_pid.py pid.png"""

import sys

import selftune as st
from selftune import models, policies

loop = st.Loop(
    plant=models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01),
    policy=policies.PID(kp=0.1, ki=0.1, u_min=-10.0, u_max=10.0),
    cost=st.Tracking(error=1.0, effort=0.01),
)

if __name__ == "__main__":
    run = loop.simulate(steps=10_000, seed=0)
    print(run)
    print({name: round(float(gain), 3) for name, gain in loop.gains(run.final.state.theta).items()})
    if len(sys.argv) > 1:
        loop.plot(run, fields=["measured", "u", "theta", "cost"]).savefig(sys.argv[1], dpi=80)

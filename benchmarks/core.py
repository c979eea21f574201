"""`python -m benchmarks.core`: `simulate` on the paper's scalar example, against the same loop written in C by hand.

The run is made twice: with XLA as it comes, and with the size limit of its small-loop pass raised (see docs/speed.md),
which is a setting of the process and therefore the user's to make.
"""

import os
import subprocess
import sys

import jax
import numpy as np

import selftune as st

from ._by_hand import RECORD, hand_written
from ._measure import interleaved, ratio, table
from ._robots import scalar

STEPS = 1_000_000
SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536"


def measure() -> None:
    jax.config.update("jax_enable_x64", True)
    problem = scalar()
    scenario = problem.scenario(STEPS)
    mgaps, box = problem.controller.tuner, st.Box(0.0, 50.0)

    def run(tuner, steps=STEPS, record=RECORD):
        controller = st.Controller(problem.controller.system, tuner, problem.controller.estimator)
        theta, a_hat, part = problem.theta, problem.a_hat, scenario[:steps]
        return lambda: jax.block_until_ready(st.simulate(controller, part, theta=theta, a_hat=a_hat, record=record))

    in_c, outputs = hand_written(problem, scenario)
    in_c()
    ours = run(mgaps)()
    for name in RECORD:
        np.testing.assert_allclose(getattr(ours, name), outputs[name], rtol=1e-6, atol=1e-9, err_msg=name)

    watched = st.MGAPS(1e-4, constraint=box, contraction_memory=1000)
    seconds = interleaved(
        {
            "C by hand": in_c,
            "simulate, M-GAPS": run(mgaps),
            "simulate, M-GAPS with contraction": run(watched),
            "simulate, Fixed": run(st.Fixed()),
        }
    )
    table(
        f"{STEPS:,} steps, float64, recording {', '.join(RECORD)}", seconds, dict.fromkeys(seconds, STEPS), "C by hand"
    )
    print(f"  M-GAPS against Fixed: {ratio(seconds, 'simulate, M-GAPS', 'simulate, Fixed'):.2f}")
    cost = ratio(seconds, "simulate, M-GAPS with contraction", "simulate, M-GAPS")
    print(f"  watching the contraction, against not: {cost:.2f}")

    lengths = {f"M-GAPS, T = {steps:,}": steps for steps in (125_000, 250_000, 500_000, 1_000_000)}
    seconds = interleaved({name: run(mgaps, steps) for name, steps in lengths.items()}, rounds=7)
    table("A step's time does not depend on T", seconds, lengths, f"M-GAPS, T = {STEPS:,}")

    buffers = {
        f"GAPS, buffer = {size}": st.GAPS(buffer=size, learning_rate=1e-4, constraint=box) for size in (1, 8, 64)
    }
    functions = {"M-GAPS": run(mgaps, 50_000)} | {name: run(tuner, 50_000) for name, tuner in buffers.items()}
    seconds = interleaved(functions, rounds=5)
    table("GAPS's step grows with its buffer", seconds, dict.fromkeys(seconds, 50_000), "M-GAPS")


def main() -> None:
    for title, flags in {"XLA as it comes": "", "XLA with its small-loop limit raised": SMALL_LOOPS}.items():
        print(f"\n# {title}" + (f"  (XLA_FLAGS={flags})" if flags else ""), flush=True)
        environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
        subprocess.run(
            [sys.executable, "-c", "from benchmarks.core import measure; measure()"], env=environment, check=True
        )


if __name__ == "__main__":
    main()

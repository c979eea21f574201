"""`python -m benchmarks.core`: `simulate` with its defaults on the paper's scalar example, against C by hand."""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

import selftune as st

from ._by_hand import RECORD, hand_written
from ._measure import interleaved, ratio, table
from ._problems import scalar

STEPS = 1_000_000
FIRST_CALL = "from benchmarks.core import first_call; first_call({engine!r})"


def measure() -> None:
    problem = scalar()
    scenario = problem.scenario(STEPS)
    mgaps, box = problem.controller.tuner, st.Box(0.0, 50.0)

    def run(tuner=mgaps, steps=STEPS, **options):
        controller = st.Controller(problem.controller.system, tuner, problem.controller.estimator)
        start: dict[str, Any] = {"theta": problem.theta, "a_hat": problem.a_hat}
        part = scenario[:steps]
        return lambda: jax.block_until_ready(st.simulate(controller, part, **start, **options))

    in_c, outputs = hand_written(problem, scenario)
    in_c()
    ours = run()()
    print(f"engine of a run with the defaults: {ours.engine}")
    for name in RECORD:
        np.testing.assert_allclose(getattr(ours, name), outputs[name], rtol=1e-6, atol=1e-9, err_msg=name)

    watched = st.MGAPS(1e-4, constraint=box, contraction_memory=1000)
    seconds = interleaved(
        {
            "C by hand, recording 4 fields": in_c,
            "simulate, defaults: all 10 fields": run(),
            "simulate, the same 4 fields": run(record=RECORD),
            "simulate, nothing recorded": run(record=()),
            "simulate, watching contraction": run(watched),
            "simulate, Fixed": run(st.Fixed()),
        },
        clock=time.process_time,
    )
    table(f"{STEPS:,} steps, float64", seconds, dict.fromkeys(seconds, STEPS), "C by hand, recording 4 fields")
    print(f"  M-GAPS against Fixed: {ratio(seconds, 'simulate, defaults: all 10 fields', 'simulate, Fixed'):.2f}")

    short = STEPS // 10
    seconds = interleaved({"native": run(steps=short), "xla": run(steps=short, engine="xla")}, rounds=5)
    table(f"The two engines, all fields, {short:,} steps", seconds, dict.fromkeys(seconds, short), "native")

    lengths = {f"T = {steps:,}": steps for steps in (125_000, 250_000, 500_000, 1_000_000)}
    seconds = interleaved({name: run(steps=steps) for name, steps in lengths.items()}, rounds=7)
    table("A step's time does not depend on T", seconds, lengths, f"T = {STEPS:,}")

    buffers = {
        f"GAPS, buffer = {size}": st.GAPS(buffer=size, learning_rate=1e-4, constraint=box) for size in (1, 8, 64)
    }
    functions = {"M-GAPS": run(steps=50_000)} | {name: run(tuner, 50_000) for name, tuner in buffers.items()}
    seconds = interleaved(functions, rounds=5)
    table("GAPS's step grows with its buffer", seconds, dict.fromkeys(seconds, 50_000), "M-GAPS")


def first_call(engine) -> None:
    """Seconds of the first `simulate` in this process, and of the second, as JSON."""
    jax.config.update("jax_enable_x64", True)
    problem = scalar()
    scenario = jax.block_until_ready(problem.scenario(1_000))
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        start: dict[str, Any] = {"theta": problem.theta, "a_hat": problem.a_hat}
        jax.block_until_ready(st.simulate(problem.controller, scenario, **start, engine=engine))
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds))


def first_calls() -> None:
    print("\nThe first call of a new system, 1,000 steps, in a new process: seconds")
    with tempfile.TemporaryDirectory() as cache:
        for title, engine in {
            "native, compiling": "native",
            "native, compiled by another process": "native",
            "xla": "xla",
        }.items():
            command = [sys.executable, "-c", FIRST_CALL.format(engine=engine)]
            environment = os.environ | {"SELFTUNE_CACHE": cache}
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            first, second = json.loads(done.stdout)
            print(f"  {title:40} {first:8.2f}   the second call: {second:.4f}")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    measure()
    first_calls()


if __name__ == "__main__":
    main()

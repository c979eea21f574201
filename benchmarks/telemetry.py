"""`python -m benchmarks.telemetry`: what telemetry adds to a call of `act`, with a file and a websocket."""

import tempfile
from pathlib import Path
from time import perf_counter_ns

import numpy as np

import selftune as st
from selftune import models, policies

CALLS, ROUNDS = 5_000, 8
PAUSE = 100_000
"""Nanoseconds between two calls, so that the writer is not the bottleneck: 10 kHz is faster than most loops."""


def microseconds(agent: st.Agent) -> np.ndarray:
    x, reference = np.full(1, 0.1, np.float32), np.ones(1, np.float32)
    taken = np.empty(CALLS)
    for i in range(CALLS):
        begin = perf_counter_ns()
        agent.act(x, reference=reference)
        taken[i] = perf_counter_ns() - begin
        while perf_counter_ns() - begin < PAUSE:
            pass
    return taken / 1e3


def main() -> None:
    loop = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=1.0, ki=0.5))
    with tempfile.TemporaryDirectory() as folder, st.Telemetry(Path(folder, "run.mcap"), port=0) as telemetry:
        agents = {"without telemetry": loop.agent(), "file and websocket": loop.agent(telemetry=telemetry)}
        rounds: dict[str, list[np.ndarray]] = {name: [] for name in agents}
        for _ in range(ROUNDS):
            for name, agent in agents.items():
                rounds[name].append(microseconds(agent))
        dropped = telemetry.dropped
    medians = {name: np.array([np.median(part) for part in parts]) for name, parts in rounds.items()}
    print(f"act of a PID loop, float32, native engine: {ROUNDS} rounds of {CALLS:,} calls each, alternating")
    for name, parts in rounds.items():
        whole = np.concatenate(parts)
        print(f"  {name:20}  median {np.median(whole):6.2f} µs   99 % {np.quantile(whole, 0.99):6.1f} µs")
    without, streamed = medians.values()
    added, ratio = streamed - without, streamed / without
    print(f"added to the median: {np.median(added):.2f} µs ({added.min():.2f} to {added.max():.2f} over the rounds)")
    print(f"ratio of the medians: {np.median(ratio):.3f}; dropped steps: {dropped}")


if __name__ == "__main__":
    main()

"""Hostile inputs for the controllers' C, at full speed, and what must never happen: `python -m benchmarks.hostile`

Each controller gets random bits, NaN, infinities, stuck and huge numbers in place of measurements, calls in a wrong
order, and switches of its mode. The table counts the events. The columns after "rollbacks" must be 0: controls that
are not finite or outside their limits, θ outside Θ, â outside 𝒜 or not finite, a wrong return code, and a controller
that still refuses after 100 good measurements in a row (wedged).
"""

import argparse
import collections
import ctypes
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.control import guarded_step, step_limits
from selftune.native.c import compilation
from selftune.native.firmware import Firmware
from selftune.robots import arm, quadrotor

EVENTS = (
    "steps",
    "refused",
    "safe",
    "gated",
    "rollbacks",
    "u not finite",
    "u outside",
    "θ outside",
    "â outside",
    "wrong code",
    "wedged",
)
VIOLATIONS = EVENTS[5:]
DTYPES = ("float32", "float64")
THETA, A = st.Box(0.1, 5.0), st.Box(-1.0, 1.0)


class Case(NamedTuple):
    """A controller in its guard, with its start values, and the size of a good measurement."""

    problem: str
    parts: str
    dtype: str
    controller: st.Controller
    guard: st.Guard
    start: dict[str, Any]
    scale: Any


def scalar(tuner: st.AbstractTuner, estimator: st.AbstractEstimator, dtype: str) -> Case:
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a[:1] * jnp.tanh(x) + a[1:],
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    guard = st.Guard(u_low=-2.0, u_high=2.0, x_limit=10.0, f_limit=1e3)
    start = {"x": [1.0], "theta": [1.0], "a_hat": [0.0, 0.0]}
    parts = f"{type(tuner).__name__} + {type(estimator).__name__}"
    return Case("scalar", parts, dtype, st.Controller(system, tuner, estimator), guard, start, 2.0)


def robot(name: str, tuner: str, dtype: str) -> Case:
    made = {"arm": arm.make, "quadrotor": quadrotor.make}[name]()
    if tuner == "MGAPS":
        controller = made.controller(st.MGAPS(made.learning_rate, constraint=made.theta_box))
    else:
        estimator = st.AutoEstimator(constraint=made.a_box)
        controller = st.Controller(made.system, st.GaussNewton(constraint=made.theta_box), estimator)
    guard = st.Guard(**made.guard)
    x = made.make_scenario(1, jax.random.key(0)).x0
    parts = f"{tuner} + {type(controller.estimator).__name__}"
    start = {"x": x, "theta": made.theta, "a_hat": made.a_hat}
    return Case(name, parts, dtype, controller, guard, start, 0.2 * np.asarray(guard.x_limit))


def cases(problems: tuple[str, ...], dtypes: tuple[str, ...]) -> Iterator[Case]:
    """All tuners with the paper's estimator and all estimators with M-GAPS on the scalar; two pairs on the robots."""
    gradient, mgaps = st.GradientEstimator(0.1, constraint=A), st.MGAPS(0.05, constraint=THETA)
    tuners = (
        st.GaussNewton(constraint=THETA),
        mgaps,
        st.GAPS(buffer=8, learning_rate=0.05, constraint=THETA),
        st.DiffTune(episode=20, learning_rate=0.01, constraint=THETA),
        st.OPRF(episode=20, radius=0.05, key=jax.random.key(0), learning_rate=0.01, constraint=THETA),
        st.Fixed(),
    )
    estimators = (
        st.AutoEstimator(A),
        st.KalmanEstimator(constraint=A),
        st.RLS(constraint=A),
        st.RLS(1.0, 10.0, constraint=A),
        st.NormalizedGradient(constraint=A),
        st.Frozen(),
    )
    for dtype in dtypes:
        if "scalar" in problems:
            yield from (scalar(tuner, gradient, dtype) for tuner in tuners)
            yield from (scalar(mgaps, estimator, dtype) for estimator in estimators)
        for name in ("arm", "quadrotor"):
            if name in problems:
                yield from (robot(name, tuner, dtype) for tuner in ("MGAPS", "GaussNewton"))


def attack(case: Case, steps: int, seed: int = 1) -> dict[str, int]:
    """Return how often each event happened in `steps` hostile steps of a controller."""
    dtype = np.dtype(case.dtype)
    x, theta, a_hat = (jnp.asarray(case.start[name], dtype) for name in ("x", "theta", "a_hat"))
    state = guarded_step.start(case.controller, case.guard, x, theta, a_hat, jnp.asarray(0, jnp.int32))
    firmware = Firmware(case.controller, case.guard, state, name="agent")
    driver = Path(__file__).with_name("hostile.c").read_text().replace("REAL", firmware.real)
    function = compilation.build(firmware.whole() + driver).hostile
    function.argtypes = [ctypes.c_int64, ctypes.c_uint64, *[ctypes.c_void_p] * 9]
    function.restype = None
    theta_set, a_set = (
        getattr(part, "constraint", None) or st.Unconstrained()
        for part in (case.controller.tuner, case.controller.estimator)
    )
    limits = [
        np.broadcast_to(case.scale, (firmware.sizes.q,)),
        np.broadcast_to(step_limits.inward(case.guard.x_limit, dtype, -np.inf), (firmware.sizes.q,)),
        *(np.broadcast_to(limit, (firmware.sizes.m,)) for limit in step_limits.control_range(case.guard, dtype)),
        *(np.asarray(bound) for bound in (*theta_set.bounds(theta), *a_set.bounds(a_hat))),
    ]
    arrays = [np.ascontiguousarray(limit, dtype) for limit in limits]
    counts, total = np.zeros(len(EVENTS), np.int64), np.zeros(len(EVENTS), np.int64)
    for begin in range(0, steps, CHUNK):  # in parts, so that Ctrl-C ends a run soon
        counts[:] = 0
        function(min(CHUNK, steps - begin), seed + begin, *(array.ctypes.data for array in (*arrays, counts)))
        total += counts
    return dict(zip(EVENTS, total.tolist(), strict=True))


CHUNK = 2_000_000


def table(rows: list[tuple[Case, dict[str, int], float]]) -> str:
    lines = [f"{'problem':<10} {'tuner + estimator':<32} {'dtype':<8} " + " ".join(f"{name:>13}" for name in EVENTS)]
    for case, counts, _ in rows:
        numbers = " ".join(f"{counts[name]:>13,}" for name in EVENTS)
        lines.append(f"{case.problem:<10} {case.parts:<32} {case.dtype:<8} {numbers}")
    steps = sum(counts["steps"] for _, counts, _ in rows)
    violations = sum(counts[name] for _, counts, _ in rows for name in VIOLATIONS)
    seconds = sum(taken for *_, taken in rows)
    lines.append(f"{violations} violations in {steps:,} hostile steps, {seconds:.0f} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    help_steps = "steps on the scalar problem, of all controllers together; a tenth of them on each robot"
    parser.add_argument("--steps", type=float, default=1e7, help=help_steps)
    parser.add_argument("--problem", choices=("scalar", "arm", "quadrotor"), action="append")
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    given = parser.parse_args()
    rows = []
    problems = tuple(given.problem or ("scalar", "arm", "quadrotor"))
    with jax.enable_x64(True):
        drawn = list(cases(problems, tuple(given.dtype or DTYPES)))
        shares = collections.Counter(case.problem for case in drawn)
        for number, case in enumerate(drawn):
            steps = round(given.steps / (1 if case.problem == "scalar" else 10) / shares[case.problem])
            begin = time.perf_counter()
            counts = attack(case, steps, seed=1 + number * 10**12)
            rows.append((case, counts, time.perf_counter() - begin))
            print(table(rows[-1:]).splitlines()[1], flush=True)
    print(table(rows))
    if any(counts[name] for _, counts, _ in rows for name in VIOLATIONS):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

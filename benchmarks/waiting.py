"""`python -m benchmarks.waiting`: how long a user waits: for the command, for the import, and for a first simulation.

Each measurement is a process of its own, and the best of five counts. All times are CPU times, with those of the
compiler. The first simulation begins with an empty folder of compiled programs, the second one finds its program there.
Python finds the bytecode of all modules, as after an installation.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

ROUNDS = 5
SMALL = """
import json, resource, time
def cpu():
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in used)
begin = cpu()
import jax, jax.numpy as jnp
loaded_jax = cpu()
import selftune as st
imported = cpu()
st.simulate
loaded = cpu()
jax.config.update("jax_enable_x64", True)
jnp.zeros(2).block_until_ready()
system = st.MatchedSystem(
    dynamics=lambda x, v, t: jnp.stack([x[0] + 0.01 * x[1], x[1] + 0.01 * v[0]]),
    residual=lambda x, a, t: jnp.stack([a[0] * x[1] + a[1] * jnp.tanh(5.0 * x[1])]),
    actuation=lambda x, theta, t: jnp.stack([-theta @ x]),
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.01 * jnp.sum(u**2),
)
controller = st.Controller(
    system, st.MGAPS(0.02, constraint=st.Box(0.1, 40.0)), st.GradientEstimator(0.02, constraint=st.Box(-2.0, 2.0))
)
scenario = st.Scenario(x0=jnp.array([1.0, 0.0]), a_star=jnp.zeros((1_000, 2)), w=jnp.zeros((1_000, 2)))
ready = cpu()
run = st.simulate(controller, scenario, theta=jnp.array([2.0, 2.0]), a_hat=jnp.zeros(2), engine="native")
print(json.dumps([loaded_jax - begin, imported - loaded_jax, loaded - imported, cpu() - ready]))
"""


def with_bytecode(folder: str) -> None:
    """Let the processes keep bytecode in a folder, also if the environment forbids to keep bytecode."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder


def cpu_of(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_simulation(folder: str) -> list[float]:
    """Return the CPU seconds of JAX's import, of selftune's import, of loading the simulation, and of `simulate`."""
    told = subprocess.run(
        [sys.executable, "-c", SMALL],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "SELFTUNE_CACHE": folder},
    )
    return json.loads(told.stdout)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_known_args()
    with tempfile.TemporaryDirectory() as bytecode:
        with_bytecode(bytecode)
        measure()


def measure() -> None:
    helps = min(cpu_of(sys.executable, "-m", "selftune", "--help") for _ in range(ROUNDS))
    firsts, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        first_simulation(folder)  # writes the bytecode
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            firsts.append(first_simulation(folder))
            seconds.append(first_simulation(folder))
    first, second = ([min(column) for column in zip(*rows, strict=True)] for rows in (firsts, seconds))
    rows = {
        "selftune --help": helps,
        "import jax": second[0],
        "import selftune": second[1],
        "loading what `simulate` needs": second[2],
        "first native simulate of a small system": first[3],
        "the same in a second process": second[3],
    }
    for name, value in rows.items():
        print(f"{name:44} {value:6.2f} s")


if __name__ == "__main__":
    main()

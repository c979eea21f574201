"""The same sweep on a real Dask cluster of processes, whatever dies while it runs."""

import importlib
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from dask.distributed import Client, LocalCluster

import selftune as st
from selftune.experiments.sweep.config import SweepConfig
from selftune.foundation.executors import ExecutorError
from selftune.sweeps import cluster as clusters

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS = 20_000
GRID = {"learning_rate": [0.01, 0.1], "noise": [0.1, 0.3]}
START = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1)}


def controller(learning_rate):
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a * jnp.cos(x),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    return st.Controller(system, st.MGAPS(learning_rate), st.GradientEstimator(0.05))


def scenario(key, noise):
    ka, kw = jax.random.split(key)
    return st.Scenario(jnp.zeros(1), st.Constant(0.5)(ka, STEPS, 1), noise * st.Gaussian(1.0)(kw, STEPS, 1))


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as made:
        yield made


def _kill_one(cluster, draw):
    alive = [nanny.process.pid for nanny in cluster.workers.values() if nanny.process is not None]
    if alive:
        os.kill(draw.choice(alive), signal.SIGKILL)
        return True
    return False


@pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=[pytest.mark.slow, pytest.mark.bits])])
def test_workers_die_and_every_bit_is_the_same(tmp_path, cluster, engine):
    options = {**START, "engine": engine, "lanes": 2}
    here = st.sweep(controller, scenario, GRID, 8, **options, folder=tmp_path / "here", workers=1)
    draw, killed = random.Random(1), []

    def kill(done, total):
        # In the middle of it, and while the next tasks are at work.
        if done in (4, 14) and done not in killed and _kill_one(cluster, draw):
            killed.append(done)

    there = st.sweep(
        controller, scenario, GRID, 8, **options, folder=tmp_path / "there",
        executor=cluster.scheduler_address, progress=kill,
    )  # fmt: skip
    assert killed
    assert there.is_complete
    assert there.manifest.checksums == here.manifest.checksums
    assert not there.to_dataset().reason.values.any()


def test_a_client_that_is_given_stays_open_and_a_bad_cell_costs_itself_alone(tmp_path, cluster):
    over = {"learning_rate": [0.1, -1.0, 1e9], "noise": [0.1]}
    with Client(cluster) as client:
        data = st.sweep(controller, scenario, over, 2, **START, folder=tmp_path / "s", executor=client, limit=5.0)
        assert client.status == "running"
    assert data.to_dataset().result_code.isel(noise=0, seed=0).values.tolist() == [0, 3, 1]


def test_a_task_that_raises_there_is_recorded(tmp_path, cluster):
    home = os.getpid()

    def bomb(key, kind):
        if os.getpid() != home and kind == "bad":  # in a worker
            raise RuntimeError("only there")
        return scenario(key, 0.1)

    def good(kind):
        return controller(0.1)

    over = {"kind": ["good", "bad"]}
    done = st.sweep(good, bomb, over, 2, **START, folder=tmp_path / "s", executor=cluster.scheduler_address, retries=1)
    data = done.to_dataset()
    assert data.result_code.isel(seed=0).values.tolist() == [0, 3]
    assert str(data.reason.sel(kind="bad", seed=1).values) == "RuntimeError: only there"


def test_workers_that_would_compute_other_numbers_are_refused(tmp_path, cluster, monkeypatch):
    ours = clusters._environment() | {"jax": "0.0.1"}
    monkeypatch.setattr(clusters, "_environment", lambda: ours)
    with pytest.raises(ExecutorError, match=r"a worker would compute different numbers: jax .* there, '0.0.1' now"):
        st.sweep(controller, scenario, GRID, 2, **START, folder=tmp_path / "s", executor=cluster.scheduler_address)


def test_functions_that_workers_do_not_have_are_refused(tmp_path, cluster, monkeypatch):
    text = "from tests import test_sweep_cluster as t\ndef make(learning_rate):\n    return t.controller(learning_rate)"
    (tmp_path / "only_here.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    only_here = importlib.import_module("only_here")
    with pytest.raises(ExecutorError, match=r"No module named 'only_here'.*install their modules on the workers"):
        st.sweep(only_here.make, scenario, GRID, 2, **START, folder=tmp_path / "s", executor=cluster.scheduler_address)


def test_where_no_scheduler_is(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT", 1.0)
    with pytest.raises(ExecutorError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"):
        st.sweep(controller, scenario, GRID, 2, **START, folder=tmp_path / "s", executor="tcp://127.0.0.1:9")


def test_tls_without_certificates(tmp_path):
    with pytest.raises(
        ExecutorError, match=r"'tls://127\.0\.0\.1:9' needs certificates .*distributed\.comm\.tls\.ca-file"
    ):
        st.sweep(controller, scenario, GRID, 2, **START, folder=tmp_path / "s", executor="tls://127.0.0.1:9")


@pytest.mark.slow
def test_the_command_sends_the_modules_beside_its_file(tmp_path, cluster):
    text = (EXAMPLES / "cart-sweep.toml").read_text()
    text = text.replace("steps = 20_000", "steps = 100").replace("seeds = 16", "seeds = 2")
    text = text.replace('"cart:make"', '"cart_of_mine:make"').replace(
        "[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]", "[0.1, 1.0]"
    )
    (tmp_path / "cart_of_mine.py").write_text((EXAMPLES / "cart.py").read_text())
    (tmp_path / "sweep.toml").write_text(text)
    config = SweepConfig(tmp_path / "sweep.toml")
    config.pack_modules()
    options = config.arguments()
    there = st.sweep(**options, folder=tmp_path / "there", executor=cluster.scheduler_address)
    here = st.sweep(**options, folder=tmp_path / "here")
    assert there.manifest.checksums == here.manifest.checksums
    assert not there.to_dataset().reason.values.any()


CLIENT = """
    import sys, os, signal
    import jax; jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, {root!r})
    import selftune as st
    from tests.test_sweep_cluster import GRID, START, controller, scenario

    def die(done, total):
        if done >= 12:
            os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        st.sweep(controller, scenario, GRID, 8, **START, lanes=2, folder={folder!r}, executor={address!r}, progress=die)
"""


@pytest.mark.slow
def test_the_client_is_killed_and_the_rest_only_is_computed(tmp_path, cluster):
    root, folder = str(Path(__file__).parent.parent), str(tmp_path / "s")
    script = tmp_path / "client.py"
    script.write_text(textwrap.dedent(CLIENT).format(root=root, folder=folder, address=cluster.scheduler_address))
    died = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    before = {path.name: path.stat().st_mtime_ns for path in Path(folder, "tasks").iterdir()}
    assert 0 < len(before) < 16
    told = []
    done = st.sweep(
        controller, scenario, GRID, 8, **START, lanes=2, folder=folder,
        executor=cluster.scheduler_address, progress=lambda *now: told.append(now),
    )  # fmt: skip
    assert told[0] == (2 * len(before), 32)
    assert before == {name: Path(folder, "tasks", name).stat().st_mtime_ns for name in before}
    here = st.sweep(controller, scenario, GRID, 8, **START, lanes=2, folder=tmp_path / "here")
    assert done.manifest.checksums == here.manifest.checksums


@pytest.mark.slow
def test_the_scheduler_dies_and_the_same_call_continues(tmp_path):
    dask = str(Path(sys.executable).parent / "dask")
    address, quiet = "tcp://127.0.0.1:8799", subprocess.DEVNULL
    folder, processes, stored = tmp_path / "s", [], {}

    def start():
        scheduler = [dask, "scheduler", "--host", "127.0.0.1", "--port", "8799", "--no-dashboard"]
        worker = [dask, "worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard"]
        root = str(Path(__file__).parent.parent)  # where workers find these functions
        there = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        processes.extend(subprocess.Popen(command, stderr=quiet, env=there) for command in (scheduler, worker))

    def kill():
        while processes:
            process = processes.pop()
            process.kill()
            process.wait()

    def progress(done, total):
        if done >= 8:
            kill()

    options = {**START, "lanes": 2}
    try:
        start()
        with pytest.raises(ExecutorError, match="lost the connection to the cluster; finished tasks are stored"):
            st.sweep(controller, scenario, GRID, 16, **options, folder=folder, executor=address, progress=progress)
        stored = {path.name: path.stat().st_mtime_ns for path in (folder / "tasks").iterdir()}
        assert 4 <= len(stored) < 32
        start()
        done = st.sweep(controller, scenario, GRID, 16, **options, folder=folder, executor=address)
    finally:
        kill()
    assert stored == {name: (folder / "tasks" / name).stat().st_mtime_ns for name in stored}
    here = st.sweep(controller, scenario, GRID, 16, **options, folder=tmp_path / "here")
    assert done.manifest.checksums == here.manifest.checksums
    assert not done.to_dataset().reason.values.any()

"""A sweep in its folder: the same bits however it came about, and refused where it would be another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.experiments.registry import StoredRun
from selftune.foundation.errors import StoreError
from selftune.sweeps.programs import Programs
from tests.test_sweep import GRID, START, SYSTEM, controller, scenario


@pytest.mark.bits
@pytest.mark.parametrize("engine", ["native", "xla"])
def test_the_same_bits_with_one_worker_and_many_and_in_parts(tmp_path, engine):
    options = {**START, "lanes": 2, "engine": engine}
    one = st.sweep(controller, scenario, GRID, 4, **options, folder=tmp_path / "one", workers=1)
    many = st.sweep(controller, scenario, GRID, 4, **options, folder=tmp_path / "many", workers=3)
    assert one.manifest.checksums == many.manifest.checksums
    points, names = len(one.design.points), ", ".join(one.design.names)
    assert repr(one) == f"<Sweep of {points} points × 4 seeds, grid over {names}, in {one.folder}; complete>"

    told = []

    def stop(done, total):
        told.append((done, total))
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        st.sweep(controller, scenario, GRID, 4, **options, folder=tmp_path / "parts", workers=1, progress=stop)
    partly = st.Sweep(tmp_path / "parts")
    assert not partly.is_complete
    assert repr(partly) == repr(one).replace(f"{one.folder}; complete", f"{partly.folder}; not complete")
    with pytest.raises(StoreError, match=r"the run is not complete \(\d+ of 12 tasks\)"):
        StoredRun.open(tmp_path / "parts")
    codes = partly.to_dataset().result_code
    assert 0 < int((codes == 0).sum()) < codes.size
    assert set(np.unique(partly.to_dataset().reason)) == {"", "not done yet"}
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts/tasks").iterdir()}
    parts = st.sweep(controller, scenario, GRID, 4, **options, folder=tmp_path / "parts")
    assert parts.manifest.checksums == one.manifest.checksums
    assert before == {name: (tmp_path / "parts/tasks" / name).stat().st_mtime_ns for name in before}
    assert told[0] == (0, 24)


def test_other_code_other_settings_and_another_kind_are_refused(tmp_path):
    st.sweep(controller, scenario, GRID, 2, **START, folder=tmp_path / "s")
    message = r"other settings: noise \[[\d., ]+\] there, \[0\.1, 0\.2\] now; choose another folder$"
    with pytest.raises(StoreError, match=message):
        st.sweep(controller, scenario, {**GRID, "noise": [0.1, 0.2]}, 2, **START, folder=tmp_path / "s")
    with pytest.raises(
        StoreError, match=r"other settings: seeds \[0, 1\] there, \[0, 1, 2\] now; choose another folder$"
    ):
        st.sweep(controller, scenario, GRID, 3, **START, folder=tmp_path / "s")

    def other(key, noise):
        return scenario(key, 2 * noise)  # the same settings, and another program

    with pytest.raises(StoreError, match="functions"):
        st.sweep(controller, other, GRID, 2, **START, folder=tmp_path / "s")
    with pytest.raises(StoreError, match="functions"):  # a number that the program only closes over
        st.sweep(controller, scenario, GRID, 2, theta=2 * jnp.ones(1), a_hat=jnp.zeros(1), folder=tmp_path / "s")


class Unlucky:
    """`Programs.__call__`, which raises an error for one task, `times` times."""

    def __init__(self, task, times):
        self.task, self.left, self.compute = task, times, Programs.__call__

    def __call__(self, programs, task):
        if task == (self.task,) and self.left > 0:
            self.left -= 1
            raise MemoryError("no room for it")
        return self.compute(programs, task)


def test_a_task_that_raises_is_tried_again_then_recorded_and_can_be_redone(tmp_path, monkeypatch):
    options = {**START, "lanes": 2, "folder": tmp_path / "s", "workers": 2}
    right = st.sweep(controller, scenario, GRID, 4, **START, lanes=2, folder=tmp_path / "right")

    unlucky = Unlucky(task=1, times=2)
    monkeypatch.setattr(Programs, "__call__", lambda self, task: unlucky(self, task))
    done = st.sweep(controller, scenario, GRID, 4, **{**options, "folder": tmp_path / "lucky"})
    assert done.manifest.checksums == right.manifest.checksums  # it came right at the third time

    unlucky.left = 99
    data = st.sweep(controller, scenario, GRID, 4, **options).to_dataset()
    failed = data.result_code == 3
    assert int(failed.sum()) == 2
    assert set(data.reason.values[failed.values]) == {"MemoryError: no room for it"}
    assert not np.isfinite(data.mean_cost.values[failed.values]).any()

    monkeypatch.undo()
    again = st.sweep(controller, scenario, GRID, 4, **options)
    assert int((again.to_dataset().result_code == 3).sum()) == 2  # it is recorded, and so done
    assert again.failed_tasks() == [unlucky.task]
    redone = st.sweep(controller, scenario, GRID, 4, **options, redo=again.failed_tasks())
    assert redone.manifest.checksums == right.manifest.checksums
    one = st.sweep(controller, scenario, GRID, 4, **options, redo=[0])
    assert one.manifest.checksums == right.manifest.checksums


def test_a_folder_of_something_else_is_no_sweep(tmp_path):
    with pytest.raises(StoreError, match="not a selftune run"):
        st.Sweep(tmp_path)


def test_on_an_object_store_it_is_the_same_bits(tmp_path):
    there = st.sweep(controller, scenario, GRID, 4, **START, folder="memory://sweeps/one", lanes=4)
    here = st.sweep(controller, scenario, GRID, 4, **START, folder=tmp_path / "s", lanes=4)
    assert there.manifest.checksums == here.manifest.checksums
    assert st.Sweep("memory://sweeps/one").to_dataset().equals(here.to_dataset())


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_an_array_that_a_function_has_inside_is_part_of_the_address(tmp_path, wrap):
    def weighted(scale):
        weights = scale * jnp.arange(1.0, 3.0)

        def make(learning_rate):
            cost = wrap(lambda x, u, theta, t: jnp.sum(weights * x**2) + 0.1 * jnp.sum(u**2))
            system = st.MatchedSystem(
                lambda x, v, t: x + 0.1 * v, SYSTEM.residual, lambda x, theta, t: -theta * x, cost
            )
            return st.Controller(system, st.MGAPS(learning_rate), st.GradientEstimator(0.05))

        return make

    over = {"learning_rate": [0.1]}
    st.sweep(weighted(1.0), scenario, over, 2, **START, folder=tmp_path / "s")
    st.sweep(weighted(1.0), scenario, over, 2, **START, folder=tmp_path / "s")
    with pytest.raises(StoreError, match="functions"):
        st.sweep(weighted(2.0), scenario, over, 2, **START, folder=tmp_path / "s")


def test_why_a_point_is_refused_may_be_said_in_other_words(tmp_path):
    def fussy(key, noise):
        if isinstance(noise, float) and noise < 0:
            raise ValueError(f"noise: {object()}")
        return scenario(key, noise)

    over = {"noise": [0.1, -0.1]}
    st.sweep(controller, fussy, over, 2, **START, folder=tmp_path / "s")
    again = st.sweep(controller, fussy, over, 2, **START, folder=tmp_path / "s")
    assert "noise: <object" in str(again.to_dataset().reason.sel(noise=-0.1, seed=0).values)


def test_redo_is_all_or_none_and_never_of_two_codes(tmp_path):
    options = {**START, "lanes": 2, "folder": tmp_path / "s"}
    st.sweep(controller, scenario, GRID, 2, **options)
    with pytest.raises(ValueError, match="redo: expected tasks below"):
        st.sweep(controller, scenario, GRID, 2, **options, redo=[0, 99])
    assert st.Sweep(tmp_path / "s").is_complete
    manifest = tmp_path / "s" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"jaxlib": "', '"jaxlib": "0.0.'))
    with pytest.raises(StoreError, match=r"redo: computed by other code.*jaxlib"):
        st.sweep(controller, scenario, GRID, 2, **options, redo=[0])
    assert st.Sweep(tmp_path / "s").is_complete

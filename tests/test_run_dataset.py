"""`Run.to_dataset`: the run's own arrays, with names for every axis and every component."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import selftune as st

STEPS = 40


def system():
    return st.System(
        dynamics=lambda x, u, f, t: 0.9 * x + 0.1 * (jnp.stack([u[0], u[0]]) + jnp.stack([f[0], 0.0])),
        residual=lambda x, a, t: a["friction"] * x[:1],
        policy=lambda x, theta, f, t: -theta["K"] @ x - theta["bias"][None] - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )


START = {"theta": {"K": jnp.array([[0.5, 0.1]]), "bias": jnp.array(0.2)}, "a_hat": {"friction": jnp.zeros(1)}}


def simulate(key=0, *, controller=None, **options):
    controller = controller or st.Controller(system(), st.MGAPS(0.05), st.GradientEstimator(0.1))
    key = jax.random.key(key) if isinstance(key, int) else key
    scenario = st.Scenario(jnp.ones(2), {"friction": jnp.full((STEPS, 1), 0.3)}, st.Gaussian(0.1)(key, STEPS, 2))
    return st.simulate(controller, scenario, **({} if "resume" in options else START), **options)


def test_the_arrays_are_those_of_the_run():
    run = simulate(guard=st.Guard())
    dataset = run.to_dataset()
    for name in ("x", "u", "cost", "y", "gradient", "f", "f_hat", "innovation", "guard"):
        np.testing.assert_array_equal(dataset[name].values, getattr(run, name))
    flat = np.stack([ravel_pytree(jax.tree.map(lambda rows, t=t: rows[t], run.theta))[0] for t in range(STEPS)])
    np.testing.assert_array_equal(dataset.theta.values, flat)  # in the order of `gradient` and `y`
    np.testing.assert_array_equal(dataset.a_hat.values, run.a_hat["friction"])
    assert dataset.theta.dims == ("time", "parameter")
    assert dataset.y.dims == ("time", "loop_state", "parameter")
    assert dataset.parameter.values.tolist() == ["K[0, 0]", "K[0, 1]", "bias"]
    assert dataset.model_parameter.values.tolist() == ["friction[0]"]
    assert dataset.state.values.tolist() == [0, 1]
    assert (int(dataset.result_code), int(dataset.failed_at)) == (0, -1)


def test_attributes_say_how_the_run_was_made_and_what_each_field_is():
    dataset = simulate(guard=st.Guard(u_low=-0.1, u_high=0.1)).to_dataset()
    about = {name: dataset.attrs[name] for name in ("engine", "result", "steps", "stride")}
    assert about == {"engine": "native", "result": "ok", "steps": STEPS, "stride": 1}
    assert all(dataset[name].attrs["long_name"] for name in dataset.data_vars)
    masks = dict(zip(dataset.guard.attrs["flag_meanings"].split(), dataset.guard.attrs["flag_masks"], strict=True))
    assert masks["saturated"] == st.Decision.SATURATED
    assert np.any(dataset.guard.values & masks["saturated"])


def test_time_is_the_number_of_the_step():
    first = simulate(stride=7)
    assert first.to_dataset().time.values.tolist() == [0, 7, 14, 21, 28, 35]
    second = simulate(resume=first.final)
    assert second.to_dataset().time.values.tolist() == list(range(STEPS, 2 * STEPS))


def test_only_recorded_fields_are_there():
    dataset = simulate(record=("cost", "gradient")).to_dataset()
    assert set(dataset.data_vars) == {"cost", "gradient", "result_code", "failed_at"}
    assert dataset.parameter.values.tolist() == [0, 1, 2]
    assert set(simulate(record=()).to_dataset().data_vars) == {"result_code", "failed_at"}


def test_a_batch_has_an_axis_of_runs():
    keys = jax.random.split(jax.random.key(1), 6)
    one = jax.vmap(simulate)(keys)
    dataset = one.to_dataset()
    assert dataset.x.dims == ("run", "time", "state")
    assert dataset.theta.dims == ("run", "time", "parameter")
    assert dataset.result_code.dims == ("run",)
    np.testing.assert_array_equal(dataset.x.values, one.x)
    single = jax.tree.map(lambda leaf: leaf[4], one).to_dataset()
    np.testing.assert_array_equal(dataset.theta.sel(run=4), single.theta)
    two = jax.vmap(jax.vmap(simulate))(keys.reshape(2, 3)).to_dataset()
    assert two.x.dims == ("run_0", "run_1", "time", "state")
    np.testing.assert_array_equal(two.x.values.reshape(dataset.x.shape), dataset.x)


def test_names():
    dataset = simulate().to_dataset(names={"x": ["angle", "speed"], "theta": ["kp", "kd", "bias"]})
    assert dataset.state.values.tolist() == ["angle", "speed"]
    assert dataset.gradient.sel(parameter="kd").shape == (STEPS,)
    assert dataset.y.sel(state="speed", parameter="kp").shape == (STEPS,)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"x": ["angle"]}, r"names\['x'\]: expected 2 different names, got \['angle'\]"),
        ({"x": ["angle", "angle"]}, r"names\['x'\]: expected 2 different names"),
        ({"x": "ab"}, r"names\['x'\]: expected 2 different names, got 'ab'"),
        ({"x": [0, 1]}, r"names\['x'\]: expected 2 different names"),
        ({"state": ["angle", "speed"]}, "names: expected names for components of x, theta, .*, got 'state'"),
        ({"cost": ["cost"]}, "names: expected names for components of"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, message):
    with pytest.raises(st.ArgumentError, match=message):
        simulate().to_dataset(names=names)


def test_a_traced_run_is_refused():
    with pytest.raises(st.ArgumentError, match=r"run: expected a run whose numbers are known, got .* tracing"):
        jax.jit(lambda key: simulate(key).to_dataset().x.values)(jax.random.key(0))


def test_it_can_be_stored(tmp_path):
    import xarray as xr

    dataset = simulate(guard=st.Guard()).to_dataset(names={"x": ["angle", "speed"]})
    dataset.to_zarr(tmp_path / "run.zarr", zarr_format=2, consolidated=False)  # version 3 has no texts
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "run.zarr", consolidated=False).load(), dataset)

"""`Run.plot`: what is drawn is in the data, no peak is lost, and every plot can be read."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import selftune as st
from selftune.reporting import run_figures
from selftune.reporting.figure import Figure
from tests import drawings


def dataset(**fields):
    """Fields by name, (time, components), (time,), or with an axis of runs in front; `failed_at` is optional."""
    failed_at = fields.pop("failed_at", None)
    axes = {"x": ("state",), "u": ("control",), "theta": ("parameter",), "cost": (), "guard": ()}
    data = {}
    for name, values in fields.items():
        values = np.asarray(values)
        data[name] = (("run",) * (values.ndim - 1 - len(axes[name])) + ("time", *axes[name]), values)
    steps = next(iter(data.values()))[1].shape[next(iter(data.values()))[0].index("time")]
    if failed_at is not None:
        data["failed_at"] = (("run",) * np.ndim(failed_at), failed_at)
    sizes = {dim: size for dims, values in data.values() for dim, size in zip(dims, np.shape(values), strict=True)}
    return xr.Dataset(
        data, {dim: np.arange(size) for dim, size in sizes.items() if dim != "time"} | {"time": np.arange(steps)}
    )


def all_series(figure: Figure):
    return {series.label: series for axes in figure.axes for series in axes.series}


def random(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_a_short_run_is_drawn_row_by_row():
    x = random(50, 2)
    figure = run_figures.overview(dataset(x=x, cost=np.abs(random(50)) + 1))
    lines = all_series(figure)
    np.testing.assert_array_equal(lines["$x$[1]"].y, x[:, 1])
    np.testing.assert_array_equal(lines["$x$[1]"].x, np.arange(50))
    assert lines["$x$[1]"].low is None
    assert figure.legend == ""
    drawings.check(figure)


def test_a_long_run_has_few_points_and_keeps_every_peak():
    x = random(200_001, 1)
    x[123_457], x[200_000] = 50.0, -60.0  # single rows; the second is alone in its interval
    line = all_series(run_figures.overview(dataset(x=x)))["$x$[0]"]
    assert len(line.x) <= run_figures.POINTS
    assert (line.high.max(), line.low.min()) == (50.0, -60.0)
    every = -(-len(x) // run_figures.POINTS)
    i = 123_457 // every
    block = x[i * every : (i + 1) * every, 0]
    assert line.y[i] == pytest.approx(block.mean(), abs=1e-12)  # rounding of a sum of some hundred numbers
    assert (line.low[i], line.high[i]) == (block.min(), block.max())
    assert line.x[i] == pytest.approx(i * every + (every - 1) / 2)
    assert line.y[-1] == pytest.approx(x[(len(x) - 1) // every * every :, 0].mean())


def test_a_batch_is_drawn_as_medians_and_bands():
    x = random(5, 30, 1)
    x[2, 10:] = np.nan  # a run without numbers there
    figure = run_figures.overview(dataset(x=x))
    line = all_series(figure)["$x$[0]"]
    np.testing.assert_allclose(line.y, np.nanmedian(x[..., 0], axis=0), rtol=1e-15)
    np.testing.assert_array_equal(line.low, np.nanmin(x[..., 0], axis=0))
    np.testing.assert_array_equal(line.high, np.nanmax(x[..., 0], axis=0))
    assert figure.caption == "Lines: medians over 5 runs; shades: from the smallest to the largest value."
    drawings.check(figure)


def test_every_and_dt():
    x = random(20, 1)
    figure = run_figures.overview(dataset(x=x), every=6, dt=0.5)
    line = all_series(figure)["$x$[0]"]
    np.testing.assert_allclose(line.y, [x[:6].mean(), x[6:12].mean(), x[12:18].mean(), x[18:].mean()], rtol=1e-12)
    np.testing.assert_allclose(line.x, [0.5 * 2.5, 0.5 * 8.5, 0.5 * 14.5, 0.5 * 18.5])
    assert figure.axes[0].x.label == "time $t$ / s"
    assert "means over 6 steps" in figure.caption


def test_components_of_different_size_do_not_share_a_plot():
    x = random(30, 5) * [1.0, 1e-3, 2.0, 1e4, 0.0]
    figure = run_figures.overview(dataset(x=x))
    groups = [[series.label for series in axes.series] for axes in figure.axes]
    assert groups == [["$x$[0]", "$x$[2]"], ["$x$[1]", "$x$[4]"], ["$x$[3]"]]
    many = run_figures.overview(dataset(x=random(30, 13)))
    assert [len(axes.series) for axes in many.axes] == [5, 4, 4]
    assert sorted(all_series(many)) == sorted(f"$x$[{i}]" for i in range(13))


def test_rows_after_a_failure_are_left_out():
    x = random(100, 1)
    x[60:] = 1e30
    figure = run_figures.overview(dataset(x=x, failed_at=60))
    line = all_series(figure)["$x$[0]"]
    assert np.nanmax(np.abs(line.y)) < 10
    assert figure.axes[0].x.range == (0, 61)  # the run ends there
    assert [rule.x for rule in figure.axes[0].rules] == [60]
    drawings.check(run_figures.overview(dataset(x=x, cost=x[:, 0] ** 2, guard=np.ones(100, int), failed_at=0)))
    both = np.stack([x, random(100, 1)])
    line = all_series(run_figures.overview(dataset(x=both, failed_at=np.array([60, -1]))))["$x$[0]"]
    assert len(line.y) == 100
    assert np.abs(line.high).max() < 10
    np.testing.assert_array_equal(line.y[60:], both[1, 60:, 0])


def test_the_cost_has_its_moving_average_and_a_logarithmic_axis_if_it_changes_a_lot():
    cost = 10.0 ** np.linspace(3, -3, 1000)
    cost[500] = 0.0  # has no logarithm
    (axes,) = run_figures.overview(dataset(cost=cost)).axes
    assert axes.y.is_log
    average, drawn = axes.series
    assert average.label == "mean of the last 50 steps"
    np.testing.assert_allclose(average.y[200], cost[151:201].mean(), rtol=1e-12)
    assert np.isnan(average.y[:49]).all(), "no mean before the first whole window"
    assert np.isfinite(average.y[49])
    assert np.all(drawn.y > 0)
    drawings.check(run_figures.overview(dataset(cost=cost)))
    flat = 3 + random(1000) ** 2
    assert not run_figures.overview(dataset(cost=flat)).axes[0].y.is_log
    assert not run_figures.overview(dataset(cost=-cost)).axes[0].y.is_log
    assert not run_figures.overview(dataset(cost=np.zeros(1000))).axes[0].y.is_log


def test_the_guard_has_a_row_of_marks_for_each_decision_that_it_made():
    guard = np.zeros(100, np.int32)
    guard[[3, 50]] = st.Decision.REFUSED
    guard[50:] |= st.Decision.SATURATED
    (axes,) = run_figures.overview(dataset(guard=guard)).axes
    assert axes.y.ticks == ([0, 1], ["refused, 2.0 %", "saturated, 50 %"])
    np.testing.assert_array_equal(axes.series[0].x, [3, 50])
    np.testing.assert_array_equal(axes.series[1].x, np.arange(50, 100))
    drawings.check(run_figures.overview(dataset(guard=guard)))
    (axes,) = run_figures.overview(dataset(guard=np.zeros(5, np.int32))).axes
    assert axes.y.ticks == ([0], ["none"])
    long = np.zeros(100_000, np.int32)
    long[70_001] = st.Decision.RESET
    (axes,) = run_figures.overview(dataset(guard=long)).axes
    assert axes.y.ticks == ([0], ["reset, below 0.1 %"])
    np.testing.assert_allclose(axes.series[0].x, 70_001, atol=100_000 / run_figures.POINTS)


def test_a_field_that_this_module_does_not_know_appears():
    """Between the known fields, with its own name; on the page with its description."""
    assert "pressure" not in run_figures.TITLES
    data = dataset(x=random(10, 1), cost=np.ones(10))
    values = random(10, 2)
    data["pressure"] = (("time", "pipe"), values, {"long_name": "pressure in bar"})
    data["pipe"] = ["in", "out"]
    figure = run_figures.overview(data)
    assert [axes.y.label for axes in figure.axes] == ["$x$", "pressure", "cost"]
    shown = all_series(figure)
    np.testing.assert_array_equal(shown["in"].y, values[:, 0])
    np.testing.assert_array_equal(shown["out"].y, values[:, 1])
    assert "pressure in bar" in run_figures.by_field(data)["pressure"].caption


def simulate(steps=60, n=2, d=2, guard=None, **options):
    names = [f"k{i}" for i in range(d)]
    system = st.System(
        dynamics=lambda x, u, f, t: 0.9 * x + 0.1 * jnp.roll(x, 1) * 0.5 + 0.1 * (u[0] + f[0]),
        residual=lambda x, a, t: a * jnp.cos(x[:1]),
        policy=lambda x, theta, f, t: (
            -jnp.sum(jnp.stack([theta[k] * x[i % n] for i, k in enumerate(names)]))[None] / d - f
        ),
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(system, st.MGAPS(1e-3), st.GradientEstimator(0.01))
    w = st.Gaussian(0.1)(jax.random.key(0), steps, n)
    scenario = st.Scenario(jnp.ones(n), jnp.full((steps, 1), 0.5), w)
    theta = {name: jnp.array(0.5) for name in names}
    return st.simulate(controller, scenario, theta=theta, a_hat=jnp.zeros(1), guard=guard, **options)


@pytest.mark.slow
def test_a_large_run_can_be_read():
    """Few lines in a plot, no text on another text, and no legend on the data."""
    figure = simulate(200_000, n=12, d=10, guard=st.Guard(u_low=-0.2, u_high=0.2)).plot()
    figure.draw_without_rendering()
    legends = [(axes, axes.get_legend()) for axes in figure.axes if axes.get_legend() is not None]
    drawn = [text.get_text() for _, legend in legends for text in legend.get_texts()]
    assert {f"k{i}" for i in range(10)} | {f"$x$[{i}]" for i in range(12)} <= set(drawn)
    boxes = [axes.get_window_extent() for axes in figure.axes] + [each.get_window_extent() for _, each in legends]
    shrunk = [box.padded(-1) for box in boxes]
    assert not [(a, b) for i, a in enumerate(shrunk) for b in shrunk[i + 1 :] if a.overlaps(b)]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    for axes in figure.axes:
        assert len(axes.lines) <= run_figures.ON_A_PLOT + 1
        assert all(len(line.get_xdata()) <= run_figures.POINTS for line in axes.lines)
        assert min(axes.get_window_extent().size) > 60  # pixels


def test_names_and_fields():
    figure = simulate().plot(["gradient", "x"], names={"x": ["angle", "50 $"], "theta": ["kp", "kd"]})
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert legends == [["kp", "kd"], ["angle", r"50 \$"]]
    assert [axes.get_ylabel() for axes in simulate().plot("u").axes] == ["$u$"]


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(fields=["speed"]), "fields: expected fields that were recorded, of x, .*, got .'speed'."),
        (dict(fields=[]), "fields: expected fields that were recorded"),
        (dict(dt=0.0), "dt: expected a number of seconds > 0, got 0.0"),
        (dict(dt="1"), "dt: expected a number of seconds > 0, got '1'"),
        (dict(every=0), "every: expected a whole number >= 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(st.ArgumentError, match=message):
        simulate().plot(**options)


def test_nothing_recorded_cannot_be_drawn():
    with pytest.raises(st.ArgumentError, match="fields that were recorded, of none"):
        simulate(record=()).plot()


def test_a_notebook_shows_the_figure():
    assert simulate().plot()._repr_png_().startswith(b"\x89PNG")


def test_a_batch_of_real_runs_and_a_run_that_fails():
    def one(x0):
        system = st.System(
            dynamics=lambda x, u, f, t: 1.5 * x + f,
            residual=lambda x, a, t: a,
            policy=lambda x, theta, f, t: theta * x,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        controller = st.Controller(system, st.Fixed(), st.Frozen())
        scenario = st.Scenario(x0, jnp.zeros((90, 1)), jnp.zeros((90, 1)))
        return st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1), throw=False)

    runs = jax.vmap(one)(jnp.array([[0.0], [1.0]]))
    assert runs.result.ok.tolist() == [True, False]
    figure = runs.plot()
    assert "1 of 2 runs failed" in figure._suptitle.get_text()
    failed = one(jnp.ones(1))
    last = int(failed.result.step)
    assert failed.plot().axes[0].get_xlim() == (0, last + 1)


def test_no_window_opens():
    """pyplot, which would keep the figure and could show it, is not even imported."""
    script = (
        "import sys, jax.numpy as jnp, selftune as st\n"
        "from tests.test_run_figures import simulate\n"
        "simulate().plot()\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_the_extra_the_error_says_what_to_install():
    script = (
        "import sys\n"
        "for package in ('xarray', 'matplotlib', 'pytest'): sys.modules[package] = None\n"
        "import jax.numpy as jnp, selftune as st\n"
        "system = st.System(lambda x, u, f, t: x, lambda x, a, t: a, lambda x, theta, f, t: theta * x,"
        " lambda x, u, theta, t: jnp.sum(x))\n"
        "controller = st.Controller(system, st.Fixed(), st.Frozen())\n"
        "scenario = st.Scenario(jnp.ones(1), jnp.ones((5, 1)), jnp.ones((5, 1)))\n"
        "run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.ones(1))\n"
        "for call in (run.to_dataset, run.plot):\n"
        "    try: call()\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "run.to_dataset() needs xarray; install it with: pip install 'selftune[experiments]'",
        "run.plot() needs xarray; install it with: pip install 'selftune[experiments]'",
    ], done.stderr

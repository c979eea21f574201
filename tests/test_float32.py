"""As it comes: JAX's default float32 and promotion, in a process of its own. The other tests run in float64."""

import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.versions

ROOT = Path(__file__).parent.parent

PAGES = """
# Run the pages whose names come in, each in a namespace of its own, and answer each with its error or an empty line.
import contextlib, gc, json, pathlib, re, sys, traceback
import selftune

gc.set_threshold(50_000, 20, 50)  # see conftest.py

answers = sys.stdout
for line in sys.stdin:
    page, error = line.rstrip(), ""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            namespace = {"__name__": "page"}
            text = pathlib.Path(page).read_text()
            is_script = page.endswith(".py")
            namespace["__file__"] = page
            for block in [text] if is_script else re.findall(r"```python\\n(.*?)```", text, flags=re.DOTALL):
                exec(compile(block, page, "exec"), namespace)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps(error), file=answers, flush=True)
"""

QUIET = """
# 10^5 steps without excitation, after some with: nothing is lost, nothing blows up.
import equinox as eqx, jax, jax.numpy as jnp, numpy as np, selftune as st

system = st.System(
    dynamics=lambda x, u, f, t: x,
    residual=lambda x, a, t: jnp.sum(x * a)[None],
    policy=lambda x, theta, f, t: theta,
    cost=lambda x, u, theta, t: jnp.sum(x**2),
)
truth = jnp.array([0.5, -1.0, 2.0])
rich = jax.random.normal(jax.random.key(0), (300, 3))
features = jnp.concatenate([rich, jnp.zeros((100_000, 3))])
for estimator in (st.RLS(0.99, 1e4), st.KalmanEstimator(1e-3, 1e-2, covariance=1e3), st.GradientEstimator(0.05)):
    @eqx.filter_jit
    def run(estimator):
        def step(carry, x):
            a, state, _ = estimator.update(system, x, jnp.sum(x * truth)[None], *carry[:1], 0, carry[1])
            return (a, state), None

        start = jnp.zeros(3)
        return jax.lax.scan(step, (start, estimator.init(system, features[0], start)), features)[0]

    a, state = run(estimator)
    assert a.dtype == jnp.float32
    np.testing.assert_allclose(a, truth, atol=2e-3)
    if hasattr(state, "covariance"):
        ceiling = float(jnp.max(estimator.covariance))
        eigenvalues = np.linalg.eigvalsh(np.asarray(state.covariance, np.float64))
        assert 0 < eigenvalues.min() and eigenvalues.max() <= 1.01 * ceiling, eigenvalues
"""

DOOR = """
# What float32 cannot hold is refused as what it would become.
import jax.numpy as jnp, numpy as np, selftune as st

for make, name in [
    (lambda: st.Scenario([1e300], jnp.zeros((2, 1)), jnp.zeros((2, 1))), "x0"),
    (lambda: st.MGAPS(1e-50), "learning_rate"),
    (lambda: st.MGAPS(1e39), "learning_rate"),
    (lambda: st.OrnsteinUhlenbeck(1 - 1e-9, 0.1), "decay"),
]:
    try:
        make()
    except ValueError as error:
        assert str(error).startswith(name + ":"), error
    else:
        raise SystemExit(f"{name} was not refused")

# Doubles from NumPy, plain lists and integers are what users have at hand.
system = st.System(
    dynamics=lambda x, u, f, t: 0.5 * x + u + f,
    residual=lambda x, a, t: a["level"],
    policy=lambda x, theta, f, t: -theta[0] * x - f,
    cost=lambda x, u, theta, t: jnp.sum(x**2),
)
controller = st.Controller(system, st.MGAPS(np.float64(0.01)), st.GradientEstimator(0.1))
scenario = st.Scenario([1], {"level": np.ones((5, 1))}, np.zeros((5, 1)))
run = st.simulate(controller, scenario, theta=(np.float64(0.1),), a_hat={"level": [0]})
assert run.x.dtype == run.theta.dtype == jnp.float32
"""


PAGES_WITH_CODE = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python\n" in page.read_text()
]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
# To sample the constants of a certificate and to compile exported C takes long. `make docs` runs all tutorials, too.
LONG = {
    "arduino.md",
    "c.md",
    "commissioning.md",
    "crazyflie.md",
    "fmu.md",
    "guide.md",
    "loops.md",
    "px4.md",
    "python-to-microcontroller.py",
    "recipes.md",
    "regret-and-certificates.py",
    "replaying-a-log.py",
    "ros2.md",
    "tune-your-own-robot.md",
    "web.md",
    "your-robot-from-its-file.py",
}


# A warning is an error, except the one that pyproject.toml explains.
STRICT = [sys.executable, "-W", "error", "-W", "ignore:Error reading persistent compilation cache entry"]


def run_script(script):
    done = subprocess.run([*STRICT, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def pages():
    """A process that runs pages: to start Python and JAX for each would take longer than most pages."""
    environment = os.environ | {"MPLBACKEND": "Agg"}
    with subprocess.Popen(
        [*STRICT, "-c", PAGES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page.name in LONG else page
        for page in (*PAGES_WITH_CODE, *TUTORIALS)
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_blocks_of_a_page(page, pages):
    print(page, file=pages.stdin, flush=True)
    assert select.select([pages.stdout], [], [], 600)[0], "no answer in 600 s"
    assert json.loads(pages.stdout.readline()) == ""


@pytest.mark.parametrize("page", [*PAGES_WITH_CODE, *TUTORIALS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_asserts_its_results(page):
    """A block that prints a result also asserts it, so that the page cannot show anything that is no longer true."""
    text = page.read_text()
    blocks = text.split("\n# %%") if page.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    tested = ("assert ", "testing.check_")
    assert [block for block in blocks if "print(" in block and not any(word in block for word in tested)] == []


@pytest.mark.parametrize("script", [QUIET, DOOR], ids=["no excitation", "door"])
def test_runs(script):
    run_script(script)

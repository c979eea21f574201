"""The surrogate between rollouts with constant θ, which `AutoWindow` uses for a θ of one number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.native import loop
from selftune.regret import _nodes, surrogate_cost
from tests.problems import scalar_system
from tests.regret.cases import Case, exact, paper_scenario, windowed_case

STEPS = 3000


def closed_loop(dynamics, policy=lambda x, theta, f, t: -theta * x - f, cost=None) -> st.System:
    return st.System(
        dynamics=dynamics,
        residual=lambda x, a, t: a * jnp.sin(x),
        policy=policy,
        cost=cost or (lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2)),
    )


def noisy(n: int = 1, a: float = 0.3) -> st.Scenario:
    return st.Scenario(jnp.zeros(n), a * jnp.ones((STEPS, n)), st.Gaussian(0.5)(jax.random.key(1), STEPS, n))


RISING = jnp.linspace(0.2, 1.6, STEPS)[:, None]
SMOOTH = {
    # The policy does not cancel the residual, or the loop is not linear in x without it.
    "saturated": closed_loop(lambda x, u, f, t: x + jnp.tanh(u) + f),
    "cubic": closed_loop(lambda x, u, f, t: 0.9 * x - 0.05 * x**3 / (1 + x**2) + 0.5 * u + 0.3 * f),
    "rotating": closed_loop(
        lambda x, u, f, t: jnp.array([[0.9, 0.4], [-0.4, 0.8]]) @ x + jnp.array([0.0, 0.5]) * u + 0.3 * f,
        policy=lambda x, theta, f, t: -theta * x[1:],
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    ),
}
PATHS = {
    "rising": RISING,
    "waves": 0.9 + 0.6 * jnp.sin(jnp.arange(STEPS)[:, None] / 300),
    "random": jax.random.uniform(jax.random.key(4), (STEPS, 1), minval=0.3, maxval=1.5),
}


def problem(name: str) -> tuple[Case, st.Surrogate]:
    if name in ("paper", "fast", "slow", "noise"):
        return windowed_case(name), exact(name)
    system, path = name.split()
    case = Case(SMOOTH[system], noisy(2 if system == "rotating" else 1), PATHS[path])
    return case, st.surrogate(*case)


@pytest.fixture(autouse=True)
def panels(monkeypatch):
    """The ranges of θ of all panels, in the order in which they are tried."""
    tried = []
    make = _nodes._Panel.__init__

    def counted(self, theta, wanted):
        make(self, theta, wanted)
        tried.append((float(self.low), float(self.high), int(wanted[-1])))

    monkeypatch.setattr(_nodes._Panel, "__init__", counted)
    return tried


def errors(found: st.Surrogate, true: st.Surrogate) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (np.abs(np.asarray(found.value - true.value)), np.asarray(found.value_error)),
        (np.abs(np.asarray(found.gradient - true.gradient)[:, 0]), np.asarray(found.gradient_error)),
    ]


def is_interpolated(found: st.Surrogate) -> bool:
    """Windows are exact in their first steps, and nowhere else; interpolation has an error at the first step, too."""
    return bool((np.asarray(found.window) == np.arange(STEPS)).all() and (np.asarray(found.gradient_error) > 0).all())


@pytest.mark.parametrize(
    ("name", "tolerances"),
    [
        ("paper", (1e-1, 1e-3, 1e-6, 1e-9)),
        ("fast", (1e-1,)),
        ("slow", (1e-1, 1e-9)),
        ("noise", (1e-1, 1e-3)),
        *((f"{system} {path}", (1e-1, 1e-6)) for system in SMOOTH for path in PATHS),
    ],
)
def test_error_estimate_is_honest_at_every_step(name, tolerances):
    case, true = problem(name)
    for tolerance in tolerances:
        found = st.surrogate(*case, window=st.AutoWindow(tolerance))
        assert is_interpolated(found)
        for error, estimate in errors(found, true):
            assert (error <= estimate).all(), (tolerance, np.max(error / estimate))
            assert error.max() <= tolerance
        # A thousand rounding errors of the largest rollout, of a few hundred.
        assert max(found.value_error.max(), found.gradient_error.max()) <= tolerance + 1e-9


@pytest.mark.parametrize("name", ["jumps", "constant"])
def test_rollouts_with_the_values_of_theta_are_exact(name):
    """One value of θ, and two values that are too far apart for one panel."""
    case, true = windowed_case(name), exact(name)
    found = st.surrogate(*case, window=st.AutoWindow(1e-6))
    for error, estimate in errors(found, true):
        assert not estimate.any()
        assert error.max() <= 1e-11  # rounding of two programs; values and gradients are a few hundred


def test_rollouts_end_where_theta_leaves_their_panel(panels):
    """θ moves away from a slow loop in the first steps: its narrow panels are short."""
    theta = jnp.where(jnp.arange(STEPS) < 300, jnp.linspace(0.3, 6.0, STEPS), 6.0)[:, None]
    system, scenario = scalar_system(), paper_scenario(0, STEPS)
    found = st.surrogate(system, scenario, theta, window=st.AutoWindow(1e-9))
    assert len(panels) > 2
    assert all(last < 300 for low, _, last in panels if low < 5.0 and low != panels[0][0])
    for error, estimate in errors(found, st.surrogate(system, scenario, theta)):
        assert (error <= np.maximum(estimate, 1e-12)).all()


def test_blocks_change_nothing(monkeypatch):
    case = windowed_case("paper")
    whole = st.surrogate(*case, window=st.AutoWindow(1e-3))
    monkeypatch.setattr(_nodes, "BLOCK", 512)  # the last block is shorter than the others
    for a, b in zip(
        jax.tree.leaves(whole), jax.tree.leaves(st.surrogate(*case, window=st.AutoWindow(1e-3))), strict=True
    ):
        # Panels may be cut at another step.
        np.testing.assert_allclose(a, b, atol=1e-3, rtol=0)
    for error, estimate in errors(st.surrogate(*case, window=st.AutoWindow(1e-3)), exact("paper")):
        assert (error <= estimate).all()


@pytest.mark.parametrize("workers", [1, 3])
def test_lanes_and_threads_change_no_bit(monkeypatch, workers):
    case, auto = windowed_case("paper"), st.AutoWindow(1e-6)
    monkeypatch.setattr(loop, "WORTH_LANES", 10**12)
    alone = st.surrogate(*case, window=auto, workers=1, engine="native")
    monkeypatch.setattr(loop, "WORTH_LANES", 0)
    for a, b in zip(
        jax.tree.leaves(alone),
        jax.tree.leaves(st.surrogate(*case, window=auto, workers=workers, engine="native")),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_xla_gives_the_same():
    case = windowed_case("paper")
    by_xla, natively = (st.surrogate(*case, window=st.AutoWindow(1e-3), engine=engine) for engine in ("xla", "native"))
    assert is_interpolated(by_xla)
    for a, b in zip(jax.tree.leaves(by_xla), jax.tree.leaves(natively), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-11)  # rounding of two programs, amplified in the errors


def test_float32():
    system, scenario, thetas = windowed_case("fast")
    scenario = st.Scenario(*(jnp.asarray(part, jnp.float32) for part in (scenario.x0, scenario.a_star, scenario.w)))
    thetas = jnp.asarray(thetas, jnp.float32)
    found = st.surrogate(system, scenario, thetas, window=st.AutoWindow(1e-2))
    assert found.gradient.dtype == found.gradient_error.dtype == jnp.float32
    assert is_interpolated(found)
    for error, estimate in errors(found, st.surrogate(system, scenario, thetas)):
        assert (error <= estimate).all()
        assert estimate.max() < 0.1  # of 70


def test_theta_may_be_a_pytree_and_t_a_context():
    def policy(x, theta, f, t):
        return -theta["gain"][0] * (x - t["target"]) - f

    system = closed_loop(lambda x, u, f, t: x + 0.5 * jnp.tanh(u) + 0.1 * f, policy=policy)
    plain = noisy()
    scenario = st.Scenario(plain.x0, plain.a_star, plain.w, t={"target": jnp.sin(jnp.arange(float(STEPS)) / 50)})
    thetas = {"gain": RISING[:, None, :], "nothing": jnp.zeros((STEPS, 0))}
    found = st.surrogate(system, scenario, thetas, window=st.AutoWindow(1e-6))
    assert is_interpolated(found)
    for error, estimate in errors(found, st.surrogate(system, scenario, thetas)):
        assert (error <= estimate).all()


@pytest.mark.parametrize("width", [0.015, 0.1])
def test_a_bump_of_the_cost_is_seen(width):
    """A feature of F that is narrower than a thirtieth of the range of θ may lie between the nodes unseen.

    The bump is 2.4 times as wide at half of its height as its standard deviation.
    """
    cost = lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.exp(-jnp.sum((theta - 0.77) ** 2) / (1.4 * width) ** 2 / 2)
    case = Case(closed_loop(lambda x, u, f, t: 0.8 * x + 0.2 * f + 0.1 * u, cost=cost), noisy(), RISING)
    found, true = st.surrogate(*case, window=st.AutoWindow(1e-2)), st.surrogate(*case)
    for error, estimate in errors(found, true):
        assert (error <= np.maximum(estimate, 1e-12)).all()


@pytest.mark.parametrize("first", [0, 1])
def test_a_cost_at_few_steps(first):
    """Between these steps F_t is zero, which has no error."""
    cost = lambda x, u, theta, t: jnp.where(t % 10 == first, jnp.sum(x**2) + jnp.sum(jnp.tanh(30 * (theta - 0.9))), 0.0)
    case = Case(closed_loop(lambda x, u, f, t: 0.8 * x + 0.2 * f + 0.1 * u, cost=cost), noisy(), RISING)
    found, true = st.surrogate(*case, window=st.AutoWindow(1e-3)), st.surrogate(*case)
    for error, estimate in errors(found, true):
        assert (error <= np.maximum(estimate, 1e-12)).all()


def windows_only(monkeypatch, case: Case, tolerance: float) -> st.Surrogate:
    monkeypatch.setattr(surrogate_cost, "interpolated", lambda *given: None)
    return st.surrogate(*case, window=st.AutoWindow(tolerance))


@pytest.mark.parametrize(
    "dynamics",
    [
        pytest.param(lambda x, u, f, t: 0.8 * x + 0.2 * f + 0.1 * u + 0.05 * jnp.sign(jnp.sin(5 * x)), id="jumps in x"),
        pytest.param(lambda x, u, f, t: 0.8 * x + 0.2 * f + 0.5 * jnp.maximum(u - 0.2, 0), id="a kink in u"),
    ],
)
def test_windows_where_f_is_not_smooth(dynamics, monkeypatch):
    case = Case(closed_loop(dynamics), noisy(), RISING)
    found = st.surrogate(*case, window=st.AutoWindow(1e-3))
    assert (np.asarray(found.window) < np.arange(STEPS)).any()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(windows_only(monkeypatch, case, 1e-3)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("dynamics", "low"),
    [
        # The loop's factor is 1.05 − θ, above 1 while θ < 0.05: at the low end of the range, rollouts explode.
        pytest.param(lambda x, u, f, t: 1.05 * x + u, -0.3, id="explodes"),
        pytest.param(lambda x, u, f, t: x + 0.05 * u, 0.0, id="does not contract at the end"),
        pytest.param(lambda x, u, f, t: jnp.sin(3 * x + u) + u, -1.0, id="chaotic"),
    ],
)
def test_no_wrong_number_where_the_loop_does_not_contract(dynamics, low):
    thetas = jnp.concatenate([jnp.linspace(low, 0.5, 300), jnp.full(STEPS - 300, 0.5)])[:, None]
    case = Case(closed_loop(dynamics), noisy(a=0.0), thetas)
    true = st.surrogate(*case)
    for tolerance in (1e-1, 1e-6):
        for error, estimate in errors(st.surrogate(*case, window=st.AutoWindow(tolerance)), true):
            size = np.maximum(np.abs(np.asarray(true.value)), np.abs(np.asarray(true.gradient)[:, 0]))
            # Exact rollouts have no estimate; those of two programs differ by rounding.
            assert (error <= estimate + 1e-9 * size).all()


def test_local_regret_is_within_its_error():
    case, true = windowed_case("paper"), exact("paper")
    found, other = (
        st.local_regret(*case, learning_rate=1e-4, constraint=st.Box(0.5, 50.0), **options)
        for options in ({"window": st.AutoWindow(0.1)}, {"surrogate": true})
    )
    error = np.abs(found.cumulative - other.cumulative)
    assert (error <= found.cumulative_error).all()
    assert error.max() > 0


def test_progress_counts_to_the_end():
    calls = []
    st.surrogate(
        *windowed_case("paper"), window=st.AutoWindow(1e-6), progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1][0] == calls[-1][1]
    assert all(done <= total for done, total in calls)

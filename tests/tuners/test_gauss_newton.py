"""`GaussNewton` against autodiff through the rollout, a plain NumPy form of the rule, and small problems by hand."""

import shutil
import subprocess

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import no_knobs, unstable_plants
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import models, policies
from selftune.tuners import _factorization, gauss_newton
from tests.problems import planar_system, random_scenario, random_system


def rows(system, tuner, theta, a_hat, x, steps, seed=0):
    """Run the tuner on the model by hand; return each step's (x, θ, y, G, state after), and the last θ."""
    update = jax.jit(lambda x, theta, t, state: tuner.update(system, x, theta, a_hat, t, state))
    step = jax.jit(lambda x, theta, t: system.step(x, theta, a_hat, t))
    state, rng, out = tuner.init(system, x, theta), np.random.default_rng(seed), []
    for t in range(steps):
        moved, state, info = update(x, theta, t, state)
        out.append((x, theta, info.y, info.gradient, state))
        x = step(x, theta, t)[0] + 0.1 * rng.normal(size=x.shape)
        theta = moved
    return out, theta


def linear_system(n, m, d, key):
    """θ enters the control additively: state and control are affine in θ."""
    A, B, K, D, Q = (
        scale * jax.random.normal(k, shape)
        for k, scale, shape in zip(
            jax.random.split(key, 5), (0.2, 0.5, 0.2, 1.0, 1.0), ((n, n), (n, m), (m, n), (m, d), (n, n)), strict=True
        )
    )
    return st.System(
        dynamics=lambda x, u, f, t: A @ x + B @ u + f,
        residual=lambda x, a, t: a * jnp.ones_like(x),
        policy=lambda x, theta, f, t: K @ x + D @ theta,
        cost=lambda x, u, theta, t: x @ (Q @ Q.T) @ x + jnp.sum(u**2) + 0.3 * jnp.sum(theta**2) + jnp.sum(x) * u[0],
    )


def rollout_cost(system, x, a, steps):
    """The cost of the last step as a function of a θ that is used from the first step on."""

    def cost(theta):
        state = x
        for t in range(steps - 1):
            state, _ = system.step(state, theta, a, t)
        return system.step(state, theta, a, steps - 1)[1]

    return cost


def curvature_of(system, x, y, theta, a, t):
    _, push = system.linearize_with_control(x, theta, a, t)
    u_theta = push(y, jnp.eye(y.shape[1], dtype=y.dtype))[2]
    return gauss_newton._curvature(system, x, y, u_theta, theta, a, t)


class TestCurvature:
    @pytest.mark.parametrize("d", [1, 3])
    def test_it_is_the_hessian_of_the_rollout_if_the_loop_is_affine_in_theta(self, d):
        """Linear dynamics, a control that is affine in θ, and a quadratic cost."""
        system = linear_system(3, 2, d, jax.random.key(d))
        x, a, theta = jnp.array([1.0, -2.0, 0.5]), jnp.array(0.3), jnp.linspace(-1.0, 1.0, d)

        @jax.jit
        def pairs(theta):
            state, y, made = x, jnp.zeros((3, d)), []
            for t in range(6):
                got = curvature_of(system, state, y, theta, a, t)
                made.append((got, jax.hessian(rollout_cost(system, x, a, t + 1))(theta)))
                state, y, _, _ = system.sensitivity(state, y, theta, a, t)
            return made

        for got, expected in pairs(theta):
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)

    def test_it_is_the_gauss_newton_part_for_gains(self):
        """Zᵀ ∇²h Z, with Z the Jacobian of the rollout's (x, u, θ)."""
        system, a, theta = planar_system(), jnp.array([0.3, -0.2, 0.1]), jnp.array([1.0, 2.0, 0.5, 0.3])
        x0 = jnp.array([1.0, -1.0])

        def last(theta, steps):
            x = x0
            for t in range(steps):
                x = system.step(x, theta, a, t)[0]
            return jnp.concatenate([x, system.control(x, theta, a, steps), theta])

        @jax.jit
        def pairs(theta):
            x, y, made = x0, jnp.zeros((2, 4)), []
            for t in range(5):
                Z = jax.jacrev(lambda theta, t=t: last(theta, t))(theta)
                at = last(theta, t)
                H = jax.hessian(lambda v, t=t: system.cost(v[:2], v[2:4], v[4:], t))(at)
                made.append((curvature_of(system, x, y, theta, a, t), Z.T @ H @ Z))
                x, y, _, _ = system.sensitivity(x, y, theta, a, t)
            return made

        for got, expected in pairs(theta):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def solve_with_floor(R, g, floor):
    """Solve by elimination of one number after the other; each pivot is at least `floor`."""
    if not len(g):
        return g
    pivot, below = max(R[0, 0], floor), R[1:, 0]
    rest = solve_with_floor(R[1:, 1:] - np.outer(below, below) / pivot, g[1:] - below * g[0] / pivot, floor)
    return np.concatenate([[(g[0] - below @ rest) / pivot], rest])


class Rule:
    """The update rule of the docstring, in plain NumPy, without clever ordering."""

    def __init__(self, low, high, memory=2000.0, rest=0):
        self.low, self.high, self.N, self.rest, self.t, self.means = low, high, memory, rest, 0, None

    def step(self, theta, h, G, H):
        N, t, w = self.N, self.t, self.high - self.low
        if self.rest:
            w = np.minimum(w, np.maximum(np.abs(theta), w / 50))
        g, C = w * G, np.outer(w, w) * H
        L = min(N, 1 + t / 10)
        now = [C, g, g @ g, abs(h)]
        self.means = now if t == 0 else [old + (new - old) / L for old, new in zip(self.means, now, strict=True)]
        C_bar, g_bar, q_bar, h_bar = self.means
        v = min(h_bar, q_bar / (2 * np.trace(C_bar))) if np.trace(C_bar) > 0 else h_bar
        N_0 = 2 * (len(g) + 1)
        N_t = min(N, N_0 + (t if self.rest else 2 * t / 5))
        damping = 12.5 * np.linalg.norm(g) * (N_0 / N_t) ** 0.75
        R = C_bar + (v + damping) * np.eye(len(g))
        held = ((theta <= self.low) & (g_bar > 0)) | ((theta >= self.high) & (g_bar < 0))
        keeps_sign = (self.low < 0) & (self.high > 0) & (theta != 0) & (t < N / 5)
        held |= keeps_sign & (np.abs(theta) <= w / 50) & (g_bar * theta > 0)
        for i in np.flatnonzero(held):
            for j in range(len(g)):
                if i != j:
                    R[i, j] = R[j, i] = 0.0
        s = -solve_with_floor(R, g, v + damping) / N_t
        assert np.linalg.norm(s) <= 0.08 / (N_0**0.75 * N_t**0.25) * (1 + 1e-12)
        self.t += 1
        if t < self.rest:
            return theta, held
        moved = np.clip(theta + w * s, self.low, self.high)
        for i in np.flatnonzero(keeps_sign):
            nearest = min(abs(theta[i]), w[i] / 50)
            moved[i] = max(moved[i], nearest) if theta[i] > 0 else min(moved[i], -nearest)
        return moved, held


@pytest.mark.parametrize(
    ("d", "memory", "rest", "first"),
    [
        (1, 2000.0, None, "low"),
        pytest.param(4, 2000.0, None, "low", marks=pytest.mark.slow),
        (4, 40.0, None, "low"),
        (4, 4.0, 90, "low"),  # the windows have their full length before the rest ends
        (4, 400.0, 20, "small"),
        (4, 400.0, None, "small"),  # the rule of signs ends after 80 steps
        (14, 2000.0, None, "low"),
    ],
)
def test_the_step_is_the_rule(d, memory, rest, first):
    """Curvatures come from `jax.hessian` of the cost and Jacobians of the policy, not from the tuner's own function.
    θ starts at the lower bound, where some gradients point outward, or near zero, where the rule of signs acts."""
    system, a_hat = random_system(jax.random.key(3), 3, 2, 2, 2, d), jnp.array([0.5, -0.3])
    low, high = np.full(d, -0.02), np.full(d, 0.02) * (1 + np.arange(d))
    start = low if first == "low" else 1e-3 * (-1.0) ** np.arange(d)
    tuner = st.GaussNewton(constraint=st.Box(low, high), memory=memory, rest=rest)
    steps, _ = rows(system, tuner, jnp.asarray(start), a_hat, jnp.array([1.0, -1.0, 0.5]), 150)
    theta, ever_held, rule, oracle = start, False, Rule(low, high, memory, rest or 0), cost_and_curvature(system, a_hat)
    for t, (x, used, y, G, _) in enumerate(steps):
        np.testing.assert_allclose(theta, used, rtol=1e-8, atol=1e-10 * high.max())
        h, H = oracle(x, used, y, t)
        # Continue from the tuner's own θ, so that rounding does not decide whether a number is exactly at its bound.
        theta, held = rule.step(np.asarray(used), float(h), np.asarray(G), np.asarray(H))
        ever_held |= held.any()
    assert ever_held or d == 1 or (rest and first == "small")
    if first == "small" and not rest:
        signs = np.sign([used for _, used, *_ in steps])
        assert np.all(signs[:81] == signs[0])


def cost_and_curvature(system, a):
    """h and Zᵀ ∇²h Z, with reverse mode and the whole Hessian of the cost."""

    @jax.jit
    def at(x, theta, y, t):
        n, d = y.shape
        u = system.control(x, theta, a, t)
        u_x, u_theta = jax.jacrev(system.control, argnums=(0, 1))(x, theta, a, t)
        Z = jnp.concatenate([y, u_x @ y + u_theta, jnp.eye(d)])
        m = u.size
        H = jax.hessian(lambda v: system.cost(v[:n], v[n : n + m], v[n + m :], t))(jnp.concatenate([x, u, theta]))
        return system.cost(x, u, theta, t), Z.T @ H @ Z

    return at


class TestFactorization:
    @pytest.mark.parametrize("d", [1, 2, 5, 14])
    def test_against_numpy(self, d):
        rng = np.random.default_rng(d)
        root = rng.normal(size=(d, d))
        A, b = root @ root.T + 0.1 * np.eye(d), rng.normal(size=d)
        factors = _factorization.factorize(jnp.asarray(A), jnp.asarray(1e-6))
        np.testing.assert_allclose(_factorization.solve(factors, jnp.asarray(b)), np.linalg.solve(A, b), rtol=1e-9)
        L, D = dense(factors)
        np.testing.assert_allclose(L @ np.diag(D) @ L.T, A, rtol=1e-12, atol=1e-12)

    def test_only_the_lower_triangle_is_read(self):
        A = np.array([[2.0, np.nan], [0.5, 1.0]])
        factors = _factorization.factorize(jnp.asarray(A), jnp.asarray(1e-6))
        expected = np.linalg.solve([[2.0, 0.5], [0.5, 1.0]], [1.0, 2.0])
        np.testing.assert_allclose(_factorization.solve(factors, jnp.array([1.0, 2.0])), expected, rtol=1e-14)

    def test_no_pivot_is_below_the_least(self):
        """An indefinite matrix: the factors are those of A plus a nonnegative diagonal."""
        A = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.5], [0.0, 0.5, 3.0]])
        L, D = dense(_factorization.factorize(jnp.asarray(A), jnp.asarray(0.25)))
        assert D.min() == 0.25
        added = L @ np.diag(D) @ L.T - A
        np.testing.assert_allclose(added, np.diag(np.diag(added)), atol=1e-14)
        assert np.diag(added).min() >= -1e-14


def dense(factors):
    D = 1 / np.array(factors.inverse_pivots)
    L = np.eye(len(D))
    for k, column in enumerate(factors.columns):
        L[k + 1 :, k] = column
    return L, D


def static_system(H, best, offset=1.0):
    """A cost of θ alone: ½ (θ − best)ᵀ H (θ − best) + offset."""
    H, best = jnp.asarray(H), jnp.asarray(best)

    def cost(x, u, theta, t):
        e = ravel_pytree(theta)[0] - best
        return 0.5 * e @ (H @ e) + offset

    return st.System(
        dynamics=lambda x, u, f, t: jnp.zeros_like(x),
        residual=lambda x, a, t: 0 * x,
        policy=lambda x, theta, f, t: 0 * x,
        cost=cost,
    )


def tuned(system, tuner, theta, steps=20_000, **options):
    scenario = st.Scenario(jnp.zeros(1), jnp.zeros((steps, 1)), jnp.zeros((steps, 1)))
    controller = st.Controller(system, tuner, st.Frozen())
    run = st.simulate(controller, scenario, theta=theta, a_hat=jnp.zeros(1), record=("theta",), stride=steps, **options)
    return run.final.state.theta


class TestConstraints:
    H = np.array([[1.0, 0.9], [0.9, 1.0]])

    def test_a_box_by_hand(self):
        """The free minimum is (−0.5, 0.6). With θ₀ at its bound 0, θ₁ = 0.6 + 0.9 · (−0.5) / 1 = 0.15."""
        got = tuned(
            static_system(self.H, [-0.5, 0.6]), st.GaussNewton(constraint=st.Box(0.0, 1.0)), jnp.array([0.5, 0.9])
        )
        np.testing.assert_allclose(got, [0.0, 0.15], atol=1e-5)  # what is left after 10 memories: exp(−9) / 100

    def test_a_product_of_boxes_is_the_box(self):
        system = static_system(self.H, [-0.5, 0.6])
        parts = st.Product({"a": st.Box(0.0, 1.0), "b": st.Box(0.0, 1.0)})
        got = tuned(system, st.GaussNewton(constraint=parts), {"a": jnp.array(0.5), "b": jnp.array(0.9)})
        expected = tuned(system, st.GaussNewton(constraint=st.Box(0.0, 1.0)), jnp.array([0.5, 0.9]))
        np.testing.assert_allclose([got["a"], got["b"]], expected, rtol=1e-12)

    @pytest.mark.parametrize("constraint", [st.Ball(0.4), st.Simplex()], ids=["Ball", "Simplex"])
    def test_other_sets_end_at_the_minimum_on_the_set(self, constraint):
        """The minimum on the set is the projection of the free minimum in the norm of H."""
        best = np.array([-0.5, 0.9])
        expected = constraint.project_in_metric(jnp.asarray(best), np.linalg.inv(self.H))
        start = jnp.array([0.2, 0.1]) if isinstance(constraint, st.Ball) else jnp.array([0.5, 0.5])
        got = tuned(static_system(self.H, best), st.GaussNewton(constraint=constraint), start)
        np.testing.assert_allclose(got, expected, atol=1e-5)

    def test_without_bounds(self):
        got = tuned(static_system(self.H, [-3.0, 40.0]), st.GaussNewton(), jnp.array([1.0, 1.0]), steps=40_000)
        np.testing.assert_allclose(got, [-3.0, 40.0], rtol=1e-4)  # far from the start, in steps of a limited length

    def test_a_box_of_width_zero_holds_its_number(self):
        tuner = st.GaussNewton(constraint=st.Box([0.3, -2.0], [0.3, 2.0]))
        got = tuned(static_system(self.H, [-0.5, 0.6]), tuner, jnp.array([0.3, 0.0]))
        np.testing.assert_allclose(got, [0.3, 0.6 - 0.9 * 0.8], atol=1e-5)

    def test_a_set_of_the_users_own(self):
        class Nonnegative(st.AbstractConstraint):
            def project(self, v):
                return jnp.maximum(v, 0.0)

            def contains(self, v):
                return jnp.all(v >= 0.0)

        system, theta = static_system(self.H, [-0.5, 0.6]), jnp.array([0.5, 0.9])
        got = tuned(system, st.GaussNewton(constraint=Nonnegative()), theta, engine="xla")
        np.testing.assert_allclose(got, [0.0, 0.15], atol=1e-3)


def planar_run(tuner, system=None, theta=(1.0, 2.0, 0.5, 0.3), engine="native", steps=2000, guard=None):
    controller = st.Controller(system or planar_system(), tuner, st.GradientEstimator(0.05))
    scenario = random_scenario(jax.random.key(5), steps, 2, 3, 2)
    return st.simulate(controller, scenario, theta=jnp.asarray(theta), a_hat=jnp.zeros(3), engine=engine, guard=guard)


BOX = st.Box([0.1, 0.1, 0.0, 0.0], [8.0, 8.0, 3.0, 3.0])


class TestInvariance:
    """To 6 digits after 2000 steps; factors that are powers of ten change the rounding of every number."""

    @pytest.mark.parametrize("factor", [1e-6, pytest.param(1e6, marks=pytest.mark.slow)])
    def test_the_unit_of_the_cost(self, factor):
        base = planar_system()
        scaled = st.System(
            base.dynamics, base.residual, base.policy, lambda x, u, theta, t: factor * base.cost(x, u, theta, t)
        )
        expected = planar_run(st.GaussNewton(constraint=BOX))
        got = planar_run(st.GaussNewton(constraint=BOX), scaled)
        np.testing.assert_allclose(got.theta, expected.theta, rtol=1e-6, atol=1e-7)
        assert np.ptp(expected.theta[:, 0]) > 0.5

    @pytest.mark.parametrize("factor", [1e-2, pytest.param(1e2, marks=pytest.mark.slow)])
    def test_the_unit_of_theta(self, factor):
        base, unit = planar_system(), jnp.array([factor, 1.0, 1 / factor, factor])
        scaled = st.System(
            base.dynamics,
            base.residual,
            lambda x, theta, f, t: base.policy(x, theta / unit, f, t),
            lambda x, u, theta, t: base.cost(x, u, theta / unit, t),
        )
        expected = planar_run(st.GaussNewton(constraint=BOX))
        tuner = st.GaussNewton(constraint=st.Box(BOX.low * unit, BOX.high * unit))
        got = planar_run(tuner, scaled, theta=jnp.array([1.0, 2.0, 0.5, 0.3]) * unit)
        np.testing.assert_allclose(got.theta / unit, expected.theta, rtol=1e-6, atol=1e-7)


class TestEngines:
    @pytest.mark.parametrize(
        "constraint", [pytest.param(BOX, id="Box"), pytest.param(st.Ball(4.0), id="Ball", marks=pytest.mark.slow)]
    )
    def test_native_equals_xla(self, constraint):
        native, xla = (
            planar_run(st.GaussNewton(constraint=constraint), engine=e, steps=300) for e in ("native", "xla")
        )
        for name in ("theta", "x", "gradient", "y"):
            np.testing.assert_allclose(getattr(native, name), getattr(xla, name), rtol=1e-11, atol=1e-11)

    def test_with_a_guard(self):
        guard = st.Guard(y_limit=0.02, rate=0.01)
        native, xla = (
            planar_run(st.GaussNewton(constraint=BOX), engine=e, steps=300, guard=guard) for e in ("native", "xla")
        )
        np.testing.assert_allclose(native.theta, xla.theta, rtol=1e-11, atol=1e-11)
        assert np.any(np.asarray(native.guard) & int(st.Decision.RESET))

    @pytest.mark.slow
    def test_fourteen_numbers(self):
        system, scenario = (
            random_system(jax.random.key(1), 4, 2, 2, 3, 14),
            random_scenario(jax.random.key(2), 60, 4, 3, 2),
        )
        controller = st.Controller(system, st.GaussNewton(constraint=st.Box(-1.0, 1.0)), st.GradientEstimator(0.05))
        start = dict(theta=jnp.zeros(14), a_hat=jnp.zeros(3))
        native, xla = (st.simulate(controller, scenario, **start, engine=e) for e in ("native", "xla"))
        np.testing.assert_allclose(native.theta, xla.theta, rtol=1e-11, atol=1e-11)
        assert np.ptp(native.theta, axis=0).min() > 1e-3

    def test_float32_follows_float64(self):
        controller = st.Controller(planar_system(), st.GaussNewton(constraint=BOX), st.GradientEstimator(0.05))
        wide = random_scenario(jax.random.key(5), 300, 2, 3, 2)
        runs = [
            st.simulate(
                controller,
                jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), wide),
                theta=jnp.array([1.0, 2.0, 0.5, 0.3], dtype),
                a_hat=jnp.zeros(3, dtype),
                engine=engine,
            )
            for dtype, engine in ((jnp.float64, "native"), (jnp.float32, "native"), (jnp.float32, "xla"))
        ]
        assert runs[1].theta.dtype == runs[2].theta.dtype == jnp.float32
        for run in runs[1:]:
            # 300 steps of single precision, 6e-8 each, through a solve.
            np.testing.assert_allclose(run.theta, runs[0].theta, atol=1e-3)

    @pytest.mark.slow
    @pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
    def test_agent_and_exported_c(self, tmp_path):
        controller = st.Controller(planar_system(), st.GaussNewton(constraint=BOX), st.GradientEstimator(0.05))
        start = dict(x=jnp.array([1.0, -1.0]), theta=jnp.array([1.0, 2.0, 0.5, 0.3]), a_hat=jnp.zeros(3))
        agents = [st.Agent(controller, **start, engine=engine) for engine in ("native", "xla")]
        x = np.array([1.0, -1.0])
        for t in range(30):
            u, other = (agent.act(x, t) for agent in agents)
            np.testing.assert_allclose(u, other, rtol=1e-11, atol=1e-12)
            x = 0.9 * x + 0.05 * u
            for agent in agents:
                agent.observe_state(x)
        np.testing.assert_allclose(agents[0].theta, agents[1].theta, rtol=1e-11)
        folder = st.export_c(controller, tmp_path / "out", **start, dtype="float64")
        sources = [folder / "out.c", folder / "main.c"]
        subprocess.run(["cc", "-std=c99", "-O1", *sources, "-o", tmp_path / "replay", "-lm"], check=True)
        printed = subprocess.run([tmp_path / "replay"], capture_output=True, text=True, check=True).stdout
        assert float(printed.removeprefix("largest difference: ")) < 1e-11

    def test_vmap_over_memories(self):
        batch = jax.vmap(lambda N: planar_run(st.GaussNewton(constraint=BOX, memory=N), steps=100).theta)
        memories = jnp.array([20.0, 2000.0])
        got = batch(memories)
        for i, N in enumerate(memories):
            alone = planar_run(st.GaussNewton(constraint=BOX, memory=N), steps=100).theta
            np.testing.assert_allclose(got[i], alone, rtol=1e-12)
        assert np.abs(got[0] - got[1]).max() > 1e-3


class TestBadNumbers:
    def test_a_kink_counts_as_no_curvature(self):
        """|θ − ½|^1.5 has an infinite second derivative at the start."""
        base = static_system(np.eye(2), [0.2, 0.8])
        kinked = st.System(
            base.dynamics,
            base.residual,
            base.policy,
            lambda x, u, theta, t: base.cost(x, u, theta, t) + jnp.abs(theta[0] - 0.5) ** 1.5,
        )
        theta, tuner = jnp.array([0.5, 0.5]), st.GaussNewton(constraint=st.Box(0.0, 1.0))
        zero = jnp.zeros(1)
        H = jax.jit(lambda theta: curvature_of(kinked, zero, jnp.zeros((1, 2)), theta, zero, 0))(theta)
        assert not np.all(np.isfinite(H))
        update = jax.jit(lambda theta, state: tuner.update(kinked, zero, theta, zero, 0, state))
        moved, state, _ = update(theta, tuner.init(kinked, zero, theta))
        np.testing.assert_array_equal(state.means.curvature, 0.0)
        assert np.all(np.isfinite(moved))
        assert moved[1] > 0.5

    @pytest.mark.parametrize("bad", [np.inf, np.nan])
    def test_a_bad_sensitivity_does_not_enter_the_means(self, bad):
        """θ is then NaN, not at a bound, so that a run or a guard finds it; a reset of y continues."""
        system, tuner = planar_system(), st.GaussNewton(constraint=BOX)
        theta, a, x = jnp.array([1.0, 2.0, 0.5, 0.3]), jnp.zeros(3), jnp.array([1.0, -1.0])
        _, good, _ = tuner.update(system, x, theta, a, 0, tuner.init(system, x, theta))
        broken = gauss_newton.GaussNewtonState(jnp.full((2, 4), bad), good.age, good.means, None)
        moved, state, _ = tuner.update(system, x, theta, a, 1, broken)
        assert np.all(np.isnan(moved))
        jax.tree.map(np.testing.assert_array_equal, good.means, state.means)
        fresh = tuner.reset(system, x, theta, state)
        moved, state, _ = tuner.update(system, x, theta, a, 2, fresh)
        assert np.all(np.isfinite(ravel_pytree((moved, state))[0]))

    @pytest.mark.parametrize("constraint", [st.Box([0.0, 0.0, -1.0, -1.0], [4.0, 4.0, 1.0, 1.0]), st.Ball(9.0)])
    def test_a_gradient_whose_square_overflows_moves_nothing(self, constraint):
        """The same with and without a compiler, which may treat 0 · ∞ as 0."""
        system, tuner = planar_system(), st.GaussNewton(constraint=constraint)
        theta, a, x = jnp.array([1.0, 2.0, 0.5, 0.3]), jnp.zeros(3), jnp.array([1.0, -1.0])
        _, good, _ = tuner.update(system, x, theta, a, 0, tuner.init(system, x, theta))
        large = gauss_newton.GaussNewtonState(jnp.full((2, 4), 1e200), good.age, good.means, None)

        def update(state):
            return tuner.update(system, x, theta, a, 1, state)

        for moved, state, info in (update(large), jax.jit(update)(large)):
            assert np.all(np.isfinite(info.gradient))
            assert np.abs(info.gradient).max() > 1e190
            np.testing.assert_allclose(moved, theta, rtol=1e-15)
            jax.tree.map(np.testing.assert_array_equal, good.means, state.means)

    def test_a_cost_of_zero_moves_nothing(self):
        system = static_system(np.zeros((2, 2)), [0.0, 0.0], offset=0.0)
        got = tuned(system, st.GaussNewton(constraint=st.Box(0.0, 1.0)), jnp.array([0.3, 0.4]), steps=50)
        np.testing.assert_array_equal(got, [0.3, 0.4])

    def test_a_start_without_gradient(self):
        """At rest with zero gains, u = 0 and the gradient is zero, but the curvature is a singular matrix."""
        A, B = 0.9 * np.eye(4) + 0.08 * np.eye(4, k=1), np.eye(4, 2, k=-2)
        system = st.System(
            dynamics=lambda x, u, f, t: jnp.asarray(A) @ x + 0.1 * jnp.asarray(B) @ u,
            residual=lambda x, a, t: 0 * x,
            policy=lambda x, theta, f, t: -theta.reshape(2, 4) @ x,
            cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        )
        scenario = st.Scenario(jnp.zeros(4), jnp.zeros((3000, 1)), st.Gaussian(0.1)(jax.random.key(0), 3000, 4))
        controller = st.Controller(system, st.GaussNewton(constraint=st.Box(-1.0, 1.0)), st.Frozen())
        run = st.simulate(controller, scenario, theta=jnp.zeros(8), a_hat=jnp.zeros(1))
        assert run.cost[-1000:].mean() < run.cost[500:1500].mean() * 1.5
        assert np.abs(run.theta[-1]).max() > 0.1

    def test_reset_forgets_y_alone(self):
        system, tuner = planar_system(), st.GaussNewton(constraint=BOX, contraction_memory=50)
        steps, theta = rows(system, tuner, jnp.array([1.0, 2.0, 0.5, 0.3]), jnp.zeros(3), jnp.array([1.0, -1.0]), 5)
        state = steps[-1][4]
        fresh = tuner.reset(system, jnp.zeros(2), theta, state)
        assert np.any(state.y)
        assert not np.any(fresh.y)
        kept = lambda state: (state.age, state.means, state.contraction)
        jax.tree.map(np.testing.assert_array_equal, kept(fresh), kept(state))

    @pytest.mark.parametrize(
        ("name", "bad"),
        [("memory", 0.5), ("memory", np.inf), ("prior", 0.0), ("cap", -1.0), ("rest", -1), ("rest", np.nan)],
    )
    def test_bad_settings_are_refused(self, name, bad, as_a_user):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            st.GaussNewton(**{name: bad})

    def test_a_constraint_must_be_one(self, as_a_user):
        with pytest.raises(ValueError, match="constraint: expected"):
            st.GaussNewton(constraint=(0.0, 1.0))


class TestRest:
    def test_theta_rests_while_y_and_the_means_settle(self):
        run = planar_run(st.GaussNewton(constraint=BOX, rest=60), steps=100)
        still = np.all(run.theta == run.theta[0], axis=1)
        assert np.flatnonzero(~still)[0] == 61  # the step of t = 60 is the first one that moves θ
        assert np.any(run.gradient[59] != 0)

    def test_a_delicate_plant_stays_stable(self):
        """A random unstable plant: without a rest, all runs leave the gains that stabilize the plant."""
        problem = list(unstable_plants.drawn(6))[5]
        start = problem.starts["weak"]

        def cost(tuner):
            return no_knobs.measure(problem, start, tuner, [0, 1, 2, 3])["total"]

        held = cost(st.Fixed())
        assert np.all(cost(st.GaussNewton(constraint=problem.box)) > 100 * held)
        assert np.all(cost(st.GaussNewton(constraint=problem.box, rest=400)) < 10 * held)


def fallen(seeds):
    """How many runs of the pole on a cart fall."""
    problem = no_knobs.cart_pole()
    tuner = st.GaussNewton(constraint=problem.box)
    angles = jax.jit(jax.vmap(lambda seed: no_knobs.largest_angle(problem, tuner, seed)))
    return np.sum(np.asarray(angles(jnp.asarray(seeds))) > 1)


class TestSigns:
    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_a_sign_changes_only_after_a_fifth_of_the_memory(self, sign):
        system = static_system(np.eye(2), [-0.5 * sign, 0.6 * sign])
        for constraint in (st.Box(-1.0, 1.0), st.Unconstrained()):
            tuner = st.GaussNewton(constraint=constraint, memory=500)
            theta = sign * np.array(
                [
                    first
                    for _, first, *_ in rows(
                        system, tuner, sign * jnp.array([0.05, 0.05]), jnp.zeros(1), jnp.zeros(1), 400
                    )[0]
                ]
            )
            assert np.all(
                theta[: 100 + 1] > 0
            )  # row t is the θ of step t, and the step of t = 99 is the last of the rule
            assert theta[100, 0] == pytest.approx(0.04)  # a fiftieth of the width
            assert np.all(theta[150:, 0] < 0)
            np.testing.assert_allclose(theta[-1], [-0.5, 0.6], atol=0.1)

    def test_bounds_at_zero_and_a_start_at_zero_are_as_without_the_rule(self):
        system = static_system(np.eye(2), [-0.5, -0.5])
        made = rows(
            system,
            st.GaussNewton(constraint=st.Box([0.0, -1.0], 1.0)),
            jnp.array([0.05, 0.0]),
            jnp.zeros(1),
            jnp.zeros(1),
            100,
        )
        theta = np.array([first for _, first, *_ in made[0]])
        assert theta[-1, 0] == 0.0
        assert theta[1, 1] < 0

    def test_logarithms_may_cross_zero_at_once(self):
        tuner = st.GaussNewton(constraint=st.Box(-1.0, 1.0), keep_signs=False)
        made, _ = rows(
            static_system(np.eye(2), [-0.5, 0.6]), tuner, jnp.array([0.05, 0.05]), jnp.zeros(1), jnp.zeros(1), 60
        )
        assert made[-1][1][0] < 0
        pid = policies.PID(kp=0.3, ki=0.3)
        feedback = policies.StateFeedback([[1.0]])
        for policy, kept in ((pid, False), (feedback, True)):
            loop = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policy)
            assert loop.controller().tuner.keep_signs is kept

    def test_a_step_that_is_not_finite_is_not_hidden(self):
        tuner = st.GaussNewton(constraint=st.Box(-1.0, 1.0))
        state = tuner.init(planar_system(), jnp.zeros(2), jnp.ones(4))
        bad = eqx.tree_at(lambda state: state.y, state, jnp.full((2, 4), jnp.nan))
        theta, _, _ = tuner.update(planar_system(), jnp.ones(2), 0.5 * jnp.ones(4), jnp.zeros(3), 0, bad)
        assert np.all(np.isnan(theta))

    def test_a_pole_on_a_cart_seldom_falls(self):
        """Without the rule of signs, 13 of the first 40 runs fall; with it, none."""
        assert fallen(range(40)) <= 2


class TestMemory:
    def test_the_contraction_estimate_changes_nothing_else(self):
        with_it, without = (
            planar_run(st.GaussNewton(constraint=BOX, contraction_memory=m), steps=100) for m in (50, None)
        )
        np.testing.assert_allclose(with_it.theta, without.theta, rtol=1e-12)
        assert with_it.contraction[-1] < 1

    def test_the_suggestion(self):
        assert st.suggest_memory(0.0, d=1) == st.suggest_memory(0.9, d=1) == 2000
        assert st.suggest_memory(0.5, d=14) == 2800
        assert st.suggest_memory(0.5, d=1, period=5000) == 5000
        np.testing.assert_allclose(st.suggest_memory(0.9995, d=1), 40_000, rtol=1e-3)  # −20 / log ρ ≈ 20 / (1 − ρ)

    @pytest.mark.parametrize(("name", "bad"), [("contraction", 1.0), ("contraction", -0.1), ("d", 0), ("period", -1)])
    def test_bad_arguments_are_refused(self, name, bad, as_a_user):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            st.suggest_memory(**dict(contraction=0.9, d=2) | {name: bad})

    @pytest.mark.parametrize(("memory", "warned"), [(2000, True), (25_000, False)])
    def test_a_short_memory_is_warned_of(self, memory, warned):
        """x ↦ 0.999 x + θ has a time constant of 999.5 steps."""
        system = st.System(
            dynamics=lambda x, u, f, t: 0.999 * x + u,
            residual=lambda x, a, t: 0 * x,
            policy=lambda x, theta, f, t: 1e-3 * theta,
            cost=lambda x, u, theta, t: jnp.sum((x - 1.0) ** 2),
        )
        tuner = st.GaussNewton(constraint=st.Box(0.0, 2.0), memory=memory, contraction_memory=100)
        controller = st.Controller(system, tuner, st.Frozen())
        scenario = st.Scenario(jnp.zeros(1), jnp.zeros((500, 1)), jnp.zeros((500, 1)))
        run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))
        warnings = [text for text in run.diagnosis.warnings() if "memory" in text]
        assert len(warnings) == warned
        if warned:
            assert "time constant is 999 steps" in warnings[0]
            assert "at least 19,990" in warnings[0]


def test_a_memory_for_the_default_controller():
    """The default tuner does not measure ρ̂, so there is no warning; `check_contraction` measures ρ̂ before the run."""
    system = st.System(
        dynamics=lambda x, u, f, t: 0.999 * x + u,
        residual=lambda x, a, t: 0 * x + a,
        policy=lambda x, theta, f, t: 1e-3 * theta,
        cost=lambda x, u, theta, t: jnp.sum((x - 1.0) ** 2),
    )
    scenario = st.Scenario(jnp.zeros(1), jnp.zeros((6000, 1)), jnp.zeros((6000, 1)))
    start = dict(theta=jnp.ones(1), a_hat=jnp.zeros(1))
    run = st.simulate(st.Controller(system), scenario[:500], **start)
    assert run.diagnosis.contraction is None
    assert not [text for text in run.diagnosis.warnings() if "memory" in text]
    rho = st.check_contraction(system, scenario, **start).rho
    assert st.suggest_memory(rho, d=1) == 19990  # −20 / log 0.999


def test_it_needs_no_learning_rate_on_a_small_loop():
    """The best static gain of x⁺ = x + 0.1 u + w with h = x² + r u² comes from a scalar Riccati equation. Units of the
    cost that differ by 10¹² give the same gain."""
    dt, r = 0.1, 0.1
    P = 1.0
    for _ in range(1000):
        P = 1 + P - (dt * P) ** 2 / (r + dt**2 * P)
    best = dt * P / (r + dt**2 * P)
    for scale in (1e-6, 1.0, 1e6):
        system = st.System(
            dynamics=lambda x, u, f, t: x + dt * u,
            residual=lambda x, a, t: 0 * x,
            policy=lambda x, theta, f, t: -theta * x,
            cost=lambda x, u, theta, t, scale=scale: scale * (jnp.sum(x**2) + r * jnp.sum(u**2)),
        )
        steps = 40_000
        scenario = st.Scenario(jnp.zeros(1), jnp.zeros((steps, 1)), st.Gaussian(0.3)(jax.random.key(0), steps, 1))
        controller = st.Controller(system, st.GaussNewton(constraint=st.Box(0.0, 15.0)), st.Frozen())
        run = st.simulate(
            controller, scenario, theta=jnp.full(1, 0.2), a_hat=jnp.zeros(1), record=("theta",), stride=100
        )
        # The mean over the second half: θ wanders by about √(τ/N) of the curvature's scale.
        assert np.mean(np.asarray(run.theta[200:])) == pytest.approx(best, rel=0.05)

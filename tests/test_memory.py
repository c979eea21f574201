"""Policies with a memory, and controllers that see measurements instead of the state."""

import dataclasses
import subprocess

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st

DT = 0.02
LIMIT = 3.0


def _reference(t):
    return jnp.sin(0.05 * jnp.asarray(t, float))


def pi(x, memory, theta, f, t):
    """A PI controller with saturation and back-calculation; every gain is in θ."""
    error = _reference(t) - x[0]
    wanted = theta["kp"] * error + memory["integral"] - f[0]
    u = jnp.clip(wanted, -LIMIT, LIMIT)
    integral = memory["integral"] + DT * (theta["ki"] * error + theta["back"] * (u - wanted))
    return u[None], {"integral": integral, "last": u}


def loop_system(**changes):
    parts = {
        "dynamics": lambda x, u, f, t: x + DT * jnp.stack([x[1], -x[0] - 0.4 * x[1] + u[0] + f[0]]),
        "residual": lambda x, a, t: jnp.atleast_1d(a[0] + a[1] * jnp.sin(x[0])),
        "policy": pi,
        "cost": lambda x, memory, u, theta, t: (
            (_reference(t) - x[0]) ** 2 + 0.01 * u[0] ** 2 + 0.1 * (u[0] - memory["last"]) ** 2
        ),
        "memory": {"integral": 0.3, "last": 0.0},
    }
    return st.System(**(parts | changes))


THETA = {"kp": jnp.array(2.0), "ki": jnp.array(3.0), "back": jnp.array(1.0)}
A_HAT = jnp.zeros(2)


def observed_system(gain=0.4):
    """The same plant, of which only the position is measured; a Luenberger observer is part of the memory."""
    plain = loop_system()

    def estimate(measured, memory, theta, t):
        innovation = measured[0] - memory["x_hat"][0]
        return memory["x_hat"] + jnp.stack([gain * innovation, theta["observer"] * innovation])

    def policy(measured, memory, theta, f, t):
        x_hat = estimate(measured, memory, theta, t)
        u, inner = pi(measured, memory["pi"], theta, f, t)
        u = u - 0.5 * x_hat[1]
        return u, {"pi": inner, "x_hat": plain.dynamics(x_hat, u, f, t)}

    return st.System(
        dynamics=plain.dynamics,
        residual=plain.residual,
        policy=policy,
        cost=lambda x, memory, u, theta, t: plain.cost(x, memory["pi"], u, theta, t),
        memory=st.Memory({"pi": {"integral": 0.0, "last": 0.0}, "x_hat": jnp.zeros(2)}),
        measure=lambda x, t: x[:1],
        estimate=estimate,
    )


OBSERVED_THETA = THETA | {"observer": jnp.array(2.0)}


def scenario_of(steps, seed=0, w=0.05, noise=None):
    ka, kw, kn = jax.random.split(jax.random.key(seed), 3)
    return st.Scenario(
        x0=jnp.zeros(2),
        a_star=st.PiecewiseConstant(period=40, low=-0.3, high=0.3)(ka, steps, 2),
        w=st.Gaussian(w)(kw, steps, 2) * DT,
        measurement_noise=None if noise is None else st.Gaussian(noise)(kn, steps, 1),
    )


def controller_of(system, tuner=None):
    tuner = st.MGAPS(0.02, constraint=st.Box(0.05, 20.0)) if tuner is None else tuner
    return st.Controller(system, tuner, st.GradientEstimator(0.05))


class TestGradient:
    """The gradient of M-GAPS against the derivative of the whole rollout."""

    @staticmethod
    def check(system, theta, scenario, tolerance):
        """Compare G_t with the derivative of the cost of step t, if every θ up to t is shifted by the same δ.

        With the true parameters, the model is the plant, so M-GAPS has no model error.
        """
        controller = st.Controller(system, st.MGAPS(0.02, constraint=st.Box(0.05, 20.0)), st.Known())
        run = st.simulate(controller, scenario, theta=theta)
        flat, unravel = jax.flatten_util.ravel_pytree(theta)

        def costs(delta):
            def step(loop_state, inputs):
                theta, a, w, t = inputs
                theta = jax.tree.map(jnp.add, theta, unravel(delta))
                following, cost = system.step(loop_state, theta, a, t)
                return following.at[: w.size].add(w), cost

            rows = (run.theta, scenario.a_star, scenario.w, jnp.arange(len(scenario)))
            return jax.lax.scan(step, system.first(scenario.x0), rows)[1]

        np.testing.assert_allclose(costs(jnp.zeros_like(flat)), run.cost, rtol=1e-10)
        expected = jax.jacfwd(costs)(jnp.zeros_like(flat))
        assert np.all(np.abs(expected[-1, :3]) > 1e-6), "every gain of the PI controller must matter"
        # Both sum the same terms in another order.
        np.testing.assert_allclose(run.gradient, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
        return expected

    def test_equals_the_derivative_of_the_rollout(self):
        self.check(loop_system(), THETA, scenario_of(150), 1e-10)

    def test_with_saturation(self):
        scenario = scenario_of(150)
        pushed = dataclasses.replace(
            loop_system(), cost=lambda x, memory, u, theta, t: (8.0 - x[0]) ** 2 + 0.01 * u[0] ** 2
        )
        strong = dataclasses.replace(
            pushed, policy=lambda x, memory, theta, f, t: pi(x - jnp.array([2.0, 0.0]), memory, theta, f, t)
        )
        run = st.simulate(st.Controller(strong, st.Fixed(), st.Known()), scenario, theta=THETA)
        assert np.mean(np.abs(run.u) == LIMIT) > 0.1, "the control must saturate"
        self.check(strong, THETA, scenario, 1e-10)

    @pytest.mark.slow
    def test_with_an_observer_that_knows_the_first_state(self):
        # Without measurement noise and disturbance the estimate is the state, so linearizing at the estimate is exact.
        scenario = scenario_of(150, w=0.0)
        self.check(observed_system(), OBSERVED_THETA, scenario, 1e-10)

    def test_with_an_observer_that_is_wrong(self):
        # The tuner linearizes at the estimate. The error of the gradient is of the size of the estimation error: here
        # the disturbance makes an estimation error of about a tenth of the velocity.
        scenario = scenario_of(150, w=1.0)
        system = observed_system()
        controller = st.Controller(system, st.MGAPS(0.02, constraint=st.Box(0.05, 20.0)), st.Known())
        run = st.simulate(controller, scenario, theta=OBSERVED_THETA)
        assert run.memory is not None
        estimation_error = np.sqrt(np.mean((run.memory["x_hat"] - run.x) ** 2) / np.mean(run.x**2))
        assert 0.01 < estimation_error < 0.3
        expected = self.check(system, OBSERVED_THETA, scenario, 0.3)
        mean, exact = np.mean(run.gradient, axis=0), np.mean(expected, axis=0)
        assert np.linalg.norm(mean - exact) < 0.1 * np.linalg.norm(exact)

    def test_check_gradient_covers_the_memory(self):
        found = st.check_gradient(loop_system(), jnp.array([[0.1, 0.2], [1.0, -1.0]]), THETA, A_HAT, t=3)
        assert found.ok, found
        assert any("memory" in name for name in found.errors)
        wrong = loop_system(
            policy=lambda x, memory, theta, f, t: (
                pi(x, memory, theta, f, t)[0],
                {"integral": jax.lax.stop_gradient(memory["integral"]) + theta["kp"] * x[0], "last": memory["last"]},
            )
        )
        found = st.check_gradient(wrong, jnp.array([0.1, 0.2]), THETA, A_HAT, memory={"integral": 0.5, "last": 0.1})
        assert not found.ok
        assert "policy: d memory_next[0] / d memory[0]" in found.wrong[0]


@pytest.mark.slow
def test_the_metrics_are_those_of_the_system_whose_state_contains_the_memory():
    """A system with memory is a system without memory whose state is longer: both give the same numbers."""
    system = loop_system(policy=lambda x, memory, theta, f, t: pi(x, memory, theta, f, t))

    def inside(z):
        return z[:2], {"integral": z[2], "last": z[3]}

    def policy(z, theta, f, t):
        u, memory = pi(*inside(z), theta, f, t)
        return jnp.stack([u[0], memory["integral"], memory["last"]])

    longer = st.System(
        dynamics=lambda z, v, f, t: jnp.concatenate([system.dynamics(z[:2], v[:1], f, t), v[1:]]),
        residual=lambda z, a, t: system.residual(z[:2], a, t),
        policy=policy,
        cost=lambda z, v, theta, t: system.cost(*inside(z), v[:1], theta, t),
    )
    scenario = scenario_of(60)
    long_scenario = st.Scenario(jnp.array([0.0, 0.0, 0.3, 0.0]), scenario.a_star, jnp.pad(scenario.w, ((0, 0), (0, 2))))
    runs = [
        (s, c, st.simulate(controller_of(s), c, theta=THETA, a_hat=A_HAT))
        for s, c in ((system, scenario), (longer, long_scenario))
    ]
    for name in ("cost", "gradient", "y", "a_hat"):
        np.testing.assert_allclose(runs[0][2].recorded[name], runs[1][2].recorded[name], rtol=1e-9, atol=1e-12)
    box = st.Box(0.05, 20.0)
    metrics = [
        (
            st.surrogate(s, c, run.theta).gradient,
            st.local_regret(s, c, run.theta, learning_rate=0.02, constraint=box).cumulative,
            st.exact_model_gap(s, c, run).gap,
            st.model_mismatch(s, c, run).mismatch,
            st.static_regret(s, c, run, constraint=box, starts=1).regret,
            st.perturbations(s, c, run, tuner=st.MGAPS(0.02, constraint=box)).norm,
        )
        for s, c, run in runs
    ]
    for ours, theirs in zip(*metrics, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-10)
    with pytest.raises(ValueError, match="system: expected a system without memory"):
        st.path_lengths(system, scenario, runs[0][2], key=jax.random.key(0))


@pytest.mark.parametrize("make", [loop_system, observed_system])
def test_the_engines_agree(make):
    system = make()
    theta = OBSERVED_THETA if system.measure is not None else THETA
    scenario = scenario_of(300, noise=0.01 if system.measure is not None else None)
    for guard in (None, st.Guard()):
        native, xla = (
            st.simulate(controller_of(system), scenario, theta=theta, a_hat=A_HAT, guard=guard, engine=engine)
            for engine in ("native", "xla")
        )
        assert native.engine == "native"
        for name in native.recorded:
            for ours, theirs in zip(*map(jax.tree.leaves, (native.recorded[name], xla.recorded[name])), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [loop_system, pytest.param(observed_system, marks=pytest.mark.slow)])
def test_an_agent_makes_the_steps_of_a_simulation(make, engine):
    system = make()
    theta = OBSERVED_THETA if system.measure is not None else THETA
    noise = 0.01 if system.measure is not None else None
    scenario, guard = scenario_of(200, noise=noise), st.Guard(u_low=-LIMIT, u_high=LIMIT)
    controller = controller_of(system)
    run = st.simulate(controller, scenario, theta=theta, a_hat=A_HAT, guard=guard, infer=True, engine=engine)
    agent = st.Agent(controller, x=np.zeros(2), theta=theta, a_hat=A_HAT, guard=guard, engine=engine)
    seen = run.x if noise is None else run.measured
    assert seen.shape == (200, 2 if noise is None else 1)
    for t in range(200):
        if t:
            agent.observe_state(np.asarray(seen[t]))
        np.testing.assert_allclose(agent.act(np.asarray(seen[t]), t), run.u[t], rtol=0, atol=1e-13)
    for ours, theirs in zip(jax.tree.leaves(agent.theta), jax.tree.leaves(run.final.state.theta), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    np.testing.assert_allclose(agent.a_hat, run.final.state.a_hat, rtol=1e-10, atol=1e-13)
    assert np.any(np.abs(agent.a_hat) > 1e-3), "the estimator must learn"


def test_inferring_needs_a_guard():
    with pytest.raises(ValueError, match="guard: expected a guard, because infer=True"):
        st.simulate(controller_of(loop_system()), scenario_of(5), theta=THETA, a_hat=A_HAT, infer=True)


class TestGuard:
    @staticmethod
    def agent(system=None, **guard):
        system = loop_system() if system is None else system
        options = {"x_limit": 10.0, "u_low": -LIMIT, "u_high": LIMIT} | guard
        return st.Agent(controller_of(system), x=np.zeros(2), theta=THETA, a_hat=A_HAT, guard=st.Guard(**options))

    def test_a_refused_measurement_does_not_wind_the_integral_up(self):
        agent = self.agent()
        for t in range(20):
            agent.act(np.array([-5.0, 0.0]), t)  # far from the reference: the control saturates
        before = agent.state.controller.memory["integral"].copy()
        for t in range(20, 60):
            u = agent.act(np.array([np.nan, 0.0]), t)
            assert np.all(np.isfinite(u))
        assert agent.state.controller.memory["integral"] == before
        agent.act(np.array([-5.0, 0.0]), 60)
        assert agent.state.controller.memory["integral"] != before

    def test_a_rule_of_the_memory_decides_about_refused_measurements(self):
        def follow(before, after, u):
            return {"integral": before["integral"], "last": u[0]}

        agent = self.agent(loop_system(memory=st.Memory({"integral": 0.0, "last": 0.0}, refused=follow)))
        agent.act(np.array([0.5, 0.0]), 0)
        u = agent.act(np.array([np.inf, 0.0]), 1)
        assert agent.state.controller.memory["last"] == u[0]

    def test_numbers_that_are_not_finite_never_enter_the_memory(self):
        agent = self.agent(
            loop_system(
                memory=st.Memory({"integral": 0.0, "last": 0.0}, refused=lambda b, a, u: {**a, "last": u[0] / 0})
            ),
            bridge=0,
        )
        for t in range(5):
            agent.act(np.full(2, np.nan), t)
        assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(agent.state.controller.memory))

    @pytest.mark.parametrize("resets", [False, True])
    def test_a_rollback_treats_the_memory_as_the_policy_says(self, resets):
        rule = (lambda memory, initial: initial) if resets else (lambda memory, initial: memory)
        system = loop_system(memory=st.Memory({"integral": 0.25, "last": 0.0}, restored=rule))
        agent = self.agent(system, window=10, rollback=2.0)
        for t in range(40):
            agent.act(np.array([np.sin(0.05 * t) - 0.01, 0.0]), t)
        wound = agent.state.controller.memory["integral"].copy()
        assert abs(wound - 0.25) > 1e-3
        t, before = 40, wound
        while not agent.decisions & st.Decision.EXPLODED:
            before = agent.state.controller.memory["integral"].copy()
            agent.act(np.array([np.sin(0.05 * t) - 3.0, 0.0]), t)
            t += 1
            assert t < 200, "the cost must explode"
        integral = agent.state.controller.memory["integral"]
        assert integral == 0.25 if resets else integral not in (0.25, before)

    def test_a_saved_agent_continues_with_its_memory(self, tmp_path):
        first, second, third = self.agent(), self.agent(), self.agent()
        xs = 0.3 * np.random.default_rng(0).normal(size=(60, 2))
        for t in range(30):
            first.act(xs[t], t)
            third.act(xs[t], t)
        first.save(tmp_path / "agent.npz")
        second.load(tmp_path / "agent.npz")
        for t in range(30, 60):
            assert second.act(xs[t], t) == third.act(xs[t], t)


@pytest.mark.parametrize("make", [loop_system, observed_system])
def test_the_exported_c_replays_the_run(make, tmp_path):
    system = make()
    theta = OBSERVED_THETA if system.measure is not None else THETA
    start = {"x": jnp.zeros(2), "theta": theta, "a_hat": A_HAT}
    st.export_c(controller_of(system), tmp_path / "c", name="loop", dtype="float64", **start)
    build = ["cc", "-std=c99", "-O2", "-Wall", "-Werror", "loop.c", "main.c", "-o", "replay", "-lm"]
    subprocess.run(build, cwd=tmp_path / "c", check=True)
    done = subprocess.run(["./replay"], cwd=tmp_path / "c", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rows_are_the_values_used_at_the_step():
    run = st.simulate(controller_of(loop_system()), scenario_of(10), theta=THETA, a_hat=A_HAT)
    assert run.memory is not None
    np.testing.assert_array_equal(run.memory["integral"][0], 0.3)
    np.testing.assert_array_equal(run.memory["last"][1:], run.u[:-1, 0])
    with pytest.raises(AttributeError, match="measured was not recorded: the controller got the state itself"):
        _ = run.measured
    observed = st.simulate(
        controller_of(observed_system()), scenario_of(10, noise=0.1), theta=OBSERVED_THETA, a_hat=A_HAT
    )
    np.testing.assert_allclose(
        observed.measured, observed.x[:, :1] + scenario_of(10, noise=0.1).measurement_noise, rtol=1e-12
    )


def test_a_plant_may_have_other_sensors():
    plant = eqx.tree_at(lambda s: (s.measure,), observed_system(), (lambda x, t: jnp.round(x[:1] / 0.25) * 0.25,))
    run = st.simulate(controller_of(observed_system()), scenario_of(50), theta=OBSERVED_THETA, a_hat=A_HAT, plant=plant)
    np.testing.assert_allclose(np.asarray(run.measured) % 0.25, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": lambda x, memory, theta, f, t: -x[:1]}, r"policy: expected a pair \(u, memory\)"),
        ({"policy": lambda x, memory, theta, f, t: (-x[:1], {"integral": x[0]})}, "policy: expected a memory like the"),
        (
            {"policy": lambda x, memory, theta, f, t: (-x[:1], {"integral": x, "last": x[0]})},
            r"policy: expected a memory with float64\[\]",
        ),
        ({"memory": {"integral": np.nan, "last": 0.0}}, "memory: expected finite numbers"),
        ({"memory": {}}, "memory: expected at least one number"),
        ({"measure": lambda x, t: x[:1]}, "estimate: expected a function, because measure is given"),
        ({"estimate": lambda z, memory, theta, t: z}, "measure: expected a function, because estimate is given"),
        (
            {"measure": lambda x, t: x[:1], "estimate": lambda z, memory, theta, t: z},
            r"estimate: expected shape \(2,\), that of x",
        ),
        (
            {"memory": None, "measure": lambda x, t: x, "estimate": lambda z, memory, theta, t: z},
            "memory: expected the numbers from which `estimate` computes the state",
        ),
    ],
)
def test_wrong_parts_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        loop_system(**changes).check(jnp.zeros(2), THETA, A_HAT, 0)


def test_a_measure_that_is_no_function(as_a_user):
    with pytest.raises(ValueError, match="measure: expected a function or None"):
        loop_system(measure=3, estimate=3)


def test_wrong_arguments_of_a_memory_are_named():
    with pytest.raises(ValueError, match="refused: expected a function"):
        st.Memory(0.0, refused=3)
    two, three = (
        st.Scenario(jnp.zeros(2), jnp.zeros((5, 2)), jnp.zeros((5, 2)), measurement_noise=jnp.zeros((5, q)))
        for q in (2, 3)
    )
    with pytest.raises(ValueError, match="measurement_noise: expected rows of shape"):
        st.simulate(controller_of(loop_system()), three, theta=THETA, a_hat=A_HAT)
    with pytest.raises(ValueError, match="no measurement_noise, because the exact loop has none"):
        st.surrogate(loop_system(), two, jax.tree.map(lambda v: jnp.full(5, v), THETA))

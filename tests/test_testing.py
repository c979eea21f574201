"""`selftune.testing` finds each fault of a broken tuner, estimator, constraint or policy, and says what to do."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import policies, testing

pytestmark = pytest.mark.versions
CALLS: list[int] = []


class Tuner(st.AbstractTuner):
    """θ becomes `change(θ)`, leaf by leaf, and the state becomes `next_state(state)`."""

    change: Callable[[Any], Any] = lambda leaf: 0.9 * leaf
    first: Callable[[Any], Any] = lambda x: jnp.zeros_like(x)
    next_state: Callable[[Any], Any] = lambda state: state
    constraint: st.AbstractConstraint = eqx.field(default_factory=st.Unconstrained)

    def init(self, system, x, theta):
        return self.first(x)

    def update(self, system, x, theta, a_hat, t, state):
        gradient = jnp.zeros(4, x.dtype)
        return jax.tree.map(self.change, theta), self.next_state(state), st.TunerInfo(gradient=gradient, y=None)


class Estimator(st.AbstractEstimator):
    change: Callable[[Any], Any] = lambda leaf: 0.9 * leaf
    first: Callable[[Any], Any] = lambda x: jnp.zeros_like(x)
    next_state: Callable[[Any], Any] = lambda state: state
    constraint: st.AbstractConstraint = eqx.field(default_factory=st.Unconstrained)

    def init(self, system, x, a_hat, t=0):
        return self.first(x)

    def update(self, system, x, f_obs, a_hat, t, state):
        return jax.tree.map(self.change, a_hat), self.next_state(state), st.EstimatorInfo(innovation=f_obs)


class Constraint(st.AbstractConstraint):
    """The whole space, if `change` is the identity."""

    change: Callable[[Any], Any] = lambda leaf: leaf

    def project(self, v):
        return jax.tree.map(self.change, v)

    def contains(self, v):
        return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(v)]).all()


class Policy(policies.AbstractPolicy):
    """u = `change`(gain · error), and the memory, which is the last error, becomes `next_state(error)`."""

    change: Callable[[Any], Any] = lambda u: u
    next_state: Callable[[Any], Any] = lambda error: error
    high: jax.Array = eqx.field(default=np.inf, converter=jnp.asarray)
    names: int = 2
    theta: dict[str, Any] = eqx.field(default_factory=lambda: {"gain": jnp.ones(2)})
    constraint: st.AbstractConstraint = eqx.field(default_factory=st.Unconstrained)

    @property
    def memory(self):
        return st.Memory(jnp.zeros(2))

    @property
    def limits(self):
        return jnp.full(2, -jnp.inf), jnp.full(2, self.high)

    @property
    def parameters(self):
        return (policies.Parameter("gain"),) * self.names

    def gains(self, theta):
        return theta

    def __call__(self, inputs, memory, theta):
        error = inputs.reference - inputs.output
        return self.change(theta["gain"] * error + 0.0 * memory), self.next_state(error)


class WithFloat(Tuner):
    step: float = 0.1


class WithStaticFloat(Estimator):
    step: float = eqx.field(default=0.1, static=True)


class FloatRadius(Constraint):
    radius: float = 1.0


class WithArray(Tuner):
    step: jax.Array = eqx.field(default=0.1, converter=jnp.asarray)


class Undeclared(Constraint):
    """An attribute that is not a field is lost when JAX takes the module apart."""

    def __init__(self):
        self.change = lambda leaf: leaf
        object.__setattr__(self, "factor", 1.0)

    def project(self, v):
        return v * self.factor


class Lossy:
    """A state that forgets its count when JAX takes it apart."""

    def __init__(self, count):
        self.count = count


jax.tree_util.register_pytree_node(
    Lossy, lambda state: ((state.count,), None), lambda _, children: Lossy(jnp.zeros_like(children[0]))
)


def hidden_state(leaf):
    CALLS.append(0)
    return leaf + 0.1 * len(CALLS)


def branch(leaf):
    return leaf if jnp.sum(leaf) > 0 else 2.0 * leaf


def callback(leaf):
    return jax.pure_callback(lambda value: np.asarray(value), jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), leaf)


def double(leaf):
    return leaf.astype(jnp.float64)


class Settings(st.AbstractConstraint):
    """A box that does not cast its bound."""

    high: jax.Array = eqx.field(converter=jnp.asarray)

    def project(self, v):
        return jnp.minimum(v, self.high)

    def contains(self, v):
        return jnp.all(v <= self.high)


KINDS = {
    "tuner": (Tuner, testing.TunerCase, testing.check_tuner, "theta.bias"),
    "estimator": (Estimator, testing.EstimatorCase, testing.check_estimator, "a_hat.level"),
    "constraint": (Constraint, testing.ConstraintCase, testing.check_constraint, "project"),
    "policy": (Policy, testing.PolicyCase, testing.check_policy, "u"),
}


def fault(case, check):
    with pytest.raises(AssertionError) as caught:
        check(case)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_part_passes(kind):
    make, _, check, _ = KINDS[kind]
    check(make())
    assert len(testing.PROPERTIES) == 6
    assert len(testing.POLICY_PROPERTIES) == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "check", "message"),
    [
        (hidden_state, testing.check_jit_equals_eager, "jit equals eager: {leaf} differs at step 0"),
        (branch, testing.check_jit_equals_eager, "jit equals eager: a step under jit failed: TracerBool"),
        (callback, testing.check_vmap_equals_loop, "vmap equals loop: a step under vmap failed: NotImplementedError"),
        (double, testing.check_dtype_kept, "dtype kept: {leaf} is float64 where the inputs are float32"),
    ],
    ids=["hidden state", "branch", "callback", "double"],
)
def test_a_broken_step(kind, change, check, message):
    make, case, whole, leaf = KINDS[kind]
    text = fault(case(make(change)), check)
    assert text.startswith(f"{make.__name__}: {message.format(leaf=leaf)}")
    assert re.search(r"\b(Compute|Make|Cast) ", text)
    with pytest.raises(AssertionError, match=message.partition(":")[0]):
        whole(make(change))


@pytest.mark.parametrize(
    ("case", "number"),
    [
        (testing.TunerCase(WithFloat()), "another value of step compiles"),
        (testing.EstimatorCase(WithStaticFloat()), "the number step is static"),
        (testing.ConstraintCase(FloatRadius()), "another value of radius compiles"),
    ],
    ids=["tuner", "estimator", "constraint"],
)
def test_a_number_that_recompiles(case, number):
    text = fault(case, testing.check_one_trace)
    assert f"one trace only: {number}" in text
    assert "eqx.field(converter=jnp.asarray)" in text


def test_an_array_field_does_not_recompile():
    testing.check_one_trace(testing.TunerCase(WithArray()))


@pytest.mark.parametrize("kind", ["tuner", "estimator"])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"first": lambda x: 0.0}, "state is not a jax.Array but float before the first step"),
        ({"next_state": lambda state: jnp.append(state, state)}, "state is float64[4] after step 0 and float64[2]"),
        ({"first": lambda x: jnp.asarray(0.0), "next_state": lambda state: jnp.zeros((), state.dtype)}, "weak float64"),
        ({"next_state": lambda state: (state, state)}, "the values after step 0 have another structure"),
    ],
    ids=["python number", "grows", "weak", "structure"],
)
def test_a_state_that_recompiles(kind, state, message):
    make, case, _, _ = KINDS[kind]
    assert message in fault(case(make(**state)), testing.check_one_trace)


@pytest.mark.parametrize("kind", ["tuner", "estimator"])
def test_a_state_that_is_no_pytree(kind):
    make, case, _, _ = KINDS[kind]
    assert "pytree round trip: state is not a jax.Array but object" in fault(
        case(make(first=lambda x: object())), testing.check_round_trip
    )
    lossy = make(first=lambda x: Lossy(jnp.ones(2, x.dtype)), next_state=lambda state: Lossy(state.count + 1))
    assert "pytree round trip: state.0 differs" in fault(case(lossy), testing.check_round_trip)


def test_a_module_that_is_no_pytree():
    text = fault(testing.ConstraintCase(Undeclared()), testing.check_round_trip)
    assert "pytree round trip: a step after the round trip failed: AttributeError" in text


def test_settings_that_are_not_cast(as_a_user):
    text = fault(testing.ConstraintCase(Settings(0.5)), testing.check_dtype_kept)
    assert "project is float64 where the inputs are float32. Cast settings" in text


@pytest.mark.parametrize("kind", ["tuner", "estimator"])
def test_a_value_outside_the_set(kind):
    make, case, _, leaf = KINDS[kind]
    text = fault(case(make(constraint=st.Box(0.2, 0.6))), testing.check_stays_in_set)
    assert f"stays in the set: {leaf.partition('.')[0]} is outside of the set `constraint` after step" in text


@pytest.mark.parametrize(
    ("project", "contains", "message"),
    [
        (lambda v: v, lambda v: jnp.all(v <= 0.5), "contains(project(v)) is False"),
        (lambda v: v / 2.0, lambda v: jnp.all(jnp.isfinite(v)), "project differs for a point of the set"),
        (lambda v: jnp.where(jnp.all(v <= 0.5), v, 0.0), lambda v: jnp.all(v <= 0.5), "are nearer"),
        (lambda v: jnp.nan_to_num(v), lambda v: jnp.all(jnp.isfinite(v)), "project(NaN) is a number"),
    ],
    ids=["outside", "moves", "not the nearest", "NaN"],
)
def test_what_is_no_projection(project, contains, message):
    class Broken(st.AbstractConstraint):
        def project(self, v):
            return project(v)

        def contains(self, v):
            return contains(v)

    assert message in fault(testing.ConstraintCase(Broken()), testing.check_stays_in_set)


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (dict(high=0.5), testing.check_stays_in_limits, "stays in the limits: u = "),
        (dict(change=lambda u: u[:1]), testing.check_stays_in_limits, "stays in the limits: u = "),
        (dict(change=lambda u: u / jnp.abs(u)), testing.check_finite, "finite: a number is not finite at step 0"),
        (dict(next_state=jnp.log), testing.check_finite, "finite: a number is not finite"),
        (dict(change=jax.lax.stop_gradient), testing.check_derivative, "derivative equals differences: derivative"),
        (dict(names=3), testing.check_description, "description: parameters has 3 entries for 2 numbers"),
        (dict(constraint=st.Box(3.0, 4.0)), testing.check_stays_in_set, "theta is outside of the set `constraint`"),
        (dict(next_state=lambda error: error[:1]), testing.check_one_trace, "one trace only: memory is"),
    ],
    ids=["limit", "size", "division", "memory", "gradient", "names", "set", "memory's shape"],
)
def test_a_broken_policy(broken, check, message):
    assert message in fault(testing.PolicyCase(Policy(**broken)), check)
    with pytest.raises(AssertionError):
        testing.check_policy(Policy(**broken))


def test_a_problem_of_your_own():
    system = st.System(
        dynamics=lambda x, u, f, t: 0.5 * x + u + f,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -theta * x + t["reference"],
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    problem = dict(system=system, x=[1.0], theta=[0.5], a_hat=[0.0], t={"reference": jnp.ones(1)})
    testing.check_tuner(st.GAPS(2, 0.1, constraint=st.Box([0.0], [1.0])), **problem)
    testing.check_estimator(st.RLS(0.9, 10.0, constraint=st.Box([-1.0], [1.0])), **problem)
    with pytest.raises(ValueError, match="system: expected a System together with x, theta and a_hat"):
        testing.check_tuner(st.Fixed(), x=[1.0])
    with pytest.raises(ValueError, match="theta: expected a point of its constraint"):
        testing.check_tuner(st.MGAPS(0.1, constraint=st.Box(5.0, 6.0)))
    for check in (testing.check_tuner, testing.check_estimator, testing.check_constraint, testing.check_policy):
        with pytest.raises(
            ValueError, match=r"expected an? (instance of a )?subclass of selftune\.(policies\.)?Abstract"
        ):
            check(3.0)


@pytest.mark.parametrize(("check", "part"), [(testing.check_tuner, Tuner), (testing.check_estimator, Estimator)])
def test_a_class_in_place_of_an_instance(check, part):
    with pytest.raises(ValueError, match=rf"did you mean {part.__name__}\(\.\.\.\)\?$"):
        check(part)


class TwoValues(Tuner):
    def update(self, system, x, theta, a_hat, t, state) -> Any:
        return theta, state


class TakesAnArray(Tuner):
    def update(self, system, x, theta, a_hat, t, state):
        return theta - 0.1, state, st.TunerInfo(gradient=jnp.zeros(4, x.dtype), y=None)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (TwoValues(), "update: expected three values: theta, the state and a TunerInfo, got 2 values"),
        (TakesAnArray(), "'dict' .*; in this test theta is a dictionary of arrays; use jax.flatten_util.ravel_pytree"),
    ],
)
def test_typical_mistakes_of_a_first_tuner(part, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_tuner(part)

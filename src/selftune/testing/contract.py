"""The whole contract in one call."""

from collections.abc import Callable
from typing import Any

from ..estimators.base import AbstractEstimator
from ..policies.base import AbstractPolicy
from ..problem.constraints import AbstractConstraint
from ..tuners.base import AbstractTuner
from . import policy_properties, properties
from .cases import AbstractCase, ConstraintCase, EstimatorCase, PolicyCase, TunerCase

PROPERTIES: tuple[Callable[[AbstractCase], None], ...] = (
    properties.check_jit_equals_eager,
    properties.check_vmap_equals_loop,
    properties.check_one_trace,
    properties.check_dtype_kept,
    properties.check_round_trip,
    properties.check_stays_in_set,
)
"""The properties of the contract: each is a function of a case."""

POLICY_PROPERTIES: tuple[Callable[[PolicyCase], None], ...] = (
    *PROPERTIES,
    policy_properties.check_stays_in_limits,
    policy_properties.check_finite,
    policy_properties.check_derivative,
    policy_properties.check_description,
)
"""The properties of policies: those of `PROPERTIES`, and four more."""


def check_tuner(tuner: AbstractTuner, **problem: Any) -> None:
    """Check that a tuner has all `PROPERTIES`; raise `AssertionError` with the property, the value and a remedy.

    **Arguments:** those of `TunerCase`.

    !!! Example

        >>> import selftune as st
        >>> from selftune import testing
        >>> testing.check_tuner(st.MGAPS(0.1, constraint=st.Box(0.0, 1.0)))
    """
    _check(TunerCase(tuner, **problem))


def check_estimator(estimator: AbstractEstimator, **problem: Any) -> None:
    """Check that an estimator has all `PROPERTIES`; raise `AssertionError` with the property, the value and a remedy.

    **Arguments:** those of `EstimatorCase`.

    !!! Example

        >>> import selftune as st
        >>> from selftune import testing
        >>> testing.check_estimator(st.GradientEstimator(0.1))
    """
    _check(EstimatorCase(estimator, **problem))


def check_constraint(constraint: AbstractConstraint, *, like: Any = None) -> None:
    """Check that a constraint has all `PROPERTIES`; raise `AssertionError` with the property, the value and a remedy.

    **Arguments:** those of `ConstraintCase`.

    !!! Example

        >>> import selftune as st
        >>> from selftune import testing
        >>> testing.check_constraint(st.Simplex())
    """
    _check(ConstraintCase(constraint, like=like))


def check_policy(policy: AbstractPolicy, **inputs: Any) -> None:
    """Check that a policy has all `POLICY_PROPERTIES`; raise `AssertionError` with the property, the value and a
    remedy.

    **Arguments:** those of `PolicyCase`.

    !!! Example

        >>> from selftune import policies, testing
        >>> testing.check_policy(policies.PID(kp=2.0, ki=1.0, kd=0.1, u_min=-3.0, u_max=3.0))
    """
    case = PolicyCase(policy, **inputs)
    for check in POLICY_PROPERTIES:
        check(case)


def _check(case: AbstractCase) -> None:
    for check in PROPERTIES:
        check(case)

"""State feedback, with integral action and feed-forward if they are wanted."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, extras
from ..foundation.errors import ArgumentError
from ..problem.constraints import AbstractConstraint
from ..problem.memory import Memory
from . import _matrices, base
from .anti_windup import Clamping
from .base import AbstractPolicy, Inputs, Parameter


class StateFeedback(AbstractPolicy):
    r"""State feedback.

    $$v_t = -K x_t + N r_t + I_t - M \hat f_t, \quad u_t = \mathrm{limit}(v_t), \qquad
    I_{t+1} = I_t + h\, K_i (r_t - y_t)$$

    At a limit, the integral term stops if the error would drive it farther (`Clamping`). θ has K, and $K_i$ and N if
    they are given, each number as a share of its start size: the start of θ is 1, −1 or 0. The scale of a gain that
    starts at 0 is the largest gain of its row.

    **Arguments:**

    - `K`: the start gains, (m, n).
    - `integral`: $K_i$, (m, q). `feedforward`: N, (m, q).
    - `u_min`, `u_max`: the limits of u.
    - `compensation`: as in `PID`.
    - `constraint`: Θ; by default θ moves by at most 10, which is ten times the start gains.

    !!! Example

        >>> from selftune import policies
        >>> feedback = policies.StateFeedback([[2.0, 0.5]], feedforward=[[2.0]])
        >>> inputs = policies.Inputs.of(output=[0.3], reference=[1.0], x=[0.3, 0.1], dt=0.01)
        >>> u, memory = feedback(inputs, None, feedback.theta)
        >>> print(u)
        [1.35]
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    scale: dict[str, Array]
    u_min: Array | None
    u_max: Array | None
    compensation: Array | None

    def __init__(
        self,
        K: Any,
        *,
        integral: Any = None,
        feedforward: Any = None,
        u_min: Any = None,
        u_max: Any = None,
        compensation: Any = None,
        constraint: AbstractConstraint | None = None,
    ):
        given = {"K": _matrices.matrix("K", K, (None, None))}
        m = given["K"].shape[0]
        if integral is not None:
            given["integral"] = _matrices.matrix("integral", integral, (m, None))
        if feedforward is not None:
            given["feedforward"] = _matrices.matrix("feedforward", feedforward, (m, None))
        self.scale = {name: _matrices.scale_of(gain) for name, gain in given.items()}
        self.theta = {name: gain / self.scale[name] for name, gain in given.items()}
        self.u_min, self.u_max = base.bound("u_min", u_min, m), base.bound("u_max", u_max, m)
        base.ordered(self.u_min, self.u_max)
        self.compensation = None if compensation is None else arguments.real_array("compensation", compensation)
        self.constraint = base.checked_constraint(constraint, self.theta, _matrices.box(self.theta))

    @classmethod
    def lqr(
        cls, A: Any, B: Any, Q: Any, R: Any, *, C: Any = None, integral_cost: Any = None, dt: Any = None, **options: Any
    ) -> "StateFeedback":
        r"""Return the linear-quadratic regulator, which minimizes $\sum_t x_t^\top Q x_t + u_t^\top R u_t$ of the model
        $x_{t+1} = A x_t + B u_t$.

        **Arguments:**

        - `A`, `B`, `Q`, `R`: matrices of the model in discrete time, and of the cost.
        - `C`: if the output is $y = C x$, the feed-forward N brings y to the reference.
        - `integral_cost`: the cost of the integral of $r - y$, a (q, q) matrix; it adds integral action. It needs `C`
          and the sampling period `dt`.
        - `options`: the other arguments of `StateFeedback`.

        !!! Example

            >>> from selftune import policies
            >>> A, B = [[1.0, 0.1], [0.0, 1.0]], [[0.005], [0.1]]
            >>> regulator = policies.StateFeedback.lqr(A, B, Q=[[1.0, 0.0], [0.0, 0.0]], R=[[0.1]], C=[[1.0, 0.0]])
            >>> gains = regulator.gains(regulator.theta)
            >>> print(gains["K"].round(2), gains["feedforward"].round(2))
            [[2.79 2.36]] [[2.79]]
        """
        A, B, Q, R = (
            np.asarray(_matrices.matrix(n, v, (None, None))) for n, v in zip("ABQR", (A, B, Q, R), strict=True)
        )
        design = extras.load("policies._linear_design", asked_for="StateFeedback.lqr")
        if integral_cost is None:
            return cls._with_feedforward(design, A, B, C, design.lqr(A, B, Q, R), None, options)
        if C is None or dt is None:
            raise ArgumentError("integral_cost", "None, unless C and dt are given", f"C={C!r}, dt={dt!r}")
        C, n = np.asarray(_matrices.matrix("C", C, (None, A.shape[0]))), A.shape[0]
        q, h = C.shape[0], float(arguments.positive("dt", dt))
        weight = np.asarray(_matrices.matrix("integral_cost", integral_cost, (q, q)))
        # The state (x, z) with the integral z of −y.
        wide_A = np.block([[A, np.zeros((n, q))], [-h * C, np.eye(q)]])
        wide_Q = np.block([[Q, np.zeros((n, q))], [np.zeros((q, n)), weight]])
        K, Kz = np.split(design.lqr(wide_A, np.vstack([B, np.zeros((q, B.shape[1]))]), wide_Q, R), [n], axis=1)
        return cls._with_feedforward(design, A, B, C, K, -Kz, options)

    @classmethod
    def place(cls, A: Any, B: Any, poles: Any, *, C: Any = None, **options: Any) -> "StateFeedback":
        r"""Return the feedback for which $A - B K$ has these eigenvalues (discrete time: inside the unit circle).

        `C` and `options` are as in `lqr`.

        !!! Example

            >>> from selftune import policies
            >>> A, B = [[1.0, 0.1], [0.0, 1.0]], [[0.005], [0.1]]
            >>> feedback = policies.StateFeedback.place(A, B, poles=[0.8, 0.9])
            >>> print(feedback.gains(feedback.theta)["K"].round(3))
            [[2.  2.9]]
        """
        A, B = (np.asarray(_matrices.matrix(n, v, (None, None))) for n, v in zip("AB", (A, B), strict=True))
        design = extras.load("policies._linear_design", asked_for="StateFeedback.place")
        return cls._with_feedforward(design, A, B, C, design.place(A, B, poles), None, options)

    @classmethod
    def _with_feedforward(
        cls, design: Any, A: Any, B: Any, C: Any, K: Any, integral: Any, options: dict[str, Any]
    ) -> "StateFeedback":
        if C is not None and "feedforward" not in options:
            C = np.asarray(_matrices.matrix("C", C, (None, A.shape[0])))
            options = {**options, "feedforward": design.reference_gain(A, B, C, K)}
        return cls(K, integral=integral, **options)

    @property
    def memory(self) -> Memory | None:
        if "integral" not in self.scale:
            return None
        return Memory({"integral": jnp.zeros_like(self.scale["integral"][:, 0])})

    @property
    def limits(self) -> tuple[Array, Array]:
        return base.as_limits(self.u_min, self.u_max, self.scale["K"][:, 0])

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(p for name in sorted(self.theta) for p in _matrices.describe(name, self.theta[name]))

    def gains(self, theta: PyTree) -> dict[str, Array]:
        return {name: self.scale[name].astype(share.dtype) * share for name, share in theta.items()}

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        gains = self.gains(theta)
        v = -gains["K"] @ inputs.x
        if "feedforward" in gains:
            v = v + gains["feedforward"] @ inputs.reference
        v = base.compensated(v, self.compensation, inputs.f)
        if "integral" not in gains:
            return base.saturate(v, self.u_min, self.u_max), None
        v = v + memory["integral"]
        u = base.saturate(v, self.u_min, self.u_max)
        step = inputs.dt * (gains["integral"] @ (inputs.reference - inputs.output))
        return u, {"integral": memory["integral"] + Clamping().step(step, v, u, inputs.dt, inputs.dt)}

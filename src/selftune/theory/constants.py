"""The assumptions of the theory: the sets, and the constants of Lipschitzness and smoothness on them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint


def number(name: str, value: Any, *, positive: bool = False, infinite: bool = False) -> float:
    """A real number as a float. Raises `ValueError` if it is negative (with `positive`, also if zero) or not finite."""
    expected = f"a {'' if infinite else 'finite '}number {'>' if positive else '>='} 0"
    array = arguments.number(
        name, value, lambda v: (v > 0 if positive else v >= 0) and (infinite or v < math.inf), expected
    )
    return float(value) if isinstance(value, (int, float)) else float(array)


@dataclass(frozen=True, kw_only=True)
class Sets:
    r"""The sets on which the theory is applied (Assumption "Lipschitz and smoothness" and what follows it).

    **Arguments:**

    - `x_radius`: $R_x$; $\mathcal X = B(0, R_x)$.
    - `u_radius`: $\mathcal U = B(0, R_u)$, which must contain every control $\psi - f$ and every $v = u + f$ that
      occurs.
    - `theta`, `a`: Θ and 𝒜, bounded constraints. The tuner's Θ may be larger; the certificate checks every θ.
    - `theta_step`: $\epsilon_\theta$, the largest step of θ among the sequences $S_{\epsilon_\theta}$.

    !!! Example

        >>> import selftune as st
        >>> sets = st.Sets(
        ...     x_radius=2.0, u_radius=10.0, theta=st.Box(0.5, 5.0), a=st.Box(-0.25, 0.25), theta_step=0.01
        ... )
    """

    x_radius: float
    u_radius: float
    theta: AbstractConstraint
    a: AbstractConstraint
    theta_step: float

    def __post_init__(self) -> None:
        for name in ("x_radius", "u_radius", "theta_step"):
            object.__setattr__(self, name, number(name, getattr(self, name), positive=True))
        for name in ("theta", "a"):
            projected_step.constraint(getattr(self, name), name)


@dataclass(frozen=True, kw_only=True)
class Constants:
    r"""L and ℓ of φ, ψ, f and h over the sets (Assumption "Lipschitz and smoothness"), each with its source.

    F is $(L_x, L_u)$-Lipschitz and $(\ell_x, \ell_u)$-smooth in $(x, u)$ if
    $\|F(x, u) - F(x', u')\| \le L_x \|x - x'\| + L_u \|u - u'\|$ and the whole Jacobian satisfies the same with ℓ.
    Norms of matrices are operator norms.

    Numbers that you write here are `given`: the certificate assumes that they are correct. `sample_constants` returns
    `sampled` numbers, which are lower estimates. `source` has the source of each by name; `replace` replaces single
    constants by given ones.

    !!! Example

        >>> import selftune as st
        >>> constants = st.Constants(  # of x' = x + 0.01 v, ψ = −θx, f = a sin x, h = x² + 0.1 u², for |x| ≤ 2, θ ≤ 5
        ...     L_phi_x=1, L_phi_u=0.01, ell_phi_x=0, ell_phi_u=0,
        ...     L_psi_x=5, L_psi_theta=2, ell_psi_x=1, ell_psi_theta=1,
        ...     L_f_x=0.25, L_f_a=1, ell_f_x=1.04, ell_f_a=1,
        ...     L_h_x=4, L_h_u=2.1, L_h_theta=0, ell_h_x=2, ell_h_u=0.2, ell_h_theta=0,
        ... )  # fmt: skip
        >>> constants.L_h, constants.source["L_phi_x"]
        (4.0, 'given')
    """

    L_phi_x: float
    L_phi_u: float
    ell_phi_x: float
    ell_phi_u: float
    L_psi_x: float
    L_psi_theta: float
    ell_psi_x: float
    ell_psi_theta: float
    L_f_x: float
    L_f_a: float
    ell_f_x: float
    ell_f_a: float
    L_h_x: float
    L_h_u: float
    L_h_theta: float
    ell_h_x: float
    ell_h_u: float
    ell_h_theta: float
    source: Mapping[str, str] = field(default_factory=dict)
    """`given` or `sampled`, by name."""

    def __post_init__(self) -> None:
        for name in NAMES:
            object.__setattr__(self, name, number(name, getattr(self, name)))
        unknown = set(self.source) - set(NAMES)
        if unknown or not set(self.source.values()) <= {"given", "sampled"}:
            raise ArgumentError("source", "names of constants with 'given' or 'sampled'", f"{dict(self.source)}")
        object.__setattr__(self, "source", {name: self.source.get(name, "given") for name in NAMES})

    def replace(self, **given: float) -> "Constants":
        """The constants with these numbers replaced by given ones."""
        if unknown := sorted(set(given) - set(NAMES)):
            raise ArgumentError("replace", f"names from {', '.join(NAMES)}", f"{unknown}")
        values = {name: getattr(self, name) for name in NAMES}
        return Constants(**values | given, source=dict(self.source) | dict.fromkeys(given, "given"))

    @property
    def L_h(self) -> float:
        r"""$L_h = \max\{L_{h,x}, L_{h,u}, L_{h,\theta}\}$."""
        return max(self.L_h_x, self.L_h_u, self.L_h_theta)

    @property
    def L_u_x(self) -> float:
        r"""The Lipschitz constant of the control $u = \psi - f$ in x: $L_{\psi,x} + L_{f,x}$."""
        return self.L_psi_x + self.L_f_x

    @property
    def ell_u_x(self) -> float:
        r"""The smoothness constant of the control in x: $\ell_{\psi,x} + \ell_{f,x}$."""
        return self.ell_psi_x + self.ell_f_x

    @property
    def sampled(self) -> tuple[str, ...]:
        """The names of the sampled constants."""
        return tuple(name for name in NAMES if self.source[name] == "sampled")


NAMES = tuple(each.name for each in fields(Constants) if each.name != "source")


@dataclass(frozen=True, kw_only=True)
class Contraction:
    r"""The contraction of the closed loop with the exact model (Assumption "contractive and stability").

    For all $\theta_{\tau:t-1} \in S_{\epsilon_\theta}$ and $x, x' \in B(0, R_C)$:

    $$\|g^*_{t|\tau}(x, \theta) - g^*_{t|\tau}(x', \theta)\| \le \bar C \rho^{t-\tau} \|x - x'\|, \qquad
    \|g^*_{t|\tau}(0, \theta)\| \le R_S$$

    **Arguments:** `C_bar` ≥ 1, `rho` > 0, `R_S`, `R_C` (infinity by default), and the `source`: `given` (by you) or
    `sampled` (by `sample_contraction`, a lower estimate). `rho` ≥ 1 means that the loop does not contract.

    !!! Example

        >>> import selftune as st
        >>> st.Contraction(C_bar=1.0, rho=0.995, R_S=1.5).contracts
        True
    """

    C_bar: float
    rho: float
    R_S: float
    R_C: float = math.inf
    source: str = "given"

    def __post_init__(self) -> None:
        for name, infinite in (("C_bar", True), ("rho", False), ("R_S", True), ("R_C", True)):
            value = number(name, getattr(self, name), positive=name != "R_S", infinite=infinite)
            object.__setattr__(self, name, value)
        if self.C_bar < 1:
            raise ArgumentError("C_bar", "a number >= 1, because the case t = τ needs it", f"{self.C_bar}")
        if self.source not in ("given", "sampled"):
            raise ArgumentError("source", "'given' or 'sampled'", f"{self.source!r}")

    @property
    def contracts(self) -> bool:
        return self.rho < 1 and math.isfinite(self.C_bar)

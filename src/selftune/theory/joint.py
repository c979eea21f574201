"""Properties 1 and 2 of the joint dynamics as numbers: all that Theorem 1 needs."""

import math
from dataclasses import dataclass, fields

from .constants import number
from .matched import JointContraction, ModelLipschitz, Radii


@dataclass(frozen=True, kw_only=True)
class Joint:
    r"""The constants of Properties "Lipschitzness" and "Contraction Stability", for a system that is not matched.

    This is not the joint of a robot. Theorem 1 needs no other property of the joint dynamics $q_t$ of system and tuner.
    For a `MatchedSystem` the certificate derives these numbers from `Constants` and `Contraction`; for any other
    `System` you give them. For $\|x\| \le R_x$, $\|y\| \le R_y$, $\theta \in \Theta$ and $\hat a \in \mathcal A$:

    $$\begin{aligned}
    \|q_t^i(x, y, \theta, \hat a) - q_t^i(x, y, \theta, a^*_t)\| &\le \alpha_i \varepsilon_t + \beta_i \varepsilon_t',
    \qquad i \in \{x, y, \theta\}, \\
    \|q_t^\theta(x, y, \theta, a^*_t) - q_t^\theta(x', y', \theta, a^*_t)\| &\le L_{\theta,x} \|x - x'\| + L_{\theta,y}
    \|y - y'\|, \\
    \|(x_{\tau+s}, y_{\tau+s}) - (x'_{\tau+s}, y'_{\tau+s})\| &\le \gamma(s) \|(x_\tau, y_\tau) - (x'_\tau, y'_\tau)\|,
    \qquad \gamma(s) = (c_0 + c_1 s) \rho^s,
    \end{aligned}$$

    where the last two inequalities hold with the exact model, and the last one for every slowly changing sequence of θ.
    With the exact model the state and y stay within $R_x^*$ and $R_y^*$. Norms of y are operator norms.

    **Arguments:** `alpha_x` … `beta_theta`, `L_theta_x`, `L_theta_y`; `rho`; `gamma`: $c_0$; `gamma_linear`: $c_1$;
    `x_star`, `y_star`, `y_radius`: $R_x^*$, $R_y^*$, $R_y$ ($R_x$ is `Sets.x_radius`); `perturbation_limit`:
    $\bar\zeta$ of Property "Robustness", infinite if that property is not needed. The constants of θ are proportional
    to the learning rate; for a schedule, give them for the largest rate.

    !!! Example

        >>> import selftune as st
        >>> joint = st.Joint(  # of x' = x/2 + u + f with u = θ: the policy does not cancel f, and y' = y/2 + 1
        ...     alpha_x=0, beta_x=0, alpha_y=0, beta_y=0, alpha_theta=0, beta_theta=0, L_theta_x=0.02, L_theta_y=0.02,
        ...     rho=0.5, gamma=1.0, x_star=2.0, y_star=2.0, y_radius=2.5,
        ... )  # fmt: skip
        >>> joint.contraction.total  # C
        2.0
    """

    alpha_x: float
    beta_x: float
    alpha_y: float
    beta_y: float
    alpha_theta: float
    beta_theta: float
    L_theta_x: float
    L_theta_y: float
    rho: float
    gamma: float
    gamma_linear: float = 0.0
    x_star: float
    y_star: float
    y_radius: float
    perturbation_limit: float = math.inf

    def __post_init__(self) -> None:
        for each in fields(self):
            infinite = each.name == "perturbation_limit"
            positive = each.name in ("rho", "gamma", "y_radius")
            value = number(each.name, getattr(self, each.name), positive=positive, infinite=infinite)
            object.__setattr__(self, each.name, value)

    @property
    def lipschitz(self) -> ModelLipschitz:
        """Property "Lipschitzness"."""
        return ModelLipschitz(**{each.name: getattr(self, each.name) for each in fields(ModelLipschitz)})

    @property
    def contraction(self) -> JointContraction:
        r"""Property "Contraction Stability", with $C = \frac{c_0}{1-\rho} + \frac{c_1 \rho}{(1-\rho)^2}$."""
        room = 1 - self.rho
        total = math.inf if room <= 0 else self.gamma / room + self.gamma_linear * self.rho / room**2
        return JointContraction(self.gamma, self.gamma_linear, self.rho, total)

    def radii(self, x_radius: float) -> Radii:
        """The four radii of Property "Contraction Stability"."""
        return Radii(x_radius, self.x_star, self.y_radius, self.y_star)

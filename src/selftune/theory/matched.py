r"""The three properties of M-GAPS on matched-disturbance systems, as numbers (appendix "Matched-Disturbance Dynamics").

Norms of y and of all matrices are operator norms, so that the proofs need no further factors.
"""

import math
from dataclasses import dataclass

import numpy as np

from .constants import Constants, Contraction
from .multi_step import multi_step_cost, multi_step_dynamics, surrogate_constants


@dataclass(frozen=True)
class Radii:
    r"""The radii of the balls that contain the states: $R_x$, $R_x^*$, $R_y$, $R_y^*$."""

    x: float
    x_star: float
    y: float
    y_star: float

    @property
    def margin(self) -> float:
        r"""$\min\{R_x - R_x^*, R_y - R_y^*\}$; not positive if the sets are too small."""
        return min(self.x - self.x_star, self.y - self.y_star)


@dataclass(frozen=True)
class ModelLipschitz:
    """The constants of the change of the joint dynamics due to a wrong model (Property "Lipschitzness")."""

    alpha_x: float
    beta_x: float
    alpha_y: float
    beta_y: float
    alpha_theta: float
    beta_theta: float
    L_theta_x: float
    L_theta_y: float


@dataclass(frozen=True)
class JointContraction:
    r"""The contraction of (x, y): $\gamma(\tau) = (c_0 + c_1 \tau) \rho^\tau$, with $\sum_\tau \gamma(\tau) \le C$."""

    constant: float
    linear: float
    rho: float
    total: float
    """C."""

    def gamma(self, tau: float) -> float:
        if self.rho >= 1:
            return math.inf
        return (self.constant + self.linear * tau) * self.rho**tau


@dataclass(frozen=True)
class GradientBias:
    r"""$\hat C_0, \dots, \hat C_5$ of Theorem "Gradient Bias"."""

    C0: float
    C1: float
    C2: float
    C3: float
    C4: float
    C5: float
    rho: float

    @property
    def per_rate(self) -> float:
        r"""$K = \frac{\hat C_0}{1-\rho} + \frac{\hat C_1 + \hat C_2}{(1-\rho)^2} + \frac{\hat C_2}{(1-\rho)^3}$:
        without perturbations, the bias is at most $K \eta$."""
        s = 1 - self.rho
        if s <= 0:
            return math.inf
        return self.C0 / s + (self.C1 + self.C2) / s**2 + self.C2 / s**3

    @property
    def per_perturbation(self) -> float:
        r"""$Z = \frac{\hat C_3 + \hat C_5}{(1-\rho)^2} + \frac{\hat C_4}{(1-\rho)^3}$: a perturbation adds at most
        $Z \|\zeta\|$ to the sum of all later biases."""
        s = 1 - self.rho
        if s <= 0:
            return math.inf
        return (self.C3 + self.C5) / s**2 + self.C4 / s**3


@dataclass(frozen=True)
class MismatchLimits:
    r"""$C_f$ and $C_f'$: the largest model errors for which the guarantees hold (Assumption "linear function
    approximation")."""

    C_f: float
    C_f_prime: float


def radii(constants: Constants, contraction: Contraction, *, x_radius: float, x0_norm: float = 0.0) -> Radii:
    r"""The radii of Property "Contraction Stability" (Lemma "matched-disturbance contraction and stability").

    $$R_x^* = R_S + \bar C \|x_0\|, \qquad R_y = \frac{\bar C L_{\phi,u} L_{\psi,\theta}}{\rho (1-\rho)}, \qquad
    R_y^* = \frac{\rho\, C_{L,g,\theta}}{1-\rho} = \rho R_y$$

    The text assumes $x_0 = 0$. It has $R_y^* = C_{L,g,\theta} / (1-\rho)$, which equals $R_y$ and would leave no
    margin; the sum in its proof begins at ρ and gives the formula here.
    """
    g = multi_step_dynamics(constants, contraction)
    if not contraction.contracts:
        return Radii(x_radius, math.inf, math.inf, math.inf)
    y = g.L_theta / (1 - contraction.rho)
    return Radii(x_radius, contraction.R_S + contraction.C_bar * x0_norm, y, contraction.rho * y)


def model_lipschitz(constants: Constants, radii: Radii, *, learning_rate: float) -> ModelLipschitz:
    r"""Lemma "matched-disturbance Lipschitz".

    $$\begin{aligned}
    \alpha_x &= L_{\phi,u}, \qquad \beta_x = \alpha_y = \beta_y = 0, \\
    \alpha_\theta &= \eta (R_y (\ell_{h,x} + \ell_{h,u} (L_{f,x} + L_{\psi,x})) + \ell_{h,u} L_{\psi,\theta} +
    \ell_{h,\theta}), \qquad \beta_\theta = \eta R_y L_{h,u}, \\
    L_{\theta,x} &= \eta R_y ((\ell_{h,x} + \ell_{h,u} L_{u,x})(1 + L_{u,x}) + L_{h,u} \ell_{u,x}) \\
    &\quad + \eta ((\ell_{h,x} + \ell_{h,u} L_{u,x}) L_{\psi,\theta} + L_{h,u} \ell_{\psi,x} + \ell_{h,\theta} (1 +
    L_{u,x})), \\
    L_{\theta,y} &= \eta (L_{h,x} + L_{h,u} L_{u,x}),
    \end{aligned}$$

    with $L_{u,x} = L_{f,x} + L_{\psi,x}$ and $\ell_{u,x} = \ell_{f,x} + \ell_{\psi,x}$. The text states $\alpha_x =
    \ell_{h,u} L_{\psi,\theta}$ but proves $L_{\phi,u}$. Its terms omit $\ell_{h,\theta}$, which is needed for a cost
    that depends on θ itself.
    """
    k, eta, Ry = constants, learning_rate, radii.y
    control = 1 + k.L_u_x
    slope = k.ell_h_x + k.ell_h_u * k.L_u_x
    through_y = slope * control + k.L_h_u * k.ell_u_x
    directly = slope * k.L_psi_theta + k.L_h_u * k.ell_psi_x + k.ell_h_theta * control
    return ModelLipschitz(
        alpha_x=k.L_phi_u,
        beta_x=0.0,
        alpha_y=0.0,
        beta_y=0.0,
        alpha_theta=eta * (_times(Ry, slope) + k.ell_h_u * k.L_psi_theta + k.ell_h_theta),
        beta_theta=eta * _times(Ry, k.L_h_u),
        L_theta_x=eta * (_times(Ry, through_y) + directly),
        L_theta_y=eta * (k.L_h_x + k.L_h_u * k.L_u_x),
    )


def joint_contraction(constants: Constants, contraction: Contraction, radii: Radii) -> JointContraction:
    r"""Lemma "matched-disturbance contraction and stability".

    $$\gamma(\tau) = (\bar C + C_{\ell,g,(x,x)} R_y + C_{\ell,g,(\theta,x)} \bar C \tau) \rho^\tau, \qquad
    C = \frac{\bar C + C_{\ell,g,(x,x)} R_y}{1-\rho} + \frac{C_{\ell,g,(\theta,x)} \bar C}{(1-\rho)^2}$$
    """
    g, C_bar, rho = multi_step_dynamics(constants, contraction), contraction.C_bar, contraction.rho
    if not contraction.contracts:
        return JointContraction(math.inf, math.inf, rho, math.inf)
    constant, linear = C_bar + g.l_x_x * radii.y, g.l_theta_x * C_bar
    return JointContraction(constant, linear, rho, constant / (1 - rho) + linear / (1 - rho) ** 2)


def learning_rate_limit(constants: Constants, contraction: Contraction, *, theta_step: float) -> float:
    r"""$\bar\eta$, the largest admissible η (Lemma "matched-disturbance robustness").

    $$\bar\eta = \min\left\{\frac{(1-\rho) \epsilon_\theta}{C_{L,h,\theta}}, \frac{1}{2 \ell_F}\right\}$$

    The text's second term is $(1-\rho)/(2 C_{\ell,h,(\theta,\theta)})$, the same with its $\ell_F$.
    """
    F = surrogate_constants(constants, contraction)
    return min(_over(theta_step, F.L), _over(1.0, 2 * F.ell))


def perturbation_limit(
    constants: Constants, contraction: Contraction, *, learning_rate: float, theta_step: float
) -> float:
    r"""$\bar\zeta$, the largest perturbation (Lemma "matched-disturbance robustness"). Not positive if η is too large.

    $$\bar\zeta = \min\left\{1, \epsilon_\theta - \frac{C_{L,h,\theta}\, \eta}{1-\rho}\right\}$$
    """
    return min(1.0, theta_step - surrogate_constants(constants, contraction).L * learning_rate)


def mismatch_limits(
    lipschitz: ModelLipschitz, contraction: JointContraction, radii: Radii, *, perturbation_limit: float
) -> MismatchLimits:
    r"""$C_f$ and $C_f'$ (Assumption "linear function approximation").

    $$C_f = \min\left\{\frac{\sqrt2\, \bar\zeta}{4 (L_{\theta,x} + L_{\theta,y}) C \alpha_x}, \frac{\min\{R_x - R_x^*,
    R_y - R_y^*\}}{C \alpha_x}, \frac{\bar\zeta}{4 \alpha_\theta}\right\}$$

    and the same for $C_f'$ with β; a term with denominator zero is infinite. The text has $\bar\zeta / (2
    \alpha_\theta)$ and $\bar\zeta / (2 \beta_\theta)$, which together allow $\alpha_\theta \varepsilon + \beta_\theta
    \varepsilon' = \bar\zeta$, twice the limit of the theorem on the meta-framework.
    """
    zeta = max(perturbation_limit, 0.0)
    room = min(
        _over(math.sqrt(2) * zeta, 4 * _times(lipschitz.L_theta_x + lipschitz.L_theta_y, contraction.total)),
        _over(max(radii.margin, 0.0), contraction.total),
    )
    return MismatchLimits(
        C_f=min(_over(room, lipschitz.alpha_x + lipschitz.alpha_y), _over(zeta, 4 * lipschitz.alpha_theta)),
        C_f_prime=min(_over(room, lipschitz.beta_x + lipschitz.beta_y), _over(zeta, 4 * lipschitz.beta_theta)),
    )


def gradient_bias(constants: Constants, contraction: Contraction) -> GradientBias:
    r"""Theorem "Gradient Bias".

    $$\begin{aligned}
    \hat C_0 &= \frac{\rho\, C_{L,h,\theta} C_{L,g,\theta} C_{\ell,h,(\theta,x)}}{(1-\rho)^3}, \qquad
    \hat C_1 = \frac{(1-\rho) C_{L,h,\theta} C_{\ell,h,(\theta,\theta)} + \rho\, C_{L,h,\theta} C_{L,g,\theta}
    C_{\ell,h,(\theta,x)}}{(1-\rho)^2}, \\
    \hat C_2 &= \frac{C_{L,h,\theta} C_{\ell,h,(x,\theta)} C_{L,g,\theta}}{1-\rho}, \qquad
    \hat C_3 = \frac{\rho\, C_{L,g,\theta} C_{\ell,h,(\theta,x)}}{1-\rho} + C_{\ell,h,(\theta,\theta)}, \\
    \hat C_4 &= C_{\ell,h,(x,\theta)} C_{L,g,\theta}, \qquad
    \hat C_5 = \frac{C_{L,g,\theta} C_{\ell,h,(\theta,x)}}{1-\rho}.
    \end{aligned}$$

    The text, in statement and proof, interchanges $(\theta,x)$ and $(\theta,\theta)$ in $\hat C_1$, omits the second
    term of $\hat C_3$, and has an additional factor ρ in $\hat C_5$. The formulas here follow from the previous step
    of the proof, $C_{\ell,h,(\theta,x)} \|x_\tau - \hat x_\tau\| + C_{\ell,h,(\theta,\theta)} \|\theta_t -
    \theta_\tau\|$.
    """
    g, h, rho = multi_step_dynamics(constants, contraction), multi_step_cost(constants, contraction), contraction.rho
    if not contraction.contracts:
        return GradientBias(math.inf, math.inf, math.inf, math.inf, math.inf, math.inf, rho)
    s = 1 - rho
    through_state = rho * h.L_theta * g.L_theta * h.l_theta_x
    return GradientBias(
        C0=through_state / s**3,
        C1=(s * h.L_theta * h.l_theta_theta + through_state) / s**2,
        C2=h.L_theta * h.l_x_theta * g.L_theta / s,
        C3=rho * g.L_theta * h.l_theta_x / s + h.l_theta_theta,
        C4=h.l_x_theta * g.L_theta,
        C5=g.L_theta * h.l_theta_x / s,
        rho=rho,
    )


def fading_sum(rho: float, constant: float, linear: float, values: np.ndarray) -> np.ndarray:
    r"""Row t: $\sum_{\tau=0}^{t} (c_0 + c_1 \tau) \rho^\tau v_{t-\tau}$, by a recursion of two numbers."""
    out = np.empty(len(values))
    plain = weighted = 0.0
    for t, value in enumerate(np.asarray(values, float).tolist()):
        weighted = rho * (weighted + plain)
        plain = rho * plain + value
        out[t] = _times(constant, plain) + _times(linear, weighted)
    return out


def _times(a: float, b: float) -> float:
    """The product, with 0 · ∞ = 0."""
    return 0.0 if a == 0 or b == 0 else a * b


def _over(a: float, b: float) -> float:
    """The quotient; infinite if the denominator is zero."""
    return math.inf if b == 0 else a / b

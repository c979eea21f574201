r"""Constants of the multi-step dynamics and costs ("Useful Lemmas").

In these lemmas, the text's C is $\bar C$ of the contraction, and its $C_{L,\phi,\cdot}$, $C_{\ell,\phi,\cdot}$ and
$C_{L,f,\theta}$ are $C_{L,g,\cdot}$, $C_{\ell,g,\cdot}$ and $C_{L,h,\theta}$.
"""

import math
from dataclasses import dataclass

from .constants import Constants, Contraction


@dataclass(frozen=True)
class MultiStep:
    r"""The constants C of $g^*_{t|\tau}$ or $h^*_{t|\tau}$: derivatives decay as $C \rho^{t-\tau}$.

    `L_theta` is $C_{L,g,\theta}$ or $C_{L,h,\theta}$, `l_theta_x` is $C_{\ell,g,(\theta,x)}$ or
    $C_{\ell,h,(\theta,x)}$, and so on.
    """

    L_x: float
    L_theta: float
    l_x_x: float
    l_x_theta: float
    l_theta_x: float
    l_theta_theta: float


@dataclass(frozen=True)
class SurrogateConstants:
    r"""The constants of the surrogate cost $F_t$ on Θ."""

    L: float
    r"""$L_F$."""
    ell: float
    r"""$\ell_F$."""


def multi_step_dynamics(constants: Constants, contraction: Contraction) -> MultiStep:
    r"""Lemma "Lipschitzness/Smoothness of the Multi-Step Dynamics".

    With $\Lambda = (1 + L_{\psi,x})(\ell_{\phi,x} + \ell_{\phi,u} L_{\psi,x}) + L_{\phi,u} \ell_{\psi,x}$, the
    Lipschitz constant of the closed loop's Jacobian,

    $$\begin{aligned}
    C_{L,g,x} &= \bar C, \qquad C_{L,g,\theta} = \bar C L_{\phi,u} L_{\psi,\theta} / \rho, \\
    C_{\ell,g,(x,x)} &= \Lambda \bar C^3 \rho^{-1} (1-\rho)^{-1}, \\
    C_{\ell,g,(x,\theta)} &= \Lambda \bar C^3 L_{\phi,u} L_{\psi,\theta} \rho^{-1} (1-\rho)^{-1} +
    ((1 + L_{\psi,x}) \ell_{\phi,u} L_{\psi,\theta} + L_{\phi,u} \ell_{\psi,\theta}) \bar C \rho^{-1} (1-\rho)^{-1}, \\
    C_{\ell,g,(\theta,x)} &= \Lambda (L_{\phi,x} + L_{\phi,u} L_{\psi,x}) \bar C^3 L_{\phi,u} L_{\psi,\theta}
    \rho^{-2} (1-\rho)^{-1} + \bar C (L_{\psi,\theta} (\ell_{\phi,x} + \ell_{\phi,u} L_{\psi,x}) + L_{\phi,u}
    \ell_{\psi,x}) \rho^{-1}, \\
    C_{\ell,g,(\theta,\theta)} &= \Lambda L_{\phi,u}^2 L_{\psi,\theta}^2 \bar C^3 \rho^{-2} (1-\rho)^{-1} +
    (L_{\phi,u} \ell_{\psi,\theta} + \ell_{\phi,u} L_{\psi,\theta}^2) \bar C \rho^{-1}.
    \end{aligned}$$

    The text has $L_{\phi,x} \ell_{\psi,x}$ in Λ; the product rule on $\partial\phi/\partial u \cdot
    \partial\psi/\partial x$ gives $L_{\phi,u} \ell_{\psi,x}$.
    """
    k, C, rho = constants, contraction.C_bar, contraction.rho
    if not contraction.contracts:
        return MultiStep(C, *(math.inf,) * 5)
    # Products instead of powers: for large numbers, Python's product is infinite but its power raises an error.
    cube, decay = C * C * C, 1 / (rho * (1 - rho))
    jump = k.L_phi_u * k.L_psi_theta
    along = k.ell_phi_x + k.ell_phi_u * k.L_psi_x
    jacobian = (1 + k.L_psi_x) * along + k.L_phi_u * k.ell_psi_x
    return MultiStep(
        L_x=C,
        L_theta=C * jump / rho,
        l_x_x=jacobian * cube * decay,
        l_x_theta=jacobian * cube * jump * decay
        + ((1 + k.L_psi_x) * k.ell_phi_u * k.L_psi_theta + k.L_phi_u * k.ell_psi_theta) * C * decay,
        l_theta_x=jacobian * (k.L_phi_x + k.L_phi_u * k.L_psi_x) * cube * jump * decay / rho
        + C * (k.L_psi_theta * along + k.L_phi_u * k.ell_psi_x) / rho,
        l_theta_theta=jacobian * jump * jump * cube * decay / rho
        + (k.L_phi_u * k.ell_psi_theta + k.ell_phi_u * k.L_psi_theta * k.L_psi_theta) * C / rho,
    )


def multi_step_cost(constants: Constants, contraction: Contraction) -> MultiStep:
    r"""Corollary "Lipschitzness/Smoothness of the Multi-Step Costs".

    With $L_{u,x} = L_{\psi,x} + L_{f,x}$, $\ell_{u,x} = \ell_{\psi,x} + \ell_{f,x}$ (the control is $\psi - f$) and
    $\Lambda_h = (\ell_{h,x} + \ell_{h,u} L_{u,x})(1 + L_{u,x}) + L_h \ell_{u,x}$, for $t > \tau$

    $$\begin{aligned}
    C_{L,h,x} &= L_h \bar C (1 + L_{u,x}), \qquad C_{L,h,\theta} = L_h (1 + L_{u,x}) C_{L,g,\theta}, \\
    C_{\ell,h,(i,j)} &= L_h (1 + L_{u,x}) C_{\ell,g,(i,j)} + \Lambda_h C_{L,g,i} C_{L,g,j}
    \qquad (i, j \in \{x, \theta\}),
    \end{aligned}$$

    and for $t = \tau$ the derivatives of $h_t(x, \psi_t(x, \theta) - f_t, \theta)$ itself:

    $$\begin{aligned}
    &\textstyle\frac{\partial}{\partial\theta}: L_h L_{\psi,\theta} + L_{h,\theta}, \qquad
    (x,\theta): (\ell_{h,u} L_{\psi,\theta} + \ell_{h,\theta})(1 + L_{u,x}) + L_h \ell_{\psi,\theta}, \\
    &(\theta,x): (\ell_{h,x} + \ell_{h,u} L_{u,x}) L_{\psi,\theta} + L_h \ell_{\psi,x} + \ell_{h,\theta} (1 +
    L_{u,x}), \\
    &(\theta,\theta): (\ell_{h,u} L_{\psi,\theta} + 2 \ell_{h,\theta}) L_{\psi,\theta} + L_h \ell_{\psi,\theta} +
    \ell_{h,\theta}.
    \end{aligned}$$

    Each constant is the larger of the two. The text omits f in the control, and the case $t = \tau$ in all constants
    except $C_{L,h,\theta}$. If $L_{\phi,u}$ is small, as with a short time step, that case is the larger one.
    """
    k, g = constants, multi_step_dynamics(constants, contraction)
    if not contraction.contracts:
        return MultiStep(*(math.inf,) * 6)
    L_h, control = k.L_h, 1 + k.L_u_x
    curvature = (k.ell_h_x + k.ell_h_u * k.L_u_x) * control + L_h * k.ell_u_x
    now_x_theta = (k.ell_h_u * k.L_psi_theta + k.ell_h_theta) * control + L_h * k.ell_psi_theta
    now_theta_x = (k.ell_h_x + k.ell_h_u * k.L_u_x) * k.L_psi_theta + L_h * k.ell_psi_x + k.ell_h_theta * control
    now_theta_theta = (
        (k.ell_h_u * k.L_psi_theta + 2 * k.ell_h_theta) * k.L_psi_theta + L_h * k.ell_psi_theta + k.ell_h_theta
    )
    return MultiStep(
        L_x=L_h * g.L_x * control,
        L_theta=max(L_h * g.L_theta * control, L_h * k.L_psi_theta + k.L_h_theta),
        l_x_x=L_h * control * g.l_x_x + curvature * g.L_x * g.L_x,
        l_x_theta=max(L_h * control * g.l_x_theta + curvature * g.L_x * g.L_theta, now_x_theta),
        l_theta_x=max(L_h * control * g.l_theta_x + curvature * g.L_x * g.L_theta, now_theta_x),
        l_theta_theta=max(L_h * control * g.l_theta_theta + curvature * g.L_theta * g.L_theta, now_theta_theta),
    )


def surrogate_constants(constants: Constants, contraction: Contraction) -> SurrogateConstants:
    r"""$L_F$ and $\ell_F$ of $F_t(\theta) = h^*_{t|0}(x_0, \theta, \dots, \theta)$.

    $$L_F = \frac{C_{L,h,\theta}}{1 - \rho}, \qquad \ell_F = \frac{1}{1-\rho} \left(C_{\ell,h,(\theta,\theta)} +
    \frac{\rho\, C_{\ell,h,(\theta,x)} C_{L,g,\theta}}{1-\rho} + \frac{\rho\, C_{\ell,h,(x,\theta)}
    C_{L,g,\theta}}{1-\rho}\right)$$

    (Proof of the lemma on robustness. The text has only the first term of $\ell_F$. The other two are needed because
    all θ move together: through the state at τ, and through the parameters after τ.)
    """
    g, h, rho = multi_step_dynamics(constants, contraction), multi_step_cost(constants, contraction), contraction.rho
    if not contraction.contracts:
        return SurrogateConstants(math.inf, math.inf)
    shared = rho * g.L_theta * (h.l_theta_x + h.l_x_theta) / (1 - rho)
    return SurrogateConstants(h.L_theta / (1 - rho), (h.l_theta_theta + shared) / (1 - rho))

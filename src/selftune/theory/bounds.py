"""The right-hand sides of the theorems, as plain functions of numbers."""

import math

import numpy as np

from .constants import Constants, Contraction
from .matched import GradientBias, JointContraction, ModelLipschitz, _over, _times, fading_sum
from .multi_step import multi_step_cost, multi_step_dynamics


def gap_bound(
    lipschitz: ModelLipschitz, contraction: JointContraction, mismatch: np.ndarray, mismatch_gradient: np.ndarray
) -> np.ndarray:
    r"""Row t for every step: the proof of the theorem on the meta-framework, before the sum over t.

    $$\|(x_t, y_t) - (\tilde x_t, \tilde y_t)\| \le \sum_{\tau=0}^{t-1} \gamma(\tau) ((\alpha_x + \alpha_y)
    \varepsilon_{t-1-\tau} + (\beta_x + \beta_y) \varepsilon'_{t-1-\tau})$$
    """
    pushed = (lipschitz.alpha_x + lipschitz.alpha_y) * mismatch
    pushed = pushed + (lipschitz.beta_x + lipschitz.beta_y) * mismatch_gradient
    sums = fading_sum(contraction.rho, contraction.constant, contraction.linear, pushed)
    return np.concatenate([[0.0], sums[:-1]])


def total_gap_bound(
    lipschitz: ModelLipschitz, contraction: JointContraction, *, mismatch: float, mismatch_gradient: float
) -> float:
    r"""The theorem on the meta-framework: the total distance of the run from its companion.

    $$\sum_{t=1}^{T} \|(x_t, y_t) - (\tilde x_t, \tilde y_t)\| \le C \Big((\alpha_x + \alpha_y) \sum_t \varepsilon_t +
    (\beta_x + \beta_y) \sum_t \varepsilon'_t\Big)$$

    **Arguments:** `mismatch`, `mismatch_gradient`: the two sums.
    """
    pushed = (lipschitz.alpha_x + lipschitz.alpha_y) * mismatch
    pushed += (lipschitz.beta_x + lipschitz.beta_y) * mismatch_gradient
    return _times(contraction.total, pushed)


def total_perturbation_bound(
    lipschitz: ModelLipschitz, contraction: JointContraction, *, mismatch: float, mismatch_gradient: float
) -> float:
    r"""The theorem on the meta-framework: the total perturbation of ALG* by the inexact model.

    $$\sum_t \|\zeta_t\| \le (\alpha_\theta + \sqrt2 C (L_{\theta,x} + L_{\theta,y})(\alpha_x + \alpha_y)) \sum_t
    \varepsilon_t + (\beta_\theta + \sqrt2 C (L_{\theta,x} + L_{\theta,y})(\beta_x + \beta_y)) \sum_t \varepsilon'_t$$

    **Arguments:** `mismatch`, `mismatch_gradient`: the two sums.
    """
    gap = total_gap_bound(lipschitz, contraction, mismatch=mismatch, mismatch_gradient=mismatch_gradient)
    through_state = math.sqrt(2) * _times(lipschitz.L_theta_x + lipschitz.L_theta_y, gap)
    return _times(lipschitz.alpha_theta, mismatch) + _times(lipschitz.beta_theta, mismatch_gradient) + through_state


def mismatch_limit(
    lipschitz: ModelLipschitz, contraction: JointContraction, *, margin: float, perturbation_limit: float
) -> float:
    r"""The largest $(\alpha_x + \alpha_y) \varepsilon_t + (\beta_x + \beta_y) \varepsilon'_t$ that the theorem on the
    meta-framework allows.

    $$\min\left\{\frac{\sqrt2\, \bar\zeta}{4 (L_{\theta,x} + L_{\theta,y}) C}, \frac{\min\{R_x - R_x^*, R_y -
    R_y^*\}}{C}\right\}$$
    """
    zeta = max(perturbation_limit, 0.0)
    return min(
        _over(math.sqrt(2) * zeta, 4 * _times(lipschitz.L_theta_x + lipschitz.L_theta_y, contraction.total)),
        _over(max(margin, 0.0), contraction.total),
    )


def gradient_bias_bound(
    bias: GradientBias, *, learning_rate: float, perturbations: np.ndarray, truncation: float = 0.0
) -> np.ndarray:
    r"""Theorem "Gradient Bias", row t for every step.

    $$\|G_t - \nabla F_t(\theta_t)\| \le K \eta + \sum_{\tau=0}^{t-1} \Big(\frac{\hat C_3}{1-\rho} + \frac{\hat
    C_4}{(1-\rho)^2} + \hat C_5 (t-\tau)\Big) \rho^{t-\tau} \|\zeta_\tau\|$$

    with K of `GradientBias.per_rate`. For GAPS, `truncation` (of `truncation_bias`) is added. **Arguments:**
    `perturbations`: $\|\zeta_t\|$ by row.
    """
    s = 1 - bias.rho
    # Shifted by one step, because t − τ is at least 1 here.
    constant = bias.rho * (bias.C3 / s + bias.C4 / s**2 + bias.C5)
    sums = fading_sum(bias.rho, constant, bias.rho * bias.C5, perturbations)
    return bias.per_rate * learning_rate + truncation + np.concatenate([[0.0], sums[:-1]])


def surrogate_gap_bound(
    constants: Constants, contraction: Contraction, *, learning_rate: float, perturbations: np.ndarray
) -> np.ndarray:
    r"""The theorem on the distance of trajectories, row t for every step: actual cost minus surrogate cost.

    $$|h_t(\tilde x_t, \tilde u_t, \theta_t) - F_t(\theta_t)| \le L_h (1 + L_{\psi,x} + L_{f,x}) C_{L,g,\theta}
    \Big(\frac{\rho\, C_{L,h,\theta}}{(1-\rho)^3} \eta + \frac{1}{1-\rho} \sum_{\tau<t} \rho^{t-\tau} \|\zeta_\tau\|
    \Big)$$

    The paper's text has an additional factor ρ in the last term; but the geometric sum begins at $\rho^0$.
    """
    g, h, rho = multi_step_dynamics(constants, contraction), multi_step_cost(constants, contraction), contraction.rho
    if not contraction.contracts:
        return np.full(len(perturbations), math.inf)
    scale = constants.L_h * (1 + constants.L_u_x) * g.L_theta
    sums = np.concatenate([[0.0], rho * fading_sum(rho, 1.0, 0.0, perturbations)[:-1]])
    return scale * (rho * h.L_theta * learning_rate / (1 - rho) ** 3 + sums / (1 - rho))


def biased_ogd_bound(
    *, first: float, variation: float, lipschitz: float, smoothness: float, learning_rate: float, biases: np.ndarray
) -> float:
    r"""Theorem "nonconvex biased OGD" (appendix "Local Regret of Online Gradient Descent").

    For $\|\theta_{t+1} - (\theta_t - \eta \nabla_{\Theta,\eta} F_t(\theta_t))\| \le \eta \beta_t$, $F_t \ge 0$
    and $\eta < 1/\ell_F$:

    $$\sum_t \|\nabla_{\Theta,\eta} F_t(\theta_t)\|^2 \le \frac{F_0(\theta_0) + \sum_{t \ge 1} \sup_\Theta |F_t -
    F_{t-1}|}{\eta (1 - \eta \ell_F)} + \frac{L_F \sum_t \beta_t + \ell_F \eta \sum_t \beta_t^2}{1 - \eta \ell_F}$$

    **Arguments:** `first`: $F_0(\theta_0)$; `variation`: the sum of suprema; `biases`: $\beta_t$ by row. Infinite if η
    is not below $1/\ell_F$.
    """
    room = 1 - _times(learning_rate, smoothness)
    if room <= 0:
        return math.inf
    beta = np.asarray(biases, float)
    bias = _times(lipschitz, float(np.sum(beta)))
    bias += _times(smoothness * learning_rate, float(np.sum(beta**2)))
    return (first + variation) / (learning_rate * room) + bias / room


def surrogate_variation_bound(
    constants: Constants, contraction: Contraction, *, x_radius: float, system: float, residual: float, w: float
) -> float:
    r"""$S_0$, which bounds $\sum_t \sup_\Theta |F_t - F_{t-1}|$ (Lemma "matched-disturbance robustness").

    $$S_0 = \max\left\{1, \frac{2 \bar C L_h (1 + L_{u,x})(1 + L_{\phi,u})}{(1-\rho)^2 \rho}\right\} (V_{sys} + V_f +
    V_w) + \frac{2 \bar C L_h (1 + L_{u,x})}{1-\rho} (2 \bar C \bar R_C + 2 R_S)$$

    with $\bar C \bar R_C + R_S = R_x$. The paper's text omits $V_f = \sum_t \sup_x \|f_t(x, a^*_t) - f_{t-1}(x,
    a^*_{t-1})\|$, although the cost depends on the control $\psi - f$. It also omits the 1 in the maximum, although
    $|h_t - h_{t-1}|$ enters $F_t$ with the factor 1.

    **Arguments:** `system`, `residual`, `w`: $V_{sys}$, $V_f$, $V_w$.
    """
    if not contraction.contracts:
        return math.inf
    C, rho = contraction.C_bar, contraction.rho
    scale = 2 * C * constants.L_h * (1 + constants.L_u_x)
    factor = max(1.0, scale * (1 + constants.L_phi_u) / ((1 - rho) ** 2 * rho))
    return factor * (system + residual + w) + scale / (1 - rho) * 2 * x_radius


def truncation_bias(constants: Constants, contraction: Contraction, *, buffer: int) -> float:
    r"""The bias of GAPS's gradient due to a buffer of B steps ("Useful Lemmas").

    $$\|G_t - G'_t\| \le \sum_{\tau > B} C_{L,h,\theta} \rho^\tau = \frac{C_{L,h,\theta}\, \rho^{B+1}}{1 - \rho}$$

    B of order log T makes this as small as the other terms. M-GAPS has no such term.
    """
    if not contraction.contracts:
        return math.inf
    return multi_step_cost(constants, contraction).L_theta * contraction.rho ** (buffer + 1) / (1 - contraction.rho)


def bias_sums(
    bias: GradientBias,
    *,
    learning_rate: float,
    perturbations: float,
    squared_perturbations: float,
    steps: int,
    truncation: float = 0.0,
) -> tuple[float, float]:
    r"""$S_1$ and $S_2$, which bound $\sum_t \beta_t$ and $\sum_t \beta_t^2$ (Lemma "matched-disturbance robustness").

    With K and Z of `GradientBias.per_rate` and `per_perturbation`:

    $$S_1 = (1/\eta + Z) \sum_t \|\zeta_t\| + K \eta T, \qquad S_2 = (1 + K + Z) \Big((1/\eta^2 + Z) \sum_t
    \|\zeta_t\|^2 + K \eta^2 T\Big)$$

    GAPS's truncation b (`truncation_bias`) adds $b T$ to $S_1$. In $S_2$ it adds b to the first factor and $b T$ to the
    second. **Arguments:** `perturbations`, `squared_perturbations`: the two sums over ζ; `truncation`: b.
    """
    K, Z, eta, b = bias.per_rate, bias.per_perturbation, learning_rate, truncation
    first = _times(1 / eta + Z, perturbations) + (K * eta + b) * steps
    second = (1 + K + Z + b) * (_times(1 / eta**2 + Z, squared_perturbations) + (K * eta**2 + b) * steps)
    return first, second


def local_regret_bound(
    *,
    first: float,
    variation: float,
    lipschitz: float,
    smoothness: float,
    learning_rate: float,
    sums: tuple[float, float],
) -> float:
    r"""The local regret of M-GAPS with perturbed updates (Lemma "matched-disturbance robustness").

    $$R^L_\eta(T) \le \frac2\eta (F_0(\theta_0) + S_0) + 2 (L_F S_1 + \ell_F \eta S_2)$$

    for $\eta \le \bar\eta$. **Arguments:** `first`: $F_0(\theta_0)$; `variation`: $S_0$; `sums`: $(S_1, S_2)$.
    """
    S1, S2 = sums
    return 2 / learning_rate * (first + variation) + 2 * (
        _times(lipschitz, S1) + _times(smoothness * learning_rate, S2)
    )

"""Bounds on the estimator's errors, and the main theorem, which combines them with the tuner's bounds."""

import math

from .bounds import bias_sums, local_regret_bound, total_gap_bound, total_perturbation_bound
from .matched import GradientBias, JointContraction, ModelLipschitz, _over


def estimator_learning_rate(
    *, diameter: float, path_length: float, residual_range: float, noise: float, slope: float, steps: int
) -> float:
    r"""The ι that minimizes `estimator_loss_bound`.

    $$\iota = \frac{\sqrt{D_{\mathcal A}^2 + 2 D_{\mathcal A} P_T}}{2 D_f (C_f + e_f) \sqrt T}$$

    The text's $\iota = \frac{C_f + e_f}{D_f'} \sqrt{C_p / T}$ (proof of the lemma on the gradient estimator) omits
    $D_{\mathcal A}$, the size of 𝒜: see `estimator_loss_bound`. **Arguments:** as in `estimator_loss_bound`.
    """
    distance = math.sqrt(diameter**2 + 2 * diameter * path_length)
    return _over(distance, 2 * slope * (residual_range + noise) * math.sqrt(steps))


def estimator_loss_bound(
    *,
    learning_rate: float,
    diameter: float,
    path_length: float,
    residual_range: float,
    noise: float,
    slope: float,
    steps: int,
) -> float:
    r"""The bound on the total loss of the gradient estimator (the lemma on the gradient estimator), for any ι.

    $$\sum_t \big(\tilde\ell_t(\hat a_t) - \tilde\ell_t(a^*_t)\big) \le \frac{D_{\mathcal A}^2 + 2 D_{\mathcal A}
    P_T}{2 \iota} + \frac{\iota}{2} \big(2 D_f (C_f + e_f)\big)^2 T, \qquad P_T = \sum_{t \ge 1} \|a^*_t - a^*_{t-1}\|$$

    In expectation over the noise, the left side is $\sum_t \varepsilon_t^2$; without noise, on every run.

    The text's right side, $2\sqrt3 (C_f + e_f)^3 D_f' \sqrt{C_p T}$, does not depend on the size of 𝒜, and cannot hold:
    for $f = \delta a$ on $[-1, 1]$ it falls as $\delta^4$, but an estimator that cannot see a in noise of size δ loses
    $\delta^2$ at each step. The bound here is that of online gradient descent, with the size of 𝒜.

    **Arguments:** `diameter`: $D_{\mathcal A}$; `path_length`: $P_T$; `residual_range`: $C_f \ge \|f_t(x, a) - f_t(x,
    a')\|$; `noise`: $e_f$; `slope`: $D_f \ge \|\partial f_t / \partial a\|$; `steps`: T.
    """
    gradient = 2 * slope * (residual_range + noise)
    return (diameter**2 + 2 * diameter * path_length) / (2 * learning_rate) + learning_rate / 2 * gradient**2 * steps


def excitation_limit(*, slope: float, curvature: float) -> float:
    r"""$\min\{\frac14, \frac1{2 \gamma_e}, \frac1{4 \beta_e \gamma_e}\}$, the largest $\bar\epsilon$ allowed (Theorem
    "gradient error bound")."""
    return min(0.25, _over(1.0, 2 * curvature), _over(1.0, 4 * slope * curvature))


def gradient_error_bound(
    *, noise_bound: float, noise_covariance: float, slope: float, curvature: float, dimension: int, steps: int
) -> float:
    r"""The bound on the first-order mismatch from the zeroth-order mismatch (Theorem "gradient error bound").

    $$E \sum_t \|\nabla_x e_t(x_t, \hat a_t)\|_F^2 \le \frac{2k}{\underline\sigma} (1 + \gamma_e + \beta_e \gamma_e)
    \bar\epsilon^3 T + 2 k \gamma_e^2 \bar\epsilon^2 T$$

    if $\bar\epsilon \le$ `excitation_limit` and $E \sum_t \ell_t \le \bar\epsilon^3 T$. **Arguments:** `noise_bound`:
    $\bar\epsilon$; `noise_covariance`: $\underline\sigma$; `slope`, `curvature`: $\beta_e$, $\gamma_e$, of each entry
    of e; `dimension`: k.
    """
    eps, gamma = noise_bound, curvature
    first = 2 * dimension / noise_covariance * (1 + gamma + slope * gamma) * eps**3 * steps
    return first + 2 * dimension * gamma**2 * eps**2 * steps


def main_distance_bound(
    lipschitz: ModelLipschitz, contraction: JointContraction, *, loss: float, gradient_loss: float, steps: int
) -> float:
    r"""The main theorem's bound on the distance of the run from its companion, with its constants.

    $$E \sum_t (\|x_t - \tilde x_t\| + \|y_t - \tilde y_t\|) \le \sqrt2\, C \big((\alpha_x + \alpha_y) \sqrt{R_0 T} +
    (\beta_x + \beta_y) \sqrt{R_1 T}\big) = O(T^{3/4} + \sqrt{m \bar\epsilon}\, T)$$

    (Theorem "application, matched disturbance", by Hölder's inequality.) **Arguments:** `loss`, `gradient_loss`:
    $R_0$ and $R_1$, bounds on $E \sum \varepsilon_t^2$ and $E \sum \varepsilon_t'^2$.
    """
    sums = dict(mismatch=math.sqrt(loss * steps), mismatch_gradient=math.sqrt(gradient_loss * steps))
    return math.sqrt(2) * total_gap_bound(lipschitz, contraction, **sums)


def main_regret_bound(
    lipschitz: ModelLipschitz,
    contraction: JointContraction,
    bias: GradientBias,
    *,
    first: float,
    variation: float,
    surrogate_lipschitz: float,
    surrogate_smoothness: float,
    learning_rate: float,
    perturbation_limit: float,
    loss: float,
    gradient_loss: float,
    steps: int,
    truncation: float = 0.0,
) -> float:
    r"""The main theorem's bound on the local regret, with its constants.

    The bound of Lemma "matched-disturbance robustness" with $\sum_t \|\zeta_t\|$ from the theorem on the
    meta-framework, $E \sum \varepsilon_t \le \sqrt{R_0 T}$, $E \sum \varepsilon'_t \le \sqrt{R_1 T}$ and
    $\|\zeta_t\|^2 \le \bar\zeta \|\zeta_t\|$:

    $$R^L_\eta(T) = O\big(\eta^{-1} (1 + V_{sys} + \bar\epsilon T) + \eta T + (\sqrt{m \bar\epsilon} + m \bar\epsilon)
    T\big)$$

    (Theorem "application, matched disturbance".) **Arguments:** `first`: $F_0(\theta_0)$; `variation`: $S_0$;
    `perturbation_limit`: $\bar\zeta$; `loss`, `gradient_loss`: $R_0$, $R_1$; `truncation`: of GAPS
    (`truncation_bias`).
    """
    zeta = total_perturbation_bound(
        lipschitz,
        contraction,
        mismatch=math.sqrt(loss * steps),
        mismatch_gradient=math.sqrt(gradient_loss * steps),
    )
    sums = bias_sums(
        bias,
        learning_rate=learning_rate,
        perturbations=zeta,
        squared_perturbations=max(perturbation_limit, 0.0) * zeta,
        steps=steps,
        truncation=truncation,
    )
    return local_regret_bound(
        first=first,
        variation=variation,
        lipschitz=surrogate_lipschitz,
        smoothness=surrogate_smoothness,
        learning_rate=learning_rate,
        sums=sums,
    )

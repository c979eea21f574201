"""The rows of the paper's claims about the tuner, in the order of the paper."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..tuners import GAPS
from . import bounds, matched, multi_step
from .constants import Constants, Contraction
from .joint import Joint
from .measure import Measured, TheoryProblem
from .row_builder import Ledger, times

MATCHED_ONLY = "the constants follow from Constants and Contraction of a MatchedSystem, and not from a Joint"
ONE_RATE = "the theorem and the local regret have one η for all steps, but the learning rate is a schedule"


class Claims:
    """The theory's numbers for one problem, and the rows that compare them with the measured quantities.

    With a `Joint`, the rows of Theorem 1 use only the `Joint`. Rows that need more are marked as not applicable.
    """

    def __init__(
        self,
        problem: TheoryProblem,
        measured: Measured,
        constants: Constants | None,
        contraction: Contraction | None,
        *,
        joint: Joint | None = None,
        variation: float = 0.0,
        variation_source: str = "given",
    ):
        self.problem, self.m, self.k, self.c, self.general = problem, measured, constants, contraction, joint
        self.ledger = Ledger(constants, contraction, float(jnp.finfo(problem.scenario.x0.dtype).eps))
        self.eta, self.sets, self.steps = problem.learning_rate, problem.sets, len(problem.scenario)
        self.buffer = problem.tuner.buffer if isinstance(problem.tuner, GAPS) else None
        if joint is not None:
            self.radii, self.lipschitz, self.joint = (
                joint.radii(self.sets.x_radius),
                joint.lipschitz,
                joint.contraction,
            )
            self.zeta_limit, self.uses = joint.perturbation_limit, ("joint",)
        else:
            self._from_constants()
        theta0 = jax.tree.map(lambda leaf: leaf[0], problem.run.theta)
        a0 = jax.tree.map(lambda leaf: leaf[0], problem.scenario.a_star)
        self.theta_size, self.a_size = float(self.sets.theta.diameter(theta0)), float(self.sets.a.diameter(a0))
        self.variation, self.variation_source = variation, variation_source
        self._names()
        # The magnitudes of the numbers whose differences are measured.
        self.scale_x = float(max(measured.rows.x.max(), measured.rows.y.max()))
        # One step of θ has a few rounding errors; a state of the loop has accumulated some thousand.
        self.scale_theta = measured.theta_scale / 2**8

    def _from_constants(self) -> None:
        k, c, step = self.k, self.c, self.sets.theta_step
        assert k is not None
        assert c is not None
        x0 = float(jnp.linalg.norm(self.problem.scenario.x0))
        self.radii = matched.radii(k, c, x_radius=self.sets.x_radius, x0_norm=x0)
        self.lipschitz = matched.model_lipschitz(k, self.radii, learning_rate=self.eta)
        self.joint = matched.joint_contraction(k, c, self.radii)
        self.F = multi_step.surrogate_constants(k, c)
        self.rate_limit = matched.learning_rate_limit(k, c, theta_step=step)
        self.zeta_limit = matched.perturbation_limit(k, c, learning_rate=self.eta, theta_step=step)
        self.bias = matched.gradient_bias(k, c)
        self.truncation = 0.0 if self.buffer is None else bounds.truncation_bias(k, c, buffer=self.buffer)
        self.uses = ("all", "contraction")

    def _names(self) -> None:
        """The names of hypotheses: the properties hold, the loop contracts, and every trajectory fits."""
        balls = ("state in its ball", "sensitivity in its ball", "θ in Θ", "a in 𝒜")
        buffer = ("partial sums of the buffer",) if self.buffer is not None else ()
        if self.general is not None:
            self.BALLS = balls
            self.CONTRACTS = self.ROOM = ("contraction", "slow θ", *balls, *buffer)
            return
        self.BALLS = (*balls[:1], "control in its ball", *balls[1:])
        self.CONTRACTS = ("contraction", "contraction's ball", "x_0 in the contraction's ball", "slow θ", *self.BALLS)
        # The proofs also use trajectories that mix two others or repeat one θ, although no run had them.
        self.ROOM = (*self.CONTRACTS, "room for every trajectory", "room for every control", *buffer)

    def rows(self) -> None:
        """Add all rows."""
        self.hypotheses()
        self.lipschitzness()
        self.stability()
        self.meta_framework()
        self.gradient_bias()
        self.regret()

    def hypotheses(self) -> None:
        m, sets = self.m, self.sets
        rows = m.rows
        where = 'Assumption "contractive and stability"'
        if self.general is None:
            self.matched_hypotheses(where)
        else:
            where = 'Property "Contraction Stability"'
            self.ledger.hypothesis("contraction", "ρ < 1", where, self.joint.rho, math.nextafter(1.0, 0.0))
        if self.buffer is not None:
            self.buffer_hypothesis(where)
        self.ledger.hypothesis(
            "state in its ball",
            "‖x_t‖, ‖x̃_t‖ ≤ R_x",
            "Property 1",
            max(rows.x.max(), rows.x_exact.max()),
            sets.x_radius,
        )
        if self.general is None:
            self.ledger.hypothesis(
                "control in its ball",
                "‖u_t‖, ‖u_t + f_t‖ ≤ R_u",
                "Property 1",
                max(rows.u.max(), rows.u_exact.max()),
                sets.u_radius,
            )
        self.ledger.hypothesis(
            "sensitivity in its ball",
            "‖y_t‖, ‖ỹ_t‖ ≤ R_y",
            "Property 1",
            max(rows.y.max(), rows.y_exact.max()),
            self.radii.y,
        )
        self.ledger.hypothesis(
            "θ in Θ", "every θ_t is in the given Θ (0: yes)", "Property 1", float(not m.inside_theta), 0.0
        )
        self.ledger.hypothesis(
            "a in 𝒜", "every â_t and a*_t is in the given 𝒜 (0: yes)", "Property 1", float(not m.inside_a), 0.0
        )
        self.ledger.hypothesis(
            "slow θ", "‖θ_{t+1} − θ_t‖ ≤ ε_θ", 'Definition "S_ε"', rows.steps_theta.max(), sets.theta_step
        )
        self.ledger.hypothesis(
            "non-negative cost", "F_{T−1}(θ_T) ≥ 0", 'Theorem "nonconvex biased OGD"', -m.last_surrogate, 0.0
        )
        if self.general is None:
            self.ledger.hypothesis(
                "η in its range", "η ≤ η̄", 'Lemma "matched-disturbance robustness"', self.eta, self.rate_limit
            )
        limit = bounds.mismatch_limit(
            self.lipschitz, self.joint, margin=self.radii.margin, perturbation_limit=self.zeta_limit
        )
        L = self.lipschitz
        pushed = (L.alpha_x + L.alpha_y) * m.mismatch + (L.beta_x + L.beta_y) * m.mismatch_gradient
        self.ledger.hypothesis(
            "small mismatch of the state",
            "(α_x + α_y) ε_t + (β_x + β_y) ε'_t ≤ min{√2 ζ̄ / (4 (L_θx + L_θy) C), min{R_x − R_x*, R_y − R_y*} / C}",
            "Theorem 1",
            pushed.max(),
            limit,
        )
        turned = times(L.alpha_theta, m.mismatch) + times(L.beta_theta, m.mismatch_gradient)
        self.ledger.hypothesis(
            "small mismatch of the update", "α_θ ε_t + β_θ ε'_t ≤ ζ̄/2", "Theorem 1", turned.max(), self.zeta_limit / 2
        )

    def matched_hypotheses(self, where: str) -> None:
        m, sets, c = self.m, self.sets, self.c
        assert c is not None
        self.ledger.hypothesis("contraction", "ρ < 1", where, c.rho, math.nextafter(1.0, 0.0))
        self.ledger.hypothesis("contraction's ball", "R_x ≤ R_C", where, sets.x_radius, c.R_C)
        x0 = (self.radii.x_star - c.R_S) if c.contracts else math.inf
        self.ledger.hypothesis("x_0 in the contraction's ball", "R_S + C̄ ‖x_0‖ ≤ R_C", where, c.R_S + x0, c.R_C)
        farthest = max(c.R_S + x0, float(m.rows.x.max()))
        self.ledger.hypothesis(
            "room for every trajectory",
            "C̄ max{R_S + C̄ ‖x_0‖, ‖x_t‖} + R_S ≤ R_x",
            where,
            c.C_bar * farthest + c.R_S,
            sets.x_radius,
        )
        self.ledger.hypothesis(
            "room for every control",
            "‖ψ_t(x, θ) − f_t(x, a)‖, ‖ψ_t(x, θ)‖ ≤ R_u on 𝒳 × Θ × 𝒜, by samples",
            where,
            m.largest_control,
            sets.u_radius,
        )

    def buffer_hypothesis(self, where: str) -> None:
        """The hypothesis on partial sums of GAPS's buffer.

        GAPS drops old slots, so partial sums of the slots multiply the difference of two Jacobians. If C̄ = 1, each slot
        shrinks by ρ at each step, and partial sums stay within R_y*. If the closed loop is linear in x, the difference
        is zero. For a `Joint` neither is known.
        """
        k, c, safe = self.k, self.c, False
        if self.general is None and k is not None and c is not None:
            safe = c.C_bar == 1 or multi_step.multi_step_dynamics(k, c).l_x_x == 0
        self.ledger.hypothesis(
            "partial sums of the buffer",
            "C̄ = 1, or a closed loop that is linear in x, so that every partial sum of GAPS's slots is within R_y (0: "
            "yes)",
            where,
            float(not safe),
            0.0,
        )

    def lipschitzness(self) -> None:
        m, L = self.m, self.lipschitz
        where = 'Property "Lipschitzness"'
        where += ', Lemma "matched-disturbance Lipschitz"' if self.general is None else ""
        self.ledger.inequality(
            "Lipschitzness of x",
            "‖q_t^x(â_t) − q_t^x(a*_t)‖ ≤ α_x ε_t + β_x ε'_t",
            where,
            m.rows.change_x,
            L.alpha_x * m.mismatch + L.beta_x * m.mismatch_gradient,
            uses=("L_phi_u",) if self.general is None else ("joint",),
            needs=self.BALLS,
            scale=self.scale_x,
        )
        if self.general is not None and self.buffer is None:
            self.ledger.inequality(
                "Lipschitzness of y",
                "‖q_t^y(â_t) − q_t^y(a*_t)‖ ≤ α_y ε_t + β_y ε'_t",
                where,
                m.rows.change_y,
                L.alpha_y * m.mismatch + L.beta_y * m.mismatch_gradient,
                uses=self.uses,
                needs=self.BALLS,
                scale=self.scale_x,
            )
        self.ledger.inequality(
            "Lipschitzness of θ",
            "‖q_t^θ(â_t) − q_t^θ(a*_t)‖ ≤ α_θ ε_t + β_θ ε'_t",
            where,
            m.rows.change_theta,
            self.share() * (times(L.alpha_theta, m.mismatch) + times(L.beta_theta, m.mismatch_gradient)),
            uses=self.uses,
            needs=self.BALLS,
            scale=self.scale_theta,
        )

    def share(self) -> np.ndarray:
        """η_t / η: the constants of θ are proportional to η, and computed for the largest η of a schedule."""
        return self.problem.rates / self.eta

    def stability(self) -> None:
        where = 'Property "Contraction Stability"'
        where += ', Lemma "matched-disturbance contraction and stability"' if self.general is None else ""
        rows = self.m.rows
        general = self.general is not None
        self.ledger.inequality(
            "stability of x",
            "‖x̃_t‖ ≤ R_x*" + ("" if general else " = R_S + C̄ ‖x_0‖"),
            where,
            rows.x_exact,
            self.radii.x_star,
            uses=("joint",) if general else ("contraction",),
            needs=("contraction", *(() if general else ("x_0 in the contraction's ball",)), "slow θ", "θ in Θ"),
            trivial=self.sets.x_radius,
            says="no less than R_x",
        )
        self.ledger.inequality(
            "stability of y",
            "‖ỹ_t‖ ≤ R_y*" + ("" if general else " = C̄ L_φu L_ψθ / (1 − ρ)"),
            where,
            rows.y_exact,
            self.radii.y_star,
            uses=("joint",) if general else ("L_phi_u", "L_psi_theta", "contraction"),
            needs=self.CONTRACTS,
        )

    def meta_framework(self) -> None:
        m, L, J = self.m, self.lipschitz, self.joint
        sums: Any = dict(mismatch=float(m.mismatch.sum()), mismatch_gradient=float(m.mismatch_gradient.sum()))
        apart = 2 * math.hypot(self.sets.x_radius, self.radii.y)
        where = 'Theorem 1, "meta-framework"'
        uses = self.uses
        per_step = bounds.gap_bound(L, J, m.mismatch, m.mismatch_gradient)
        self.ledger.inequality(
            "distance, at every step",
            "‖(x_t, y_t) − (x̃_t, ỹ_t)‖ ≤ Σ_τ γ(τ) ((α_x + α_y) ε_{t−1−τ} + (β_x + β_y) ε'_{t−1−τ})",
            where + ", proof",
            m.rows.gap,
            per_step,
            uses=uses,
            needs=self.ROOM,
            scale=self.scale_x,
            trivial=apart,
            says="no less than the size of the balls",
        )
        self.ledger.inequality(
            "distance, in all",
            "Σ_t ‖(x_t, y_t) − (x̃_t, ỹ_t)‖ ≤ C ((α_x + α_y) Σ ε_t + (β_x + β_y) Σ ε'_t)",
            where,
            m.rows.gap.sum(),
            bounds.total_gap_bound(L, J, **sums),
            uses=uses,
            scale=self.scale_x * self.steps,
            needs=self.ROOM,
            trivial=apart * self.steps,
            says="no less than T times the size of the balls",
        )
        self.ledger.inequality(
            "perturbation, at every step",
            "‖ζ_t‖ ≤ α_θ ε_t + β_θ ε'_t + √2 (L_θx + L_θy) ‖(x_t, y_t) − (x̃_t, ỹ_t)‖",
            where + ", proof",
            m.zeta,
            self.share()
            * (
                times(L.alpha_theta, m.mismatch)
                + times(L.beta_theta, m.mismatch_gradient)
                + times(math.sqrt(2) * (L.L_theta_x + L.L_theta_y), m.rows.gap)
            ),
            uses=uses,
            needs=self.BALLS,
            scale=self.scale_theta,
            trivial=self.theta_size,
            says="no less than the size of Θ",
        )
        self.ledger.inequality(
            "perturbation, in all",
            "Σ_t ‖ζ_t‖ ≤ (α_θ + √2 C (L_θx + L_θy)(α_x + α_y)) Σ ε_t + (β_θ + …) Σ ε'_t",
            where,
            m.zeta.sum(),
            bounds.total_perturbation_bound(L, J, **sums),
            uses=uses,
            scale=self.scale_theta * self.steps,
            needs=self.ROOM,
            trivial=self.theta_size * self.steps,
            says="no less than T times the size of Θ",
        )
        self.ledger.inequality(
            "perturbation below ζ̄",
            "‖ζ_t‖ ≤ ζ̄",
            where,
            m.zeta,
            max(self.zeta_limit, 0.0),
            uses=uses,
            scale=self.scale_theta,
            needs=(
                *self.ROOM,
                "small mismatch of the state",
                "small mismatch of the update",
                *(("η in its range",) if self.general is None else ()),
            ),
        )

    def gradient_bias(self) -> None:
        m, k, c, uses = self.m, self.k, self.c, self.uses
        where = 'Theorem "trajectory distance"'
        if self.general is not None:
            for name, place in (
                ("size of the gradient", where),
                ("cost against surrogate", where),
                ("gradient bias", 'Theorem "Gradient Bias"'),
            ):
                self.ledger.not_applicable(name, "", place, MATCHED_ONLY)
            return
        assert k is not None
        assert c is not None
        norm = np.linalg.norm(m.rows.gradient, axis=1)
        self.ledger.inequality(
            "size of the gradient",
            "‖G̃_t‖, ‖∇F_t(θ_t)‖ ≤ C_{L,h,θ} / (1 − ρ)",
            where,
            np.maximum(norm, m.surrogate_gradient),
            self.F.L,
            uses=uses,
            needs=self.ROOM,
            error=m.gradient_error,
        )
        self.ledger.inequality(
            "cost against surrogate",
            "|h_t(x̃_t, ũ_t, θ_t) − F_t(θ_t)| ≤ L_h (1 + L_ux) C_{L,g,θ} "
            "(ρ C_{L,h,θ} η / (1−ρ)³ + Σ ρ^{t−τ} ‖ζ_τ‖ / (1−ρ))",
            where,
            np.abs(m.rows.cost - m.surrogate),
            bounds.surrogate_gap_bound(k, c, learning_rate=self.eta, perturbations=m.zeta),
            uses=uses,
            scale=float(np.abs(m.surrogate).max()),
            error=m.surrogate_error,
            needs=self.ROOM,
            trivial=2 * k.L_h * (1 + k.L_u_x) * self.sets.x_radius,
            says="no less than the cost can differ on 𝒳",
        )
        self.ledger.inequality(
            "gradient bias",
            "‖G̃_t − ∇F_t(θ_t)‖ ≤ K η + Σ (Ĉ_3/(1−ρ) + Ĉ_4/(1−ρ)² + Ĉ_5 (t−τ)) ρ^{t−τ} ‖ζ_τ‖"
            + ("" if self.buffer is None else " + C_{L,h,θ} ρ^{B+1} / (1−ρ)"),
            'Theorem "Gradient Bias"',
            m.bias,
            bounds.gradient_bias_bound(
                self.bias, learning_rate=self.eta, perturbations=m.zeta, truncation=self.truncation
            )
            if c.contracts
            else math.inf,
            uses=uses,
            scale=float(m.surrogate_gradient.max()),
            error=m.gradient_error,
            needs=self.ROOM,
            trivial=2 * self.F.L,
            says="no less than twice the bound on each gradient",
        )

    def regret(self) -> None:
        m = self.m
        name = "regret of M-GAPS" if self.buffer is None else "regret of GAPS"
        if self.general is not None or self.problem.scheduled:
            reason = MATCHED_ONLY if self.general is not None else ONE_RATE
            self.ledger.not_applicable("regret of biased OGD", "", 'Theorem "nonconvex biased OGD"', reason)
            self.ledger.not_applicable(name, "", 'Lemma "matched-disturbance robustness"', reason)
            return
        trivial: Any = dict(trivial=self.steps * self.F.L * self.F.L, says="no less than T L_F²")
        more: Any = dict(uses=("all", "contraction"), **trivial)
        if self.variation_source == "sampled":
            more["more_sampled"] = ("V_sys",)
        more["error"] = m.local_regret_error
        needs = (*self.ROOM, "non-negative cost", "η in its range")
        S0 = self.surrogate_variation()
        first = float(m.surrogate[0])
        # β_t as measured: the update is that of ALG* plus ζ, and the gradient of ALG* has the bias.
        biases = m.zeta / self.eta + m.bias + np.where(np.isfinite(m.gradient_error), m.gradient_error, 0)
        self.ledger.inequality(
            "regret of biased OGD",
            "Σ ‖∇_{Θ,η} F_t(θ_t)‖² ≤ (F_0(θ_0) + S_0) / (η (1 − η ℓ_F)) + (L_F Σ β_t + ℓ_F η Σ β_t²) / (1 − η ℓ_F), "
            "β_t measured",
            'Theorem "nonconvex biased OGD"',
            m.local_regret,
            bounds.biased_ogd_bound(
                first=first,
                variation=S0,
                lipschitz=self.F.L,
                smoothness=self.F.ell,
                learning_rate=self.eta,
                biases=biases,
            ),
            needs=needs,
            **more,
        )
        sums = bounds.bias_sums(
            self.bias,
            learning_rate=self.eta,
            perturbations=float(m.zeta.sum()),
            squared_perturbations=float((m.zeta**2).sum()),
            steps=self.steps,
            truncation=self.truncation,
        )
        self.ledger.inequality(
            name,
            "R^L_η(T) ≤ 2/η (F_0(θ_0) + S_0) + 2 (L_F S_1 + ℓ_F η S_2), ζ measured",
            'Lemma "matched-disturbance robustness"',
            m.local_regret,
            bounds.local_regret_bound(
                first=first, variation=S0, lipschitz=self.F.L, smoothness=self.F.ell, learning_rate=self.eta, sums=sums
            ),
            needs=needs,
            **more,
        )

    def surrogate_variation(self) -> float:
        assert self.k is not None
        assert self.c is not None
        return bounds.surrogate_variation_bound(
            self.k,
            self.c,
            x_radius=self.sets.x_radius,
            system=self.variation,
            residual=self.k.L_f_a * self.m.path,
            w=self.m.path_w,
        )

    def derived(self) -> dict[str, float]:
        """The intermediate numbers, by the paper's symbol."""
        L, J, R = self.lipschitz, self.joint, self.radii
        named = {
            "α_x": L.alpha_x, "β_x": L.beta_x, "α_y": L.alpha_y, "β_y": L.beta_y, "α_θ": L.alpha_theta,
            "β_θ": L.beta_theta, "L_θx": L.L_theta_x, "L_θy": L.L_theta_y, "C": J.total, "γ(0)": J.gamma(0),
            "R_x": R.x, "R_x*": R.x_star, "R_y": R.y, "R_y*": R.y_star, "η": self.eta, "ζ̄": self.zeta_limit,
        }  # fmt: skip
        if self.general is not None or self.k is None or self.c is None:
            return named
        B, limits = self.bias, matched.mismatch_limits(L, J, R, perturbation_limit=self.zeta_limit)
        g, h = multi_step.multi_step_dynamics(self.k, self.c), multi_step.multi_step_cost(self.k, self.c)
        named |= {
            "η̄": self.rate_limit, "L_F": self.F.L, "ℓ_F": self.F.ell, "C_f": limits.C_f, "C_f'": limits.C_f_prime,
        }  # fmt: skip
        for letter, each in (("g", g), ("h", h)):
            named |= {
                f"C_L{letter}x": each.L_x, f"C_L{letter}θ": each.L_theta, f"C_ℓ{letter}xx": each.l_x_x,
                f"C_ℓ{letter}xθ": each.l_x_theta, f"C_ℓ{letter}θx": each.l_theta_x,
                f"C_ℓ{letter}θθ": each.l_theta_theta,
            }  # fmt: skip
        return named | {f"Ĉ_{i}": value for i, value in enumerate((B.C0, B.C1, B.C2, B.C3, B.C4, B.C5))}

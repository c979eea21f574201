# %% [markdown]
# # Reading regret and certificates
# You have a run. Was the tuner good? This tutorial computes the numbers that answer this question, and shows which conclusions they
# allow. All of these numbers need the true parameters, so you can compute them only in simulations.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import selftune as st

system = st.MatchedSystem(
    dynamics=lambda x, v, t: x + 0.1 * v,
    residual=lambda x, a, t: a * jnp.sin(x),
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)
box, steps = st.Box(0.1, 9.0), 1_500
controller = st.Controller(system, tuner=st.MGAPS(0.3, constraint=box), estimator=st.GradientEstimator(0.05))
ka, kw = jax.random.split(jax.random.key(0))
scenario = st.Scenario(
    x0=jnp.zeros(1),
    a_star=st.PiecewiseConstant(period=200, low=-1.0, high=1.0)(ka, steps, 1),
    w=st.Gaussian(0.1)(kw, steps, 1),
)
run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))

# %% [markdown]
# ## Local regret
# The surrogate cost $F_t(\theta)$ is the cost of step t if θ had been used from the beginning. The local regret sums the squared
# projected gradients of $F_t$ at $\theta_t$. Its size depends on units, so always compare it with the regret of *not* tuning:

# %%
local = st.local_regret(system, scenario, run.theta, learning_rate=0.3, constraint=box)
print(local)
assert local.cumulative[-1] < 0.2 * local.untuned[-1]

# %%
figure, axes = plt.subplots(figsize=(6, 2.8))
axes.loglog(local.cumulative, label="the tuner")
axes.loglog(local.untuned, label="the first θ, held fixed")
axes.set(xlabel="T", ylabel="local regret")
_ = axes.legend()

# %% [markdown]
# **Do not conclude from one start that the regret is sublinear.** If θ starts far from the optimum, the first gradients are large, and
# even a poor tuner shows a regret per step that falls. [Measuring a run](../regret.md#what-to-expect-of-the-local-regret) has an example, with
# confidence intervals.
#
# ## Static regret
# The static regret is the cost of the run minus the cost of the best θ that is held fixed for the whole run. It can be negative, because
# the tuner can follow a plant that changes, and a fixed θ cannot.

# %%
static = st.static_regret(system, scenario, run, constraint=box, key=jax.random.key(1))
print(static)
assert static.agreement > 0.5  # most starts of the search found the same θ

# %% [markdown]
# ## How good was the model?
# `model_mismatch` compares the estimated with the true residual along the run (ε), and their derivatives (ε′).

# %%
mismatch = st.model_mismatch(system, scenario, run)
print(mismatch)
assert mismatch.total > 0

# %% [markdown]
# If a* is constant, ε falls in the second half if the estimator learns. Here a* jumps every 200 steps, and the estimator must learn again after
# each jump. So ε does not fall.
#
# ## A certificate
# The theorems hold under conditions on constants: how steep your functions are, and how fast the loop contracts. `certify` measures the
# left side of each inequality on the run, computes the right side, and says whether the conditions are met. Constants that you do not
# give are estimated by a search, and the table labels them `sampled`.

# %%
linear = st.MatchedSystem(
    dynamics=lambda x, v, t: 0.5 * x + 0.1 * v,
    residual=lambda x, a, t: a,
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2) + 0.05 * jnp.sum(u**2),
)
gains, model = st.Box(0.0, 1.0), st.Box(-0.1, 0.1)
careful = st.Controller(linear, st.MGAPS(1e-3, constraint=gains), st.GradientEstimator(0.05, constraint=model))
noise = st.Uniform(0.1)(jax.random.key(0), 300, 1)
quiet = st.Scenario(x0=jnp.zeros(1), a_star=jnp.full((300, 1), 0.1), w=noise)
certified = st.simulate(careful, quiet, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
sets = st.Sets(x_radius=0.5, u_radius=1.0, theta=gains, a=model, theta_step=0.1)
certificate = st.certify(careful, quiet, certified, sets=sets, key=jax.random.key(1))
print(certificate)
assert certificate.ok

# %% [markdown]
# **`certificate.ok` only means that no inequality that must hold is violated. It does not mean that the theorems apply.** The last line of the
# table says how many inequalities must hold. An inequality must hold if its conditions are met and you gave its constants. Here all constants
# are sampled, and a sampled constant may be too small. So no inequality must hold: the certificate is evidence, not a proof.
#
# Each row has a verdict, the measured left side, and the bound on the right side. The first rows are **hypotheses**, the conditions of the
# theorems:
#
# | row | holds if |
# |---|---|
# | contraction | the loop forgets its past with every θ in Θ: ρ < 1. Almost every other row needs this |
# | contraction's ball, x_0 in the contraction's ball | the loop contracts at every state of the sets |
# | room for every trajectory, room for every control | not only the run, but also the trajectories and controls of the proofs fit into the sets |
# | state, control and sensitivity in its ball; θ in Θ; a in 𝒜 | the run stayed in the sets |
# | slow θ | no step of θ was longer than `theta_step` |
# | non-negative cost | the last surrogate cost is not negative |
# | η in its range | the learning rate is at most the largest one that the theory permits |
# | small mismatch of the state, of the update | the model errors are as small as Theorem 1 requires |
# | plain gradient estimator, residual affine in a | the estimator is the one of the paper's lemma |
#
# The other rows are **inequalities**, the conclusions of the theorems. These are the verdicts:
#
# | verdict | of | meaning |
# |---|---|---|
# | holds | both | the left side is at most the right side. A large distance is usual for worst-case bounds |
# | fails | a hypothesis | the theorems that need it say nothing about this run. The notes of the other rows name it |
# | vacuous | an inequality | the row tells you nothing; the notes say why: the bound is larger than what follows from the sets alone, or infinite, or below rounding. This is usual; it is not an error |
# | does not hold | an inequality | the left side is above the bound, but nothing is wrong: a hypothesis fails, or a constant is sampled and too small |
# | VIOLATED | an inequality | it must hold and does not: a constant that you gave is wrong, or there is a bug. Only this makes `ok` false |
# | not applicable | an inequality | the theorem is about another controller or system |
#
# ## Which systems have a certificate?
# `certify` needs a `MatchedSystem`, as above: the policy is $u = -f + \psi(x, \theta)$, and you write only ψ, as `actuation`. For another `System`
# you must derive 13 constants by hand; [the theory](../theory.md#a-system-that-is-not-matched) shows how. If the row *contraction* fails, make Θ smaller:
# [what to do](../theory.md#if-the-loop-does-not-contract).

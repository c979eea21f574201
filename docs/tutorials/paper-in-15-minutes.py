# %% [markdown]
# # The paper in 15 minutes
# *Online Policy Optimization in Unknown Nonlinear Systems* (Lin, Preiss, Xie, Anand, Chung, Yue, Wierman; COLT 2024) asks: how can a
# controller improve its own parameters θ **while it runs**, on one trajectory, if a part of the dynamics is unknown? This tutorial
# shows the problem, the algorithm and the main result on the paper's scalar example.
#
# ## The problem
# The state moves as $x_{t+1} = g_t(x_t, u_t, f_t(x_t, a^*_t)) + w_t$. You know $g$ and the form of $f$, but neither the parameters
# $a^*_t$ nor the disturbance $w_t$. The policy $u_t = \pi_t(x_t, \theta_t, f_t(x_t, \hat a_t))$ has parameters $\theta_t$, and each step
# costs $h_t(x_t, u_t, \theta_t)$. The four functions g, f, π and h describe the whole problem.
#
# In the paper's example the unknown part f acts at the same place as the control, $x_{t+1} = \phi(x_t, u_t + f_t) + w_t$, and the policy cancels
# the estimate of f: $u_t = -f_t(x_t, \hat a_t) + \psi(x_t, \theta_t)$. This form is a `MatchedSystem`. You write $\phi$ (`dynamics`, with $v = u + f$)
# and $\psi$ (`actuation`). Use this form where you can: [certificates](regret-and-certificates.py#a-certificate) need it. `System` is the
# general form, with `policy(x, theta, f, t)`.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import selftune as st

dt, steps = 0.01, 20_000
system = st.MatchedSystem(
    dynamics=lambda x, v, t: x + dt * v,
    residual=lambda x, a, t: jnp.array([a[0] + a[1] * jnp.sin(x[0]) + a[2] * jnp.sin(2 * x[0])]),
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)

# %% [markdown]
# ## The algorithm
# Two algorithms share each step (the paper's Meta-Framework):
#
# - **ALG**, the tuner. M-GAPS keeps the sensitivity $y_t = \partial x_t / \partial \theta$, a matrix that one step of forward-mode
#   differentiation updates. It gives the gradient $G_t = \frac{\partial h}{\partial x} y_t + \frac{\partial h}{\partial \theta}$, and
#   $\theta_{t+1} = \Pi_\Theta(\theta_t - \eta G_t)$. Here η is the learning rate, and $\Pi_\Theta$ moves θ back into the set Θ of allowed
#   gains, which is the `Box` below. A step takes constant time and memory, however long the run is.
# - **EST**, the estimator. Here it is gradient descent on the squared error $|\tilde f_t - f_t(x_t, \hat a_t)|^2$ of the predicted residual,
#   where $\tilde f_t$ is the observed residual. The paper uses the step length Δ, which is `dt` in the code. The gradient of a square has a
#   factor 2, so the same step needs the learning rate `dt / 2`.
#
# The `Scenario` is what nature decides: the first state, the true parameters $a^*_t$ of every step, and the disturbances $w_t$.

# %%
controller = st.Controller(
    system,
    tuner=st.MGAPS(1e-4, constraint=st.Box(0.0, 50.0)),
    estimator=st.GradientEstimator(dt / 2, constraint=st.Box(-0.25, 0.25)),
)
ka, kw = jax.random.split(jax.random.key(0))
scenario = st.Scenario(
    x0=jnp.zeros(1),
    a_star=st.PiecewiseConstant(period=4_000, low=-0.25, high=0.25)(ka, steps, 3),
    w=st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1)(kw, steps, 1),
)
start = {"theta": jnp.ones(1), "a_hat": jnp.zeros(3)}
run = st.simulate(controller, scenario, **start)
fixed = st.simulate(st.Controller(system, st.Fixed(), controller.estimator), scenario, **start)
print(f"mean cost {run.cost.mean():.0f}; with the first gain, held fixed, {fixed.cost.mean():.0f}")
assert run.cost.mean() < 0.6 * fixed.cost.mean()

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8))
left.plot(run.theta[::20, 0])
left.set(title="the gain θ", xlabel="step / 20")
right.plot(np.cumsum(fixed.cost)[::20], label="first gain")
right.plot(np.cumsum(run.cost)[::20], label="M-GAPS")
right.set(title="cost so far", xlabel="step / 20")
_ = right.legend()

# %% [markdown]
# ## What is promised?
# The paper compares with the *surrogate cost* $F_t(\theta)$: the cost of step t if θ had been used from the beginning, with the true
# parameters. The **local regret** is the sum of $|\nabla_{\Theta,\eta} F_t(\theta_t)|^2$, the squared lengths of projected gradients. It is
# small if θ stays near points where no direction improves the surrogate cost. The main theorem bounds its expectation by
# $O((1 + V_{sys} + \bar\epsilon T)/\eta + \eta T + \sqrt{\bar\epsilon}\,T)$, where $\bar\epsilon$ is the size of the noise and $V_{sys}$ says how much
# the system changes.
#
# The functions of the library compute the local regret with the true parameters, which the controller never saw. `window=400` saves time:
# each rollout begins only 400 steps back.

# %%
short = scenario[:2_000]
local = st.local_regret(
    system, short, run.theta[:2_000], learning_rate=1e-4, constraint=controller.tuner.constraint, window=400
)
print(local)
assert local.cumulative[-1] < 0.5 * local.untuned[-1]

# %% [markdown]
# The line "θ_0 held fixed" is the number to compare with: the regret of not tuning.
#
# ## What does the unknown part cost?
# Theorem 1 says: if the errors of the model are small, then the run stays close to the run with the exact model. `exact_model_gap` makes
# this comparison: the same θ, once with the estimate and once with the true parameters.

# %%
mismatch, gap = st.model_mismatch(system, scenario, run), st.exact_model_gap(system, scenario, run)
print(mismatch, gap, sep="\n")
unlearned = st.model_mismatch(
    system, scenario, st.simulate(st.Controller(system, st.Fixed(), st.Frozen()), scenario, **start)
)
assert mismatch.total < 0.5 * unlearned.total  # against a model that never learns

# %% [markdown]
# The *mismatch* ε is the error of the estimated residual at each step. The printed text has its sum, and its mean in each half of the run.
# The *gap* is the distance between the two runs at each step. The printed text has its means and its largest value.
#
# ## What next?
# - [Reading regret and certificates](regret-and-certificates.py) checks the theorems on a run.
# - [Comparing tuners fairly](comparing-tuners.py) and [writing a tuner](writing-a-tuner.py) are for research on tuners.
#
# ## What the paper does not have
# - `GaussNewton` needs no learning rate: [choosing nothing](choosing-nothing.py).
# - Some constants in the paper's text are wrong; [notes on the paper](../paper.md) lists them.
# - `make reproduce` runs the paper's whole simulation, and [the theory](../theory.md) checks every theorem on data.

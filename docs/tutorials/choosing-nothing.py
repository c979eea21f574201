# %% [markdown]
# # Choosing nothing
# A tuner usually has a learning rate, an estimator has noise levels, and a guard has limits. selftune chooses all of them. This
# tutorial shows what it chooses, why, and when you should choose after all.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import selftune as st

steps = 6_000


def make_system(unit):
    return st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a * jnp.cos(x),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: unit * (jnp.sum(x**2) + 0.1 * jnp.sum(u**2)),
    )


system = make_system(unit=1.0)
ka, kw = jax.random.split(jax.random.key(0))
scenario = st.Scenario(jnp.zeros(1), st.Constant(0.5)(ka, steps, 1), st.Gaussian(0.1)(kw, steps, 1))
box, start = st.Box(0.0, 8.0), {"theta": jnp.full(1, 0.5), "a_hat": jnp.zeros(1)}

# %% [markdown]
# ## The learning rate
# First the paper's tuner, with eight learning rates. `vmap` runs them as one batch. The cost is the mean over the second half.


# %%
def late_cost(rate):
    controller = st.Controller(system, st.MGAPS(rate, constraint=box), st.AutoEstimator())
    return st.simulate(controller, scenario, **start, record=("cost",), throw=False).cost[steps // 2 :].mean()


rates = jnp.geomspace(1e-3, 1e2, 8)
costs = jax.vmap(late_cost)(rates)

# %% [markdown]
# Now `GaussNewton`, which has no learning rate. It also computes the curvature of the cost along the same sensitivities, and the
# curvature gives the length of its steps.

# %%
run = st.simulate(st.Controller(system, st.GaussNewton(constraint=box), st.AutoEstimator()), scenario, **start)
chosen = run.cost[steps // 2 :].mean()
figure, axes = plt.subplots(figsize=(6, 2.8))
axes.loglog(rates, costs, "o-", label="MGAPS")
axes.axhline(float(chosen), color="C1", label="GaussNewton")
axes.set(xlabel="learning rate η", ylabel="mean cost, second half")
_ = axes.legend()
print(f"best learning rate {rates[jnp.nanargmin(costs)]:.2g}: {jnp.nanmin(costs):.5f}; worst {jnp.nanmax(costs):.5f}")
print(f"GaussNewton: {chosen:.5f}")
assert chosen < 1.05 * jnp.nanmin(costs)
assert jnp.nanmax(costs) > 1.2 * jnp.nanmin(costs)

# %% [markdown]
# The best learning rate, chosen after the run, is as good as `GaussNewton`. A rate that is wrong by a factor of 100 is worse. And the best
# rate depends on the units of the cost and of θ. `GaussNewton` does not:

# %%
same = st.simulate(
    st.Controller(make_system(unit=1000.0), st.GaussNewton(constraint=box), st.AutoEstimator()), scenario, **start
)
print(f"θ at the end: {run.theta[-1, 0]:.4f}, with a cost in other units {same.theta[-1, 0]:.4f}")
assert jnp.allclose(run.theta, same.theta, rtol=1e-2)

# %% [markdown]
# ## What you still give
# **The box.** Its width is the unit of each step, so it says in which range you expect a gain. Do not make it a hundred times wider than
# necessary.
#
# **The memory**, if your loop is slow. `GaussNewton` averages over 2,000 steps. The memory must be longer than the time in which the loop
# forgets a deviation, and longer than a period of your reference. The contraction ρ̂ is the factor by which a deviation shrinks in a step.
# The measured ρ̂ gives the memory:

# %%
contraction = st.check_contraction(system, scenario[:1_000], theta=np.array([0.5]), a_hat=np.zeros(1))
memory = st.suggest_memory(float(contraction.rho), d=1, period=400)
print(f"rho {contraction.rho:.3f}: a memory of {memory} steps is enough")
assert memory <= 2_000

# %% [markdown]
# ## The limits of the guard
# `suggest_guard` derives them from a run that went well, and says why:

# %%
suggestion = st.suggest_guard(run)
print(suggestion)
assert suggestion.guard.window > 0

# %% [markdown]
# For a `Loop`, [`st.commission`](../commissioning.md) does all of this in one call, with a dry run on the plant, and decides: go or no-go.
#
# ## When to choose after all
# | situation | choose |
# |---|---|
# | you need a guarantee of the paper | `MGAPS` and `GradientEstimator`, with the rates of `suggest_learning_rate` |
# | the loop forgets slowly (ρ̂ above 0.99) | `memory`, by `suggest_memory` |
# | the cost has rare, very large values, such as the rate of u at a step of the reference | a filtered reference, or `Guard(burst=…)`, which the guard of a `Loop` has |
# | you know the noise and the drift of the parameters | `KalmanEstimator(process_noise, measurement_noise)` |
# | the machine must not move the gains by more than 1 % per second | `Guard(rate=…)` |
# | the cost of a step is limited on your microcontroller | `MGAPS`: fewer operations |

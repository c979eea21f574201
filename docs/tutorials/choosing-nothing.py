# %% [markdown]
# # Choosing nothing
# A tuner usually has a learning rate, an estimator has noise levels, and a guard has limits. selftune chooses all of them. This
# tutorial shows what it chooses for a PID loop, and when you should choose after all. The second half compares with a tuner that needs a learning
# rate.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import selftune as st
from selftune import models, policies

loop = st.Loop(
    plant=models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.02),
    policy=policies.PID(kp=0.2, ki=0.2, u_min=-5.0, u_max=5.0),
    reference=st.references.Square(4.0, low=0.0, high=1.0),
)
controller = loop.controller()
print(controller.tuner, controller.estimator, sep="\n")
assert isinstance(controller.tuner, st.GaussNewton) and isinstance(controller.estimator, st.AutoEstimator)

# %% [markdown]
# You gave a plant, a policy and a reference. The loop chose the rest:
#
# - **The tuner** `GaussNewton` has no learning rate. It averages over at least 2,000 steps and 10 periods of the reference (`memory`).
# - **The estimator** `AutoEstimator` measures the noise itself.
# - **The box**: each gain may fall to 1/100 and rise to 100 times its start value.
# - **The guard** has limits from the scales of the plant and from the period of the reference:

# %%
guard = loop.guard()
print(
    f"window {guard.window} steps, rate {guard.rate:.2g}, burst {guard.burst:g}, u from {guard.u_low} to {guard.u_high}"
)
run = loop.simulate(steps=4_000, seed=0)
print(f"mean cost {run.cost[:400].mean():.4f} in the first tenth, {run.cost[-400:].mean():.4f} in the last")
assert run.cost[-400:].mean() < 0.6 * run.cost[:400].mean()

# %% [markdown]
# ## Limits from a run
# `suggest_guard` makes the limits narrower. It takes them from a run that went well, and says why:

# %%
suggestion = st.suggest_guard(run, base=guard)
print(suggestion)
assert suggestion.guard.x_limit[0] < guard.x_limit[0]

# %% [markdown]
# [`st.commission`](../commissioning.md) does this and more in one call: it makes a dry run on the plant, and decides: go or no-go.
#
# ## When to choose after all
# | situation | choose |
# |---|---|
# | you need a guarantee of the paper | `MGAPS` and `GradientEstimator`, with the rates of `suggest_learning_rate` |
# | the loop forgets slowly (ρ̂ above 0.99) | `memory`, by `suggest_memory` |
# | the cost has rare, very large values, such as the rate of u at a step of the reference | a filtered reference, or `Guard(burst=…)`, which the guard of a `Loop` has |
# | you know the noise and the drift of the parameters | `KalmanEstimator(process_noise, measurement_noise)` |
# | you know which gains are allowed | `PID(constraint=…)`: [the range of the gains](../policies.md#the-range-of-the-gains) |
# | the machine must not move the gains by more than 1 % per second | `Guard(rate=…)` |
# | the cost of a step is limited on your microcontroller | `MGAPS`: fewer operations |
#
# ## Why there is no learning rate
# The rest of this tutorial uses a system of four functions in place of a `Loop`, to compare many tuners quickly. The state is one number, the gain is
# θ, and random noise moves the state.

# %%
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
# First the paper's tuner, with eight learning rates. `vmap` runs them as one batch. The cost is the mean over the second half.


# %%
def late_cost(rate):
    controller = st.Controller(system, st.MGAPS(rate, constraint=box), st.AutoEstimator())
    return st.simulate(controller, scenario, **start, record=("cost",), throw=False).cost[steps // 2 :].mean()


rates = jnp.geomspace(1e-3, 1e2, 8)
costs = jax.vmap(late_cost)(rates)

# %% [markdown]
# Now `GaussNewton`, which has no learning rate. It also estimates how fast the cost bends. Where the cost bends strongly, the steps are short.

# %%
tuned = st.simulate(st.Controller(system, st.GaussNewton(constraint=box), st.AutoEstimator()), scenario, **start)
chosen = tuned.cost[steps // 2 :].mean()
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
print(f"θ at the end: {tuned.theta[-1, 0]:.4f}, with a cost in other units {same.theta[-1, 0]:.4f}")
assert jnp.allclose(tuned.theta, same.theta, rtol=1e-2)

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

# %% [markdown]
# # Comparing tuners fairly
# You want to know whether tuner A is better than tuner B. Three mistakes give a wrong answer: to tune A more than B, to choose and judge on
# the same random numbers, and to report one seed. This tutorial makes the comparison step by step.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import selftune as st

steps, box = 4_000, st.Box(0.0, 8.0)
system = st.MatchedSystem(
    dynamics=lambda x, v, t: x + 0.1 * v,
    residual=lambda x, a, t: a * jnp.cos(x),
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)


def costs(tuner, keys):
    """The mean cost of one run for each key. The same key gives the same disturbances to every tuner."""

    def one(key):
        ka, kw = jax.random.split(key)
        scenario = st.Scenario(
            jnp.zeros(1),
            st.PiecewiseConstant(period=1_000, low=-1.0, high=1.0)(ka, steps, 1),
            st.OrnsteinUhlenbeck(decay=0.9, sigma=0.1)(kw, steps, 1),
        )
        controller = st.Controller(system, tuner, st.AutoEstimator(constraint=st.Box(-1.0, 1.0)))
        start = {"theta": jnp.full(1, 0.5), "a_hat": jnp.zeros(1)}
        return st.simulate(controller, scenario, **start, record=("cost",), throw=False).cost.mean()

    return jax.vmap(one)(keys)


# %% [markdown]
# ## 1. Give every tuner the same chance
# `MGAPS` and `DiffTune` have a learning rate each. Choose both rates on the same grid, on *training* seeds. Do not report the costs of the
# training seeds: the best of several random results is better than the truth. To compare [your own tuner](writing-a-tuner.py), add one line to
# `makers`: `"momentum": lambda rate: Momentum(rate, constraint=box)`.

# %%
training, test = jax.random.split(jax.random.key(0), 8), jax.random.split(jax.random.key(1), 24)
grid = [0.003, 0.03, 0.3, 3.0]
makers = {
    "MGAPS": lambda rate: st.MGAPS(rate, constraint=box),
    "DiffTune": lambda rate: st.DiffTune(200, rate, constraint=box),
}
tuners = {"fixed θ": st.Fixed(), "GaussNewton": st.GaussNewton(constraint=box)}
for name, make in makers.items():
    trained = [float(costs(make(rate), training).mean()) for rate in grid]
    best = grid[int(np.nanargmin(trained))]
    print(f"{name}: η = {best}")
    tuners[name] = make(best)
assert len(tuners) == 4

# %% [markdown]
# If the best rate is at the end of the grid, extend the grid.
#
# ## 2. Judge on new seeds, with intervals
# `bands` computes the mean and a bootstrap confidence interval over the seeds.

# %%
judged = {name: costs(tuner, test) for name, tuner in tuners.items()}
for number, (name, values) in enumerate(judged.items()):
    band = st.bands(values[:, None], key=jax.random.key(2))
    print(f"{name:12s} {float(band.mean[0]):.4f}  [{float(band.low[0]):.4f}, {float(band.high[0]):.4f}]")
    plt.plot([number, number], [band.low[0], band.high[0]], "-", number, band.mean[0], "o", color="C0")
plt.yscale("log")
plt.xticks(range(len(judged)), list(judged))
plt.ylabel("mean cost")
assert judged["MGAPS"].mean() < judged["fixed θ"].mean()

# %% [markdown]
# ## 3. Compare in pairs
# Two of the intervals overlap, because some seeds are harder than others for every tuner. Each seed gave all tuners the same disturbances, so
# look at the *difference* for each seed. The interval of the difference is narrower.

# %%
for name in ("MGAPS", "DiffTune"):
    difference = judged[name] - judged["GaussNewton"]
    band = st.bands(difference[:, None], key=jax.random.key(3))
    low, high = float(band.low[0]), float(band.high[0])
    verdict = "costs more" if low > 0 else "costs less" if high < 0 else "cannot be told apart"
    print(f"{name} − GaussNewton: [{low:+.5f}, {high:+.5f}]: {name} {verdict}")
    alone = st.bands(judged[name][:, None], key=jax.random.key(2))
    assert high - low < float(alone.high[0] - alone.low[0])  # narrower than the interval of the tuner alone

# %% [markdown]
# ## 4. Say what the comparison covers
# This comparison covers one problem, one start and one noise level. Here the best learning rate of `MGAPS`, chosen on eight seeds of the same
# problem, costs a little less than `GaussNewton`, which had no such choice. `DiffTune` changes θ only at the end of an episode, so `DiffTune` may
# be as good with another length of the episode. Report the starts, the seeds, the grid, and the variants that you tried and left out.
#
# ## Next
# - [Sweeps](../sweeps.md): the same steps for many settings, on all cores or on a cluster, stored on disk, with a report. A sweep takes a list
#   of grids, so a tuner without a learning rate stands beside tuners with one:
#   `[{"tuner": ["MGAPS", "DiffTune"], "learning_rate": grid}, {"tuner": ["GaussNewton", "fixed"]}]`.
#   [A tuner without a learning rate](../sweeps.md#a-setting-that-only-some-points-have) has the code.
# - [Reading regret and certificates](regret-and-certificates.py): more measures of a run than its cost.

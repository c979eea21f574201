# %% [markdown]
# # Writing a tuner
# A tuner is an algorithm that changes the gains θ at each step. In selftune, a tuner is one class with two pure methods, `init` and `update`.
# This tutorial writes M-GAPS with momentum, which averages the gradients. Then the tutorial checks the contract that the rest of the library
# relies on, and compares the tuner with M-GAPS. [How it works](../how-it-works.md) explains the sensitivity y and the gradient.
#
# The class extends `equinox.Module`, a frozen dataclass that JAX understands. `ravel_pytree` makes one vector of the numbers in θ.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import projected_step, testing


class MomentumState(eqx.Module):
    """The numbers that the next step needs."""

    y: jax.Array  # the sensitivity ∂x/∂θ, (n, d)
    mean: jax.Array  # the averaged gradient, (d,)


class Momentum(st.AbstractTuner):
    r"""$m \leftarrow \beta m + (1 - \beta) G_t, \quad \theta_{t+1} = \Pi_\Theta(\theta_t - \eta m)$."""

    rate: jax.Array = eqx.field(converter=jnp.asarray)
    beta: jax.Array = eqx.field(default=0.9, converter=jnp.asarray)
    constraint: st.AbstractConstraint = eqx.field(default_factory=st.Unconstrained, converter=projected_step.constraint)

    def init(self, system, x, theta):
        d = ravel_pytree(theta)[0].size  # θ may be a dictionary
        return MomentumState(jnp.zeros((x.size, d), x.dtype), jnp.zeros(d, x.dtype))

    def update(self, system, x, theta, a_hat, t, state):
        _, y_next, _, gradient = system.sensitivity(x, state.y, theta, a_hat, t)
        beta, rate = self.beta.astype(x.dtype), self.rate.astype(x.dtype)  # keep the dtype of x
        mean = beta * state.mean + (1 - beta) * gradient
        flat, unravel = ravel_pytree(theta)
        theta = self.constraint.project(unravel(flat - rate * mean))
        return theta, MomentumState(y_next, mean), st.TunerInfo(gradient=gradient, y=state.y)


# %% [markdown]
# Three rules make this work everywhere:
#
# - **Nothing is stored on `self`.** The caller passes the state in and gets the new state back.
# - **Numbers are arrays.** JAX compiles a field `rate: float` anew for each value.
# - **`system.sensitivity`** returns the next state, the next y, the cost and the gradient. You need no other derivative.
#
# ## Check the contract
# `check_tuner` checks that the step gives the same numbers under `jit` and `vmap`, compiles once, keeps the dtype, can be saved, and keeps
# θ in its set. A failure names the property and the remedy.

# %%
testing.check_tuner(Momentum(0.1, constraint=st.Box(0.0, 1.0)))
print("Momentum keeps the contract")

# %% [markdown]
# ## Use it
# The tuner works in `simulate`, in `Agent`, in sweeps and in exported C, because all of them call the same two methods. For C, use only
# [operations that have a C form](../native.md#what-can-be-written-in-c). To use the tuner in a `Loop`, write
# `loop.simulate(…, controller=loop.controller(tuner=Momentum(1.0, constraint=loop.constraint)))`.

# %%
system = st.MatchedSystem(
    dynamics=lambda x, v, t: x + 0.1 * v,
    residual=lambda x, a, t: a * jnp.cos(x),
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)
ka, kw = jax.random.split(jax.random.key(0))
scenario = st.Scenario(jnp.zeros(1), st.Constant(0.5)(ka, 4_000, 1), st.Gaussian(0.1)(kw, 4_000, 1))
box = st.Box(0.0, 8.0)
runs = {}
for name, tuner in {"M-GAPS": st.MGAPS(1.0, constraint=box), "momentum": Momentum(1.0, 0.99, box)}.items():
    controller = st.Controller(system, tuner, st.GradientEstimator(0.05))
    runs[name] = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))
    plt.plot(runs[name].theta[:, 0], label=f"{name}, {runs[name].engine} engine")
plt.xlabel("step")
plt.ylabel("θ")
_ = plt.legend()
assert runs["momentum"].engine == runs["M-GAPS"].engine

# %% [markdown]
# The averaged gradient makes θ move more smoothly:

# %%
roughness = {name: float(jnp.abs(jnp.diff(run.theta[:, 0])).sum()) for name, run in runs.items()}
print(roughness)
assert roughness["momentum"] < 0.5 * roughness["M-GAPS"]

# %% [markdown]
# ## Next
# - [Comparing tuners fairly](comparing-tuners.py) finds out whether the new tuner is better.
# - [Add a tuner or an estimator](../add-a-tuner.md) has a skeleton to copy, the rules, and the steps for adding a tuner to this library.

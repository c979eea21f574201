"""An estimator of your own, to copy: a gradient step on the prediction error that ignores outliers.

python examples/my_estimator.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import projected_step, testing


class MyEstimator(st.AbstractEstimator):
    r"""$\hat a_{t+1} = \Pi_{\mathcal A}(\hat a_t + \iota J^\top e)$, where $J = \partial f/\partial a$ and $e$ is the
    innovation $\tilde f_t - f_t(x_t, \hat a_t)$, limited to $\pm\text{limit}$."""

    # Numbers are arrays: JAX compiles a field `step: float` anew for each value.
    step: jax.Array = eqx.field(converter=jnp.asarray)
    limit: jax.Array = eqx.field(default=1.0, converter=jnp.asarray)
    constraint: st.AbstractConstraint = eqx.field(default_factory=st.Unconstrained, converter=projected_step.constraint)

    def init(self, system, x, a_hat, t=0):
        return None  # this estimator has no state

    def update(self, system, x, f_obs, a_hat, t, state):
        f_hat, jacobian = system.residual_and_jacobian(x, a_hat, t)
        innovation = f_obs - f_hat
        limit = self.limit.astype(x.dtype)  # keep the dtype of x
        flat, unravel = ravel_pytree(a_hat)  # â may be a pytree
        flat = flat + self.step.astype(x.dtype) * (jnp.clip(innovation, -limit, limit) @ jacobian)
        return self.constraint.project(unravel(flat)), state, st.EstimatorInfo(innovation=innovation)


if __name__ == "__main__":
    testing.check_estimator(MyEstimator(0.1, constraint=st.Box(-1.0, 1.0)))
    print("MyEstimator keeps the contract")

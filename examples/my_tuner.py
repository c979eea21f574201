"""A tuner of your own, to copy: gradient descent with a gradient that is normalized to length 1.

python examples/my_tuner.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import projected_step, testing


class MyState(eqx.Module):
    """The numbers that the next step needs, and no others."""

    y: jax.Array
    optimizer: object


class MyTuner(st.AbstractTuner):
    r"""$\theta_{t+1} = \Pi_\Theta(\theta_t - \eta\, G_t / (\epsilon + \|G_t\|))$, with the gradient $G_t$ of M-GAPS."""

    # A number, a schedule or an optax transformation.
    learning_rate: projected_step.LearningRate = eqx.field(converter=projected_step.learning_rate)
    constraint: st.AbstractConstraint = eqx.field(default_factory=st.Unconstrained, converter=projected_step.constraint)
    # Numbers are arrays: JAX compiles a field `epsilon: float` anew for each value.
    epsilon: jax.Array = eqx.field(default=1e-3, converter=jnp.asarray)

    def init(self, system, x, theta):
        d = ravel_pytree(theta)[0].size  # θ may be a pytree
        return MyState(jnp.zeros((x.size, d), x.dtype), projected_step.init(self.learning_rate, theta))

    def update(self, system, x, theta, a_hat, t, state):
        _, y_next, _, gradient = system.sensitivity(x, state.y, theta, a_hat, t)
        direction = gradient / (self.epsilon.astype(x.dtype) + jnp.linalg.norm(gradient))  # keep the dtype of x
        theta, optimizer = projected_step.update(self.learning_rate, self.constraint, theta, direction, state.optimizer)
        return theta, MyState(y_next, optimizer), st.TunerInfo(gradient=gradient, y=state.y)


if __name__ == "__main__":
    testing.check_tuner(MyTuner(0.1, constraint=st.Box(0.0, 1.0)))
    print("MyTuner keeps the contract")

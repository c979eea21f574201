"""The context t of a control loop: the number of the step, the reference, and the measured sampling period."""

from typing import NamedTuple

from jaxtyping import Array


class LoopContext(NamedTuple):
    """The context `t` of one step of a control loop.

    **Arguments:**

    - `step`: the number of the step, an integer array ().
    - `reference`: the wanted values of the outputs, (q,).
    - `dt`: the measured length of this sampling period in seconds, (). None means that the period is the nominal one.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> t = st.LoopContext(step=jnp.array(0), reference=jnp.ones(1), dt=jnp.array(0.012))
        >>> model = st.models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> late = model.dynamics(model.x0, jnp.ones(1), jnp.zeros(1), t)
        >>> punctual = model.dynamics(model.x0, jnp.ones(1), jnp.zeros(1), t._replace(dt=None))
        >>> print((late / punctual).round(3))
        [1.198]
    """

    step: Array
    reference: Array
    dt: Array | None = None

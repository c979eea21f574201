"""The context t of a control loop: the number of the step, the reference, and the measured sampling periods."""

from typing import Any, NamedTuple

from jaxtyping import Array


class LoopContext(NamedTuple):
    """The context `t` of one step of a control loop.

    **Arguments:**

    - `step`: the number of the step, an integer array ().
    - `reference`: the wanted values of the outputs, (q,).
    - `dt`: the length of the sampling period from this step to the next one in seconds, (). Models and integrals use
      it. None means that the period is the nominal one.
    - `last_dt`: the measured time since the step before in seconds, (). Derivatives, filters and rates use it. None
      means `dt`: give the measured time since the last step as `dt` if the coming period is not known.

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
    last_dt: Array | None = None


def coming_period(t: Any) -> Array | None:
    """Return the period from this step to the next one, or None if the context has none."""
    return t.dt if isinstance(t, LoopContext) else None


def elapsed_period(t: Any) -> Array | None:
    """Return the time since the step before, or None if the context has none."""
    return t.last_dt if isinstance(t, LoopContext) and t.last_dt is not None else coming_period(t)

# %% [markdown]
# # Your own four functions
# If your plant is not among the [ready-made plants](../models.md), describe it by four functions. This tutorial does so for an arm with
# one joint, checks the functions, tunes the controller in simulation, and ends with the loop that runs on the robot.
#
# ## Write the functions
# | function | question that it answers |
# |---|---|
# | `dynamics(x, u, f, t)` | where is the state one step later, if I send u and the unknown force is f? |
# | `residual(x, a, t)` | what is the unknown force, if its parameters are a? |
# | `policy(x, theta, f, t)` | which control do I send, with the gains theta? |
# | `cost(x, u, theta, t)` | how bad is this step? |
#
# This is the general form, `st.System`. Its policy may use the estimated force f in any way. The policy below subtracts f and then clips the
# torque, so `System` is right. If your policy is exactly $u = -f + \psi(x, \theta)$ and f acts where the control acts, write a `MatchedSystem`
# instead, as the [guide](../guide.md#four-functions) does. [Certificates](../theory.md#a-certificate) of the paper's theorems need a `MatchedSystem`.
#
# The order of the arguments matters: `policy(x, theta, f, t)`. JAX traces the functions, so use `jnp` instead of `np` and `math`, and `jnp.where` instead of `if`.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import selftune as st

DT, INERTIA, WEIGHT, LIMIT = 0.02, 0.25, 4.9, 8.0  # s, kg m², N m, N m


def target(t):  # the path: the angle and its two derivatives
    phase = st.phase(t, 2.0 * DT)  # exact in float32 after days, unlike 2.0 * DT * t
    return 0.8 * jnp.sin(phase), 1.6 * jnp.cos(phase), -3.2 * jnp.sin(phase)


def dynamics(x, u, f, t):
    speed = x[1] + DT * (u[0] + f[0] - WEIGHT * jnp.sin(x[0])) / INERTIA
    return jnp.stack([x[0] + DT * speed, speed])


def residual(x, a, t):  # friction and a payload, in N m
    return jnp.stack([-a[0] * jnp.tanh(x[1] / 0.05) - a[1] * jnp.sin(x[0])])


def policy(x, theta, f, t):
    omega, zeta = jnp.exp(theta)  # natural frequency and damping ratio: logarithms keep them positive
    angle, speed, acceleration = target(t)
    wanted = acceleration + omega**2 * (angle - x[0]) + 2 * zeta * omega * (speed - x[1])
    return jnp.clip(INERTIA * wanted + WEIGHT * jnp.sin(x[0]) - f, -LIMIT, LIMIT)


def cost(x, u, theta, t):
    return (x[0] - target(t)[0]) ** 2 + 1e-5 * u[0] ** 2


system = st.System(dynamics, residual, policy, cost)
theta, a_hat = np.log([3.0, 0.7]), np.zeros(2)

# %% [markdown]
# ## Check the functions
# Three checks find most mistakes before anything moves: shapes, derivatives, and whether the loop forgets its past. The sizes are the numbers
# of states (n), controls (m), residuals (k), gains (d), parameters (p), measurements (q) and memory (s).

# %%
sizes = system.check(x=np.zeros(2), theta=theta, a=a_hat, t=0)
points = np.array([[0.1, 0.2], [0.8, -1.5], [-0.8, 1.5]])
gradient = st.check_gradient(system, points, theta, a_hat, t=np.array([0, 100, 200], np.int32))
print(sizes, gradient, sep="\n")
assert str(sizes) == "Sizes(n=2, m=1, k=1, d=2, p=2, q=2, s=0)" and gradient.ok

# %%
steps = 4_000
scenario = st.Scenario(
    x0=jnp.zeros(2),
    a_star=st.PiecewiseConstant(period=2_000, low=0.1, high=1.0)(jax.random.key(0), steps, 2),
    w=st.Gaussian(1e-3)(jax.random.key(1), steps, 2),
)
contraction = st.check_contraction(system, scenario[:1_000], theta=theta, a_hat=a_hat)
print(contraction)
assert contraction.ok

# %% [markdown]
# A *time constant* of a second means that the loop forgets a disturbance in a few seconds. The memory of the tuner must be longer. The default
# memory of 2,000 steps, here 40 s, is long enough.
#
# ## Tune
# The bounds say in which range you accept gains and parameters. There is no learning rate: `GaussNewton` measures its steps as shares of
# the range between the bounds. `AutoEstimator` chooses an estimator for your residual.
# If your plant falls without control, such as a pole on a cart, also give `GaussNewton` a [rest](../no-knobs.md#plants-that-can-fall).

# %%
controller = st.Controller(
    system,
    tuner=st.GaussNewton(constraint=st.Box(np.log([2.0, 0.4]), np.log([25.0, 2.0]))),
    estimator=st.AutoEstimator(constraint=st.Box(-3.0, 3.0)),
)
run = st.simulate(controller, scenario, theta=theta, a_hat=a_hat)
error = np.degrees(run.x[:, 0] - jax.vmap(lambda t: target(t)[0])(jnp.arange(steps)))
first, last = (np.sqrt(np.mean(np.square(part))) for part in (error[:300], error[-300:]))
omega, zeta = np.exp(run.theta[-1])
print(f"error {first:.2f}° in the first 6 s, {last:.2f}° in the last; ω = {omega:.1f} rad/s, ζ = {zeta:.2f}")
assert last < first

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8))
left.plot(np.arange(steps) * DT, error)
left.set(title="error, degrees", xlabel="time, s")
right.plot(np.arange(steps) * DT, run.a_hat, label=["friction", "payload"])
right.plot(np.arange(steps) * DT, scenario.a_star, "--", color="grey")
right.set(title="estimates, and the truth (dashed)", xlabel="time, s")
_ = right.legend()

# %% [markdown]
# ω ends at the upper bound of its box, and ζ near the lower bound: the cost would fall further outside the box. The reason is the small weight
# of the control in the cost. If you do not want such gains, give the control more weight in the cost. The bounds only stop the gains; they do not change what the cost prefers.
#
# ## On the robot
# The agent runs the same controller, one measurement at a time. Replace the function `robot` by yours.
#
# Each period has two calls, always in this order. `u = agent.act(x, t)` takes the measurement and returns the control. After the robot has
# moved, `agent.observe_state(x)` takes the next measurement: from it the agent learns the unknown force. An agent that you make from a
# [`Loop`](../loops.md), with `loop.agent()`, observes by itself: there you call only `act`. An agent that you make with `st.Agent`, as below, does not, and exported C does not either: there you need both calls.
#
# The guard gets the limits of this arm:
#
# - `x_limit`: the limits of angle and speed;
# - `u_low` and `u_high`: the limits of the torque;
# - `rate`: how far θ may move in one step, as a share of its box;
# - `window`: the number of steps in one period of the path, 2π / (2 · DT) ≈ 157.


# %%
def robot(x, u):
    """This stands for the real arm: heavier than the model, with friction."""
    force = u[0] - 0.4 * np.tanh(x[1] / 0.05) - 1.2 * WEIGHT * np.sin(x[0])
    speed = x[1] + DT * force / (1.2 * INERTIA)
    return np.array([x[0] + DT * speed, speed])


guard = st.Guard(x_limit=(1.5, 15.0), u_low=-LIMIT, u_high=LIMIT, rate=DT / 2, window=157)
agent = st.Agent(controller, x=np.zeros(2), theta=theta, a_hat=a_hat, guard=guard)
x, errors = np.zeros(2), []
for t in range(3_000):
    errors.append(np.degrees(x[0] - 0.8 * np.sin(2.0 * DT * t)))
    u = agent.act(x, t)
    x = robot(x, u)
    agent.observe_state(x)
first, last = (np.sqrt(np.mean(np.square(part))) for part in (errors[:300], errors[-300:]))
print(f"error {first:.2f}° in the first 6 s, {last:.2f}° in the last; refused {agent.refused}")
assert last < 0.7 * first and agent.refused == 0

# %% [markdown]
# ## Next
# - [Tune your own robot](../tune-your-own-robot.md) puts all checks in an order that finds mistakes early.
# - [Replaying a log](replaying-a-log.py) tests a model on recorded data.

"""Gymnasium's InvertedPendulum-v5 (MuJoCo), as it comes: a cart that has to follow a path, with a pole on it.

The controller has an engineer's model, with masses that are a guess and no friction. Its first gains keep the pole up
and no more; they are tuned in one go, with no resets. Needs `gymnasium[mujoco]`.

    .venv/bin/python examples/gymnasium_pendulum.py
"""

import gymnasium
import jax.numpy as jnp
import numpy as np

import selftune as st

DT, FORCE, LIMIT, GRAVITY = 0.04, 100.0, 3.0, 9.81  # of the environment: s, N per unit of action, its range, m/s²
CART, POLE, HALF = 9.0, 6.0, 0.33  # of the model: kg, kg, m (MuJoCo's are 10.5, 5.0, 0.3)
REACH = 4 / 3 * HALF  # to the pole's centre of percussion
LAP, PACE = 125, 2 * np.pi / 5.0  # steps, rad/s


def target(t):  # where the cart should be, and how fast
    return 0.3 * jnp.sin(PACE * DT * t), 0.3 * PACE * jnp.cos(PACE * DT * t)


def dynamics(x, u, f, t):
    place, angle, speed, rate = x
    push = (FORCE * (u[0] + f[0]) + POLE * HALF * rate**2 * jnp.sin(angle)) / (CART + POLE)
    whirl = GRAVITY * jnp.sin(angle) - jnp.cos(angle) * push
    whirl = whirl / (REACH - HALF * POLE / (CART + POLE) * jnp.cos(angle) ** 2)
    speed = speed + DT * (push - POLE * HALF / (CART + POLE) * whirl * jnp.cos(angle))
    return jnp.stack([place + DT * speed, angle + DT * (rate + DT * whirl), speed, rate + DT * whirl])


def residual(x, a, t):  # friction, and a pole of another weight: an action that nobody asked for
    return jnp.stack([-a[0] * x[2] - a[1] * jnp.sin(x[1])])


def policy(x, theta, f, t):  # θ: the logarithms of two natural frequencies (rad/s) and of their two dampings
    slow, fast, zeta, xi = jnp.exp(theta)
    place, angle, speed, rate = x
    r, drift = target(t)
    # (s² + 2 ζ ω s + ω²)(s² + 2 ξ Ω s + Ω²), for the point at `REACH`: it accelerates as gravity times the angle.
    feedback = 2 * GRAVITY * (zeta * slow + xi * fast) * rate
    feedback += GRAVITY * (slow**2 + fast**2 + 4 * zeta * xi * slow * fast) * angle
    feedback += 2 * slow * fast * (zeta * fast + xi * slow) * (speed + REACH * rate - drift)
    feedback += (slow * fast) ** 2 * (place + REACH * angle - r)
    wanted = GRAVITY * angle + REACH / GRAVITY * feedback  # of the cart, m/s²
    force = (CART + POLE) * wanted + POLE * HALF * (GRAVITY * angle - wanted) / REACH
    return jnp.stack([LIMIT * jnp.tanh((force / FORCE - f[0]) / LIMIT)])  # the tuner must know of its range


def cost(x, u, theta, t):
    return (x[0] - target(t)[0]) ** 2 + 1e-3 * u[0] ** 2


def drive(tuner: st.AbstractTuner, laps: int) -> tuple[np.ndarray, st.Agent]:
    estimator = st.GradientEstimator(0.01, constraint=st.Box(-1.0, 1.0), normalized=True)
    controller = st.Controller(st.System(dynamics, residual, policy, cost), tuner, estimator)
    agent = st.Agent(controller, x=np.zeros(4), theta=np.log([1.5, 4.0, 1.0, 1.0]), a_hat=np.zeros(2))
    env = gymnasium.make("InvertedPendulum-v5", max_episode_steps=laps * LAP)
    x, _ = env.reset(seed=0)
    errors = []  # of the cart, in metres
    for t in range(laps * LAP):
        errors.append(x[0] - target(t)[0])
        u = agent.act(x, t)
        x, _, fell, _, _ = env.step(u)
        agent.observe_state(x)
        if fell:
            raise SystemExit(f"the pole fell at step {t}")
    return np.reshape(errors, (laps, LAP)), agent


if __name__ == "__main__":
    gains = st.Box(np.log([0.5, 1.0, 0.5, 0.5]), np.log([8.0, 10.0, 1.5, 1.5]))
    (fixed, _), (tuned, agent) = drive(st.Fixed(), 8), drive(st.MGAPS(0.3, constraint=gains), 8)
    print("lap   error, fixed gains   tuned (cm, root mean square)")
    for lap, pair in enumerate(zip(fixed, tuned, strict=True)):
        print("{:3}   {:18.1f}   {:5.1f}".format(lap + 1, *(100 * np.sqrt(np.mean(e**2)) for e in pair)))
    print("rad/s, rad/s, ζ, ζ:", np.exp(agent.theta).round(2), "  model:", agent.a_hat.round(3))

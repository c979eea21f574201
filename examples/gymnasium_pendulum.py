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
CART, POLE, HALF, REACH = 9.0, 6.0, 0.33, 0.44  # of the model: kg, kg, m (MuJoCo: 10.5, 5.0, 0.3), and 4/3 of that
LAP, PACE = 125, 2 * np.pi / 5.0  # steps, rad/s


def target(t):  # where the cart should be, and how fast
    phase = st.phase(t, PACE * DT)
    return 0.3 * jnp.sin(phase), 0.3 * PACE * jnp.cos(phase)


def dynamics(x, u, f, t):
    place, angle, speed, rate = x
    sin, cos, arm = jnp.sin(angle), jnp.cos(angle), POLE * HALF / (CART + POLE)
    push = FORCE * (u[0] + f[0]) / (CART + POLE) + arm * rate**2 * sin
    whirl = (GRAVITY * sin - cos * push) / (REACH - arm * cos**2)
    speed = speed + DT * (push - arm * whirl * cos)
    return jnp.stack([place + DT * speed, angle + DT * (rate + DT * whirl), speed, rate + DT * whirl])


def residual(x, a, t):  # friction, and a pole of another weight: an action that nobody asked for
    return jnp.stack([-a[0] * x[2] - a[1] * jnp.sin(x[1])])


def policy(x, theta, f, t):  # θ: the logarithms of two natural frequencies (rad/s) and of their two dampings
    slow, fast, zeta, xi = jnp.exp(theta)
    (place, angle, speed, rate), (r, drift) = x, target(t)
    # (s² + 2 ζ ω s + ω²)(s² + 2 ξ Ω s + Ω²), for the point at `REACH`: it accelerates as gravity times the angle.
    feedback = 2 * GRAVITY * (zeta * slow + xi * fast) * rate
    feedback += GRAVITY * (slow**2 + fast**2 + 4 * zeta * xi * slow * fast) * angle
    feedback += 2 * slow * fast * (zeta * fast + xi * slow) * (speed + REACH * rate - drift)
    feedback += (slow * fast) ** 2 * (place + REACH * angle - r)
    wanted = GRAVITY * angle + REACH / GRAVITY * feedback  # of the cart, m/s²
    force = (CART + POLE) * wanted + POLE * HALF * (GRAVITY * angle - wanted) / REACH
    return jnp.clip(force / FORCE - f, -LIMIT, LIMIT)  # the tuner must know of the actuator's range


def cost(x, u, theta, t):
    return (x[0] - target(t)[0]) ** 2 + 1e-3 * u[0] ** 2


def drive(laps: int, learn: bool) -> tuple[np.ndarray, st.Agent]:
    gains = st.Box(np.log([0.5, 1.0, 0.5, 0.5]), np.log([8.0, 10.0, 1.5, 1.5]))
    estimator = st.GradientEstimator(0.01, constraint=st.Box(-1.0, 1.0), normalized=True)
    controller = st.Controller(st.System(dynamics, residual, policy, cost), st.MGAPS(0.3, constraint=gains), estimator)
    guard = st.Guard(x_limit=(1.1, 0.3, 20.0, 20.0), u_low=-LIMIT, u_high=LIMIT, rate=0.02, window=LAP)
    agent = st.Agent(controller, x=np.zeros(4), theta=np.log([1.5, 4.0, 1, 1]), a_hat=np.zeros(2), guard=guard)
    if not learn:
        agent.freeze()  # the gains; the estimator goes on
    env = gymnasium.make("InvertedPendulum-v5", max_episode_steps=laps * LAP)
    (x, _), errors = env.reset(seed=0), []  # in metres
    for t in range(laps * LAP):
        errors.append(x[0] - target(t)[0])
        x, _, fell, _, _ = env.step(agent.act(x, t))
        agent.observe_state(x)
        if fell:
            raise SystemExit(f"the pole fell at step {t}")
    return 100 * np.sqrt(np.mean(np.square(errors).reshape(laps, LAP), axis=1)), agent


if __name__ == "__main__":
    (fixed, _), (tuned, agent) = drive(8, learn=False), drive(8, learn=True)
    print("lap   error, fixed gains   tuned (cm, root mean square)")
    for lap, errors in enumerate(zip(fixed, tuned, strict=True)):
        print("{:3}   {:18.1f}   {:5.1f}".format(lap + 1, *errors))
    print("rad/s, rad/s, ζ, ζ:", np.exp(agent.theta).round(2), "  model:", agent.a_hat.round(3))

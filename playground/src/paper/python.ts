/** The panel's settings as a Python script that runs the same experiment, with other random numbers. */
import type { Settings } from "./simulation";
import type { Rule } from "./worker";

const TUNERS: Record<Rule, string> = {
  mgaps: "st.MGAPS(1e-4, constraint=st.Box(0.0, 50.0))",
  mgaps_faster: "st.MGAPS(1e-2, constraint=st.Box(0.0, 50.0))",
  gauss_newton: "st.GaussNewton(constraint=st.Box(0.0, 50.0))",
};

export function pythonScript(settings: Settings, rule: Rule): string {
  const { gain, noise, period, steps, seed } = settings;
  return `"""The paper's example with the settings of the playground. Run it after: pip install selftune"""

import jax
import jax.numpy as jnp
import selftune as st

DT, STEPS = 0.01, ${steps}


def make():
    """Return the system; paper_example.toml names this function."""
    return st.MatchedSystem(
        dynamics=lambda x, v, t: x + DT * v,
        residual=lambda x, a, t: jnp.stack([a[0] + a[1] * jnp.sin(x[0]) + a[2] * jnp.sin(2 * x[0])]),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )


def main():
    tuner = ${TUNERS[rule]}
    estimator = st.GradientEstimator(DT / 2, constraint=st.Box(-0.25, 0.25))
    ka, kw = jax.random.split(jax.random.key(${seed}))
    scenario = st.Scenario(
        x0=jnp.zeros(1),
        a_star=st.PiecewiseConstant(${period}, -0.25, 0.25)(ka, STEPS, 3),
        w=st.OrnsteinUhlenbeck(decay=0.95, sigma=${noise})(kw, STEPS, 1),
    )
    start = {"theta": jnp.full(1, ${gain.toFixed(3)}), "a_hat": jnp.zeros(3)}
    run = st.simulate(st.Controller(make(), tuner, estimator), scenario, **start)
    fixed = st.simulate(st.Controller(make(), st.Fixed(), estimator), scenario, **start)
    print(run)
    print(f"cost relative to the fixed gain: {run.cost.sum() / fixed.cost.sum():.3f}")


if __name__ == "__main__":
    main()
`;
}

const NAMED: Record<Rule, string> = {
  mgaps: 'name = "MGAPS"\nlearning_rate = 1e-4',
  mgaps_faster: 'name = "MGAPS"\nlearning_rate = 1e-2',
  gauss_newton: 'name = "GaussNewton"',
};

/** The same experiment for `selftune run`. */
export function tomlFile({ gain, noise, period, steps, seed }: Settings, rule: Rule): string {
  return `# selftune run paper_example.toml
# The playground also gives paper_example.py, which must lie beside this file.

[system]
make = "paper_example:make"

[tuner]
${NAMED[rule]}
constraint = { name = "Box", low = 0.0, high = 50.0 }

[estimator]
name = "GradientEstimator"
learning_rate = 0.005
constraint = { name = "Box", low = -0.25, high = 0.25 }

[scenario]
x0 = [0.0]
steps = ${steps}
a_star = { process = "PiecewiseConstant", period = ${period}, low = -0.25, high = 0.25 }
w = { process = "OrnsteinUhlenbeck", decay = 0.95, sigma = ${noise} }

[run]
seeds = [${seed}]
theta = [${gain.toFixed(3)}]
a_hat = [0.0, 0.0, 0.0]
stride = ${Math.max(1, Math.round(steps / 2000))}
record = ["x", "theta", "a_hat", "cost"]
`;
}

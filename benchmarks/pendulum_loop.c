/* The pendulum of `_problems.py` with M-GAPS and the gradient estimator, written by hand: the derivatives are worked out
   on paper, and what the cancelling policy takes out of the model's loop is not computed.
   Row t of every output is the value used at step t. */
#include <math.h>

static double clip(double v, double low, double high) {
    double raised = v < low ? low : v;
    return raised > high ? high : raised;
}

void pendulum_loop(long steps, const double *a_star, const double *w, const double *v, double eta, double iota,
                   const double *start, double *xs, double *thetas, double *a_hats, double *costs) {
    const double dt = 0.005, inertia = 0.25, weight = 9.81 * 0.5, damping = 0.05;
    const double amplitude = 0.8, frequency = 2.0, steepness = 10.0, tracking = 1 / (0.05 * 0.05), effort = 0.01;
    const double low0 = log(2.0), low1 = log(0.5), low2 = log(0.2);
    const double high0 = log(100.0), high1 = log(15.0), high2 = log(5.0);
    double q = start[0], s = start[1];
    double th0 = start[2], th1 = start[3], th2 = start[4];
    double a0 = start[5], a1 = start[6], a2 = start[7];
    /* The derivatives of angle and rate in the three gains. */
    double q0 = 0, q1 = 0, q2 = 0, s0 = 0, s1 = 0, s2 = 0;
    for (long t = 0; t < steps; t++) {
        const double phase = frequency * dt * (double)t;
        const double wanted = amplitude * sin(phase), wanted_rate = amplitude * frequency * cos(phase);
        const double wanted_acceleration = -frequency * frequency * wanted;
        const double sine = sin(q), cosine = cos(q), slip = tanh(steepness * s);
        const double kp = exp(th0), kd = exp(th1), error = wanted - q;

        /* The policy without its cancellation, and what each logarithm adds to it. */
        const double u0 = kp * error, u1 = kd * (wanted_rate - s), u2 = exp(th2) * inertia * wanted_acceleration;
        const double feedback = u0 + u1 + u2;
        const double f_hat = -(a0 * slip + a1 * s + a2 * sine);
        const double f = -(a_star[3 * t] * slip + a_star[3 * t + 1] * s + a_star[3 * t + 2] * sine);
        const double u = feedback + weight * sine - f_hat;
        xs[2 * t] = q;
        xs[2 * t + 1] = s;
        thetas[3 * t] = th0;
        thetas[3 * t + 1] = th1;
        thetas[3 * t + 2] = th2;
        a_hats[3 * t] = a0;
        a_hats[3 * t + 1] = a1;
        a_hats[3 * t + 2] = a2;
        costs[t] = tracking * error * error + effort * u * u;

        /* The gradient: h_q dq + h_s ds + h_theta, in each gain. */
        const double h_u = 2 * effort * u;
        const double h_q = -2 * tracking * error + h_u * ((weight + a2) * cosine - kp);
        const double h_s = h_u * (a0 * steepness * (1 - slip * slip) + a1 - kd);
        th0 = clip(th0 - eta * (h_q * q0 + h_s * s0 + h_u * u0), low0, high0);
        th1 = clip(th1 - eta * (h_q * q1 + h_s * s1 + h_u * u1), low1, high1);
        th2 = clip(th2 - eta * (h_q * q2 + h_s * s2 + h_u * u2), low2, high2);

        /* The model's loop is linear: gravity and residual are cancelled. */
        const double step = dt / inertia, by_q = -step * kp, by_s = 1 - step * (kd + damping);
        s0 = by_q * q0 + by_s * s0 + step * u0;
        s1 = by_q * q1 + by_s * s1 + step * u1;
        s2 = by_q * q2 + by_s * s2 + step * u2;
        q0 += dt * s0;
        q1 += dt * s1;
        q2 += dt * s2;

        const double slope = 2 * iota * (f_hat - f - v[t]);
        a0 = clip(a0 + slope * slip, 0.0, 2.0);
        a1 = clip(a1 + slope * s, 0.0, 2.0);
        a2 = clip(a2 + slope * sine, 0.0, 2.0);

        const double s_next = s + step * (feedback - f_hat + f - damping * s);
        q += dt * s_next + w[2 * t];
        s = s_next + w[2 * t + 1];
    }
}

/* The paper's scalar example with M-GAPS and the gradient estimator, written by hand: the yardstick of `core.py`.
   Row t of every output is the value used at step t. */
#include <math.h>

static double clip(double v, double low, double high) {
    double raised = v < low ? low : v;
    return raised > high ? high : raised;
}

void scalar_loop(long steps, const double *a_star, const double *w, double eta, double iota, const double *P,
                 const double *start, double *xs, double *thetas, double *a_hats, double *costs) {
    const double dt = 0.01;
    double x = start[0], theta = start[1], a0 = start[2], a1 = start[3], a2 = start[4], y = 0.0;
    for (long t = 0; t < steps; t++) {
        const double s1 = sin(x), s2 = sin(2 * x), c1 = cos(x), c2 = cos(2 * x);
        const double f_hat = a0 + a1 * s1 + a2 * s2, f_hat_x = a1 * c1 + 2 * a2 * c2;
        const double f = a_star[3 * t] + a_star[3 * t + 1] * s1 + a_star[3 * t + 2] * s2;
        const double u = -theta * x - f_hat, u_x = -theta - f_hat_x;
        xs[t] = x;
        thetas[t] = theta;
        a_hats[3 * t] = a0;
        a_hats[3 * t + 1] = a1;
        a_hats[3 * t + 2] = a2;
        costs[t] = x * x + 0.1 * u * u;
        const double gradient = (2 * x + 0.2 * u * u_x) * y - 0.2 * u * x;
        const double y_next = (1 + dt * (u_x + f_hat_x)) * y - dt * x;
        const double x_next = x + dt * (u + f) + w[t];
        const double g0 = 2 * (f_hat - f), g1 = g0 * s1, g2 = g0 * s2;
        a0 = clip(a0 - iota * (P[0] * g0 + P[1] * g1 + P[2] * g2), -0.25, 0.25);
        a1 = clip(a1 - iota * (P[3] * g0 + P[4] * g1 + P[5] * g2), -0.25, 0.25);
        a2 = clip(a2 - iota * (P[6] * g0 + P[7] * g1 + P[8] * g2), -0.25, 0.25);
        theta = clip(theta - eta * gradient, 0.0, 50.0);
        x = x_next;
        y = y_next;
    }
}

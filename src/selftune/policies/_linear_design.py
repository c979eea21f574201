"""Start gains from a linear model, by SciPy (extra `experiments`)."""

from typing import Any

import numpy as np
import scipy.linalg
import scipy.signal


def lqr(A: Any, B: Any, Q: Any, R: Any) -> np.ndarray:
    """The K for which u = −K x minimizes the sum of xᵀ Q x + uᵀ R u."""
    P = scipy.linalg.solve_discrete_are(A, B, Q, R)
    return np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)


def place(A: Any, B: Any, poles: Any) -> np.ndarray:
    """The K for which A − B K has these eigenvalues."""
    placed: Any = scipy.signal.place_poles(A, B, np.atleast_1d(poles))
    return placed.gain_matrix


def kalman(A: Any, C: Any, Q: Any, R: Any) -> np.ndarray:
    """The L of the stationary Kalman filter, which corrects a prediction by L (y − C x)."""
    P = scipy.linalg.solve_discrete_are(A.T, C.T, Q, R)
    return np.linalg.solve(C @ P @ C.T + R, C @ P).T


def reference_gain(A: np.ndarray, B: np.ndarray, C: np.ndarray, K: np.ndarray) -> np.ndarray:
    """The N for which u = −K x + N r brings C x to r: the stationary x and u for each reference, by least squares."""
    n, m, q = A.shape[0], B.shape[1], C.shape[0]
    stationary = np.block([[A - np.eye(n), B], [C, np.zeros((q, m))]])
    x, u = np.split(np.linalg.lstsq(stationary, np.vstack([np.zeros((n, q)), np.eye(q)]), rcond=None)[0], [n])
    return u + K @ x

"""Exports that several tests share: a loop, whose numbers have names and units, and a controller with a context."""

import subprocess

import selftune as st
from selftune import models, policies
from tests.native.test_export import STRICT, trees

STRICT_C = ("-std=c99", *STRICT)


def motor():
    plant = models.DCMotor(resistance=1.0, torque_constant=0.05, rotor_inertia=1e-4, dt=0.001)
    return st.Loop(plant, policies.PID(kp=0.1, ki=0.5, u_min=-24.0, u_max=24.0))


def with_context(export, folder, **options):
    """Export a controller whose context has real numbers and an integer, without names."""
    controller, start = trees()
    return export(controller, folder, **start, dt=0.1, **options)


def run(*command, cwd=None, fails=False, timeout=120):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=timeout)
    assert fails or done.returncode == 0, done.stdout + done.stderr
    return done

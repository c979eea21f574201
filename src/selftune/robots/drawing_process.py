"""Run a drawing program as a child process: without graphics, some libraries end the process that asks for them."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

BACKENDS = ("egl", "osmesa")
"""MuJoCo's ways to draw without a screen. They are tried in this order if MUJOCO_GL does not choose one."""


def draw(program: str, arrays: dict[str, np.ndarray], file: str | os.PathLike[str], *, timeout: float) -> bool:
    """Run the Python file `program`, which reads the arrays from its standard input and writes `file`.

    Return whether that succeeded. `timeout` is the time limit of each attempt in seconds.
    """
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    chosen = os.environ.get("MUJOCO_GL")
    backends = [chosen] if chosen else BACKENDS
    return any(_attempt(program, backend, packed.getvalue(), Path(file), timeout) for backend in backends)


def _attempt(program: str, backend: str, packed: bytes, file: Path, timeout: float) -> bool:
    environment = {**os.environ, "MUJOCO_GL": backend}
    if backend in BACKENDS:
        environment["PYOPENGL_PLATFORM"] = backend
    if file.is_symlink():  # otherwise the picture would replace the file that the link names
        file.unlink()
    try:
        done = subprocess.run(
            [sys.executable, "-P", program, str(file)],
            input=packed,
            env=environment,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and file.exists()

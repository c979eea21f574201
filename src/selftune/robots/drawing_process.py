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
    part = file.with_name(f".{file.name}.part")  # a drawing that is stopped leaves no broken file
    part.unlink(missing_ok=True)  # it may be a link to another file
    try:
        done = subprocess.run(
            [sys.executable, "-P", program, str(part)],
            input=packed,
            env=environment,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode == 0 and part.exists():
            part.replace(file)  # if `file` is a link, the picture replaces the link
            return True
    except (OSError, subprocess.TimeoutExpired):
        pass
    finally:
        part.unlink(missing_ok=True)
    return False

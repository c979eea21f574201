"""`Telemetry`: an agent streams what it does, and a process of its own writes the stream; the loop never waits."""

import contextlib
import json
import logging
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import IO, Any

import numpy as np

from ..control.guard import Decision
from ..foundation import arguments, extras
from ..foundation.errors import ArgumentError
from ..storage import files
from .telemetry_ring import HEADER, LAYOUT, Ring

MEMORY = 16 * 2**20
"""The ring has at most this many bytes."""
START = 20.0
"""The writer must have started after this many seconds."""


class Telemetry:
    """A stream of what an agent does: an MCAP file, and a websocket for Foxglove. It needs the extra `telemetry`.

    At each `act`, the agent copies some hundred bytes into a ring in shared memory. Another process, without JAX,
    reads the ring, and writes the file and serves the websocket. So the loop never waits: not for the disk, not for
    the network, and not for Python's lock. If the writer is too slow, stops or is killed, the oldest steps are
    overwritten, and `dropped` counts them. If the file cannot be written, for example because the disk is full, the
    websocket goes on; `close` then logs a warning.

    Each message of the topic `/selftune/step` is JSON: the number of the step, x, u, θ, â, the context, the cost, the
    guard's decisions, and the other values of `info`. θ and â are those of the next step.

    **Arguments:**

    - `file`: the MCAP file to write; None for no file. `port`: the port of the websocket on this machine (Foxglove's
      is 8765; 0 for any free port); None for no websocket.
    - `every`: stream every n-th step.
    - `steps`: how many steps the ring holds, at most; it also has at most 16 MB.

    Give it to an agent, `Agent(…, telemetry=telemetry)` or later `agent.stream(telemetry)`, and close it when the agent
    has stopped. Use one for each agent.

    !!! Example

        >>> import pathlib, tempfile, selftune as st
        >>> from selftune import models, policies
        >>> loop = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=1.0, ki=0.5))
        >>> folder = tempfile.TemporaryDirectory()
        >>> with st.Telemetry(pathlib.Path(folder.name, "run.mcap")) as telemetry:
        ...     agent = loop.agent(telemetry=telemetry)
        ...     for _ in range(100):
        ...         u = agent.act([0.2], reference=[1.0])
        >>> telemetry.written, telemetry.dropped
        (100, 0)
        >>> folder.cleanup()
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        every: int = 1,
        steps: int = 8192,
    ):
        if file is None and port is None:
            raise ArgumentError("file", "a file, a port, or both", "neither")
        if port is not None and not 0 <= arguments.whole("port", port) < 2**16:
            raise ArgumentError("port", "a number below 65536", f"{port}")
        self._file = None if file is None else Path(file)
        if self._file is not None and not self._file.absolute().parent.is_dir():
            raise ArgumentError("file", "a file in a folder that exists", f"{file}")
        if self._file is not None and self._file.suffix not in ("", ".mcap"):
            raise ArgumentError("file", "a name with .mcap, because the file is written as MCAP", f"{file}")
        self._port, self._every = port, arguments.count("every", every)
        self._steps = arguments.whole("steps", steps, least=16)
        self._ring: Ring | None = None
        self._engine: Any = None
        self._count, self._until, self._dropped = 0, 0, 0

    def begin(self, engine: Any) -> None:
        """Start the writer for an agent's engine; the agent calls this."""
        if self._engine is not None:
            raise ArgumentError("telemetry", "one Telemetry for each agent", "one that another agent uses")
        self._engine = engine
        fields = engine.stream_fields()
        size = 24 + fields.itemsize
        slots = max(16, min(self._steps, MEMORY // size))
        about = {
            "fields": [[name, *_described(fields, name)] for name in fields.names or ()],
            "size": size,
            "slots": slots,
            "file": None if self._file is None else str(self._file.absolute()),
            "port": self._port,
            "decisions": {str(one.value): str(one) for one in Decision},
        }
        memory, self._path = _shared(HEADER + size * slots)
        self._ring, self._size, self._slots = Ring(memory, size, slots), size, slots
        self._memory, self._head = memory, self._ring.counters
        command = [sys.executable, "-m", "selftune.realtime.telemetry_writer", self._path, json.dumps(about)]
        # A file and not a pipe, which the writer could fill, and then wait for.
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (the finalizer closes the file)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._said)
        self._finalizer = weakref.finalize(self, _stop, self._process, self._head, self._path, self._said, 1.0)
        self._await_start()

    def _await_start(self) -> None:
        limit = monotonic() + START
        while not self._head[LAYOUT["started"]]:
            if self._process.poll() is not None or monotonic() > limit:
                why = self._last_words() or f"it did not start within {START:g} s"
                self._finalizer()
                self._ring = None
                raise RuntimeError(f"telemetry: the writer stopped: {why}")
            sleep(0.005)

    def _last_words(self) -> str:
        """Return the last line that the writer wrote to its stderr."""
        self._said.seek(0)
        return next((line for line in reversed(self._said.read().split("\n")) if line), "")

    @property
    def port(self) -> int | None:
        """The port of the websocket on this machine; None without one, or before an agent has started it."""
        return int(self._head[LAYOUT["port"]]) or None if self._ring is not None else None

    @property
    def written(self) -> int:
        """How many steps the agent has put into the ring so far."""
        return self._count

    @property
    def dropped(self) -> int:
        """How many steps the writer has missed so far."""
        if self._ring is None:
            return self._dropped
        return int(self._head[LAYOUT["dropped"]]) + max(0, self._count - int(self._head[LAYOUT["read"]]) - self._slots)

    @property
    def is_alive(self) -> bool:
        """Whether the writer runs."""
        return self._ring is not None and self._process.poll() is None

    def put(self, step: int) -> None:
        """Copy the values of the last step into the ring; the agent calls this."""
        self._until -= 1
        if self._until > 0:
            return
        self._until = self._every
        if self._ring is None:  # closed
            return
        count, size = self._count, self._size
        begin = HEADER + count % self._slots * size
        self._memory[begin : begin + size] = b"".join((_PACK(count, time_ns(), step), *self._engine.stream_parts()))
        self._count = self._head[0] = count + 1

    def write_layout(self, path: str | os.PathLike[str]) -> None:
        """Write a layout for Foxglove that fits the agent: gains, cost, control and the guard's decisions over time.

        In Foxglove, choose "Import from file…" in the menu of layouts. It needs an agent that streams to this object.
        """
        if self._engine is None:
            raise RuntimeError(
                "write_layout: expected an agent that streams to this telemetry, such as Agent(telemetry=…)"
            )
        layouts = extras.load("realtime.foxglove_layout", asked_for="telemetry.write_layout()", extra="telemetry")
        files.write(Path(path), layouts.text(self._engine.stream_fields()).encode())

    def close(self, timeout: float = 5.0) -> None:
        """Let the writer finish the file, and stop it. After `timeout` seconds it is killed."""
        if self._ring is None:
            return
        self._head[LAYOUT["closing"]] = 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self._dropped = self.dropped
        self._dropped += max(0, min(self._count - int(self._head[LAYOUT["read"]]), self._slots))
        self._ring = None
        why = self._last_words()
        self._finalizer()
        if code := self._process.returncode:
            why = why or f"the writer ended with the code {code}"
            _LOGGER.warning("telemetry is not complete: %s; %d of %d steps dropped", why, self._dropped, self._count)

    def __enter__(self) -> "Telemetry":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


_PACK = struct.Struct("<qqq").pack
_LOGGER = logging.getLogger("selftune")


def _shared(size: int) -> tuple[mmap.mmap, str]:
    """Return zeros that two processes share, and the path of their file.

    The zeros are written, because the system ends a process that uses memory which is reserved but not there. The file
    is in memory where the system has a folder for that, and otherwise on the disk.
    """
    problem = None
    for folder in ("/dev/shm", None):
        if folder is not None and not os.path.isdir(folder):
            continue
        handle, path = tempfile.mkstemp(prefix="selftune-", suffix=".ring", dir=folder)
        try:
            with open(handle, "w+b") as file:
                file.write(bytes(size))
                file.flush()
                return mmap.mmap(file.fileno(), size), path
        except OSError as error:  # no space is left
            os.unlink(path)
            problem = error
    raise RuntimeError(f"telemetry: there is no memory for the ring of {size:,} bytes ({problem})")


def _described(fields: np.dtype, name: str) -> tuple[str, list[int], int]:
    kind, offset = fields.fields[name][:2]  # type: ignore[index]
    base, shape = kind.subdtype or (kind, ())
    return base.str, list(shape), offset


def _stop(process: subprocess.Popen[bytes], head: np.ndarray, path: str, said: IO[str], patience: float) -> None:
    head[LAYOUT["closing"]] = 1
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    said.close()
    Path(path).unlink(missing_ok=True)

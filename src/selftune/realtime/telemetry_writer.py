"""The process that writes an agent's telemetry: an MCAP file, and a websocket for Foxglove. It has no JAX."""

import json
import math
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .telemetry_ring import LAYOUT, Ring

TOPIC, STATUS = "/selftune/step", "/selftune/status"
PAUSE = 0.02
"""The writer looks at the ring this often, in seconds."""
LARGEST = 64
"""Values with more numbers than this are left out."""


def main(path: str, about: dict[str, Any]) -> None:
    """Write what the ring contains, until the agent closes it or its process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent, which then closes the ring
    parent = os.getppid()
    with Path(path).open("r+b") as file:
        ring = Ring(mmap.mmap(file.fileno(), 0), about["size"], about["slots"])
    messages = Messages(about["fields"], about["decisions"])
    sinks = Sinks()
    if about["file"] is not None:
        sinks.add(McapSink(Path(about["file"]), messages.schema))
    if about["port"] is not None:
        websocket = FoxgloveSink(about["port"], messages.schema)
        sinks.add(websocket)
        ring.counters[LAYOUT["port"]] = websocket.port
    ring.counters[LAYOUT["started"]] = 1
    told = 0.0
    while True:
        last = bool(ring.counters[LAYOUT["closing"]]) or os.getppid() != parent
        count = 0
        for record in ring.new():
            count += 1
            sinks.write(TOPIC, *messages.of(record))
        if last or time.monotonic() - told > 1.0:
            told = time.monotonic()
            counters = {name: int(ring.counters[LAYOUT[name]]) for name in ("written", "dropped")}
            sinks.write(STATUS, time.time_ns(), counters)
            sinks.flush()
        elif count:
            sinks.flush()
        if last:
            break
        time.sleep(PAUSE)
    sinks.close()


class Sinks:
    """All places to which the messages go. A place that fails is left out from then on; the others continue."""

    def __init__(self) -> None:
        self._sinks: list[Any] = []
        self._problem: Exception | None = None

    def add(self, sink: Any) -> None:
        self._sinks.append(sink)

    def write(self, topic: str, when: int, message: dict[str, Any]) -> None:
        self._each(lambda sink: sink.write(topic, when, message))

    def flush(self) -> None:
        self._each(lambda sink: sink.flush())

    def close(self) -> None:
        """Close all places, and raise the first problem that there was."""
        self._each(lambda sink: sink.close())
        if self._problem is not None:
            raise self._problem

    def _each(self, call: Callable[[Any], None]) -> None:
        for sink in list(self._sinks):
            try:
                call(sink)
            except Exception as error:  # a full disk, for example
                self._problem = self._problem or error
                self._sinks.remove(sink)
                if not self._sinks:
                    raise


class Messages:
    """From the bytes of a step to its message."""

    def __init__(self, fields: list[list[Any]], decisions: dict[str, str]):
        self._fields = [(name, np.dtype(kind), tuple(shape), 24 + at) for name, kind, shape, at in fields]
        self._fields = [one for one in self._fields if math.prod(one[2]) <= LARGEST]
        self._words = {int(bit): word for bit, word in decisions.items()}

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of a message, from which Foxglove knows what can be plotted."""
        parts: dict[str, Any] = {"step": {"type": "integer"}, "time": {"type": "number"}, "guard": {"type": "string"}}
        for name, _, shape, _ in self._fields:
            number = {"type": "number"}
            value = {"type": "array", "items": number} if shape else number
            group, _, rest = name.partition(".")
            if rest:
                parts.setdefault(group, {"type": "object", "properties": {}})["properties"][rest] = value
            else:
                parts[name] = value
        return {"title": "selftune.Step", "type": "object", "properties": parts}

    def of(self, record: bytes) -> tuple[int, dict[str, Any]]:
        """Return the time of a record in nanoseconds, and its message. JSON has no NaN: it becomes null."""
        _, when, step = np.frombuffer(record, np.int64, 3).tolist()
        message: dict[str, Any] = {"step": step, "time": when / 1e9}
        for name, kind, shape, at in self._fields:
            numbers = np.frombuffer(record, kind, math.prod(shape), at).tolist()
            numbers = [number if math.isfinite(number) else None for number in numbers]
            value = numbers if shape else numbers[0]
            group, _, rest = name.partition(".")
            if rest:
                message.setdefault(group, {})[rest] = value
            else:
                message[name] = value
        bits = int(message.get("guard_decisions") or 0)
        message["guard"] = ", ".join(word for bit, word in self._words.items() if bits & bit) or "none"
        return when, message


class McapSink:
    """An MCAP file. It is not in chunks, so that others can read it while it grows."""

    def __init__(self, path: Path, schema: dict[str, Any]):
        from mcap.writer import CompressionType, Writer

        self._file = path.open("wb")
        self._writer = Writer(self._file, compression=CompressionType.NONE, use_chunking=False)
        self._writer.start(library="selftune")
        self._channels = {}
        for topic, about in ((TOPIC, schema), (STATUS, {"title": "selftune.Status", "type": "object"})):
            number = self._writer.register_schema(about["title"], "jsonschema", json.dumps(about).encode())
            self._channels[topic] = self._writer.register_channel(topic, "json", number)

    def write(self, topic: str, when: int, message: dict[str, Any]) -> None:
        self._writer.add_message(self._channels[topic], when, json.dumps(message).encode(), when)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._writer.finish()
        self._file.close()


class FoxgloveSink:
    """A websocket on this machine that Foxglove, and others who speak its protocol, can open."""

    def __init__(self, port: int, schema: dict[str, Any]):
        import foxglove

        self._server = foxglove.start_server(name="selftune", host="127.0.0.1", port=port)
        self.port = self._server.port
        status = {"title": "selftune.Status", "type": "object", "properties": {"written": {}, "dropped": {}}}
        self._channels = {
            topic: foxglove.Channel(topic, schema=about) for topic, about in ((TOPIC, schema), (STATUS, status))
        }

    def write(self, topic: str, when: int, message: dict[str, Any]) -> None:
        self._channels[topic].log(message, log_time=when)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._server.stop()


if __name__ == "__main__":
    try:
        main(sys.argv[1], json.loads(sys.argv[2]))
    except ModuleNotFoundError as error:
        sys.exit(f"it needs {error.name}; install it with: pip install 'selftune[telemetry]'")
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")

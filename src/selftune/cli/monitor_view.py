"""What `selftune monitor` knows of a running agent, and how a terminal and a browser show it."""

import json
import math
import threading
import time
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..foundation.safe_text import printable
from .screen import new_table

KEPT, POINTS = 3_000, 60
"""The last steps that are kept, and the points of a line."""
BARS = "▁▂▃▄▅▆▇█"


class Watched:
    """The last steps of an agent. One thread adds steps, others ask for a picture."""

    def __init__(self, source: str):
        self.source = source
        self._lock = threading.Lock()
        self._steps: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._guard: Counter[str] = Counter()
        self._seen, self.is_over = 0, False

    def add(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._seen += 1
            self._steps.append(message)
            self._guard.update(word for word in message["guard"].split(", ") if word != "none")

    def picture(self) -> dict[str, Any]:
        """Return what people want to know, as plain values."""
        with self._lock:
            messages, guard, seen = list(self._steps), dict(self._guard), self._seen
        found = {"source": self.source, "seen": seen, "guard": guard, "over": self.is_over}
        if not messages:
            return found
        first, last = messages[0], messages[-1]
        seconds = last["time"] - first["time"]
        rate = (last["step"] - first["step"]) / seconds if seconds > 0 else None
        lines = {"cost": _line([message["cost"] for message in messages])}
        rho = [message.get("tuner_contraction") for message in messages]
        if rho[-1] is not None:
            lines["ρ̂"] = _line(rho)
        for group in ("theta", "a_hat"):
            for name in _flat(group, last):
                shown, scaled = _readable(name)
                lines[shown] = _line([scaled(_flat(group, message).get(name)) for message in messages])
        costs = [message["cost"] for message in messages[-200:] if message["cost"] is not None]
        return found | {
            "step": last["step"],
            "rate": rate,
            "now": last["guard"],
            "cost": sum(costs) / len(costs) if costs else None,
            "level": last.get("guard_level"),
            "values": {name: line[-1] for name, line in lines.items()},
            "lines": lines,
        }


def _flat(group: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of θ or â by name."""
    part = message.get(group)
    parts = part if isinstance(part, dict) else {"": part}
    flat = {}
    for name, value in parts.items():
        title = name or group
        if isinstance(value, list):
            flat |= {f"{title}[{i}]" if len(value) > 1 else title: number for i, number in enumerate(value)}
        elif value is not None:
            flat[title] = value
    return flat


def _readable(name: str) -> tuple[str, Any]:
    """Return the name for people and a function of the value: a logarithm is shown as the gain itself."""
    head, dot, tail = name.rpartition("_log_") if "_log_" in name else ("", "", name)
    if tail.startswith("log_") or dot:
        return (
            f"{head}{'.' if head else ''}{tail.removeprefix('log_')}",
            lambda v: None if v is None else math.exp(min(v, 700.0)),
        )
    return name.replace("a_hat", "â").replace("theta", "θ"), lambda v: v


def _line(values: list[Any]) -> list[float | None]:
    """Return at most `POINTS` values, the means of equal parts."""
    size = max(1, len(values) // POINTS)
    parts = [values[max(end - size, 0) : end] for end in range(len(values), 0, -size)][:POINTS]
    means = []
    for part in reversed(parts):
        known = [value for value in part if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def terminal(picture: dict[str, Any]) -> Group:
    """The picture for a terminal."""
    head = Text(f"{printable(picture['source'])}   ", style="bold")
    if "step" not in picture:
        head.append("waiting for the first step …", style="dim")
        return Group(head)
    rate = "–" if picture["rate"] is None else f"{picture['rate']:.0f}"
    head.append(f"step {picture['step']:,}   {rate} steps/s   mean cost {_number(picture['cost'])}")
    if picture["over"]:
        head.append("   ended", style="yellow")
    values = new_table("", "", "now", "last steps")
    for name, line in picture["lines"].items():
        values.add_row(printable(name), _number(picture["values"][name]), _spark(line))
    return Group(head, values, _guards(picture))


def _guards(picture: dict[str, Any]) -> Table:
    table = new_table("guard", "decision", "steps seen", "now")
    now = picture["now"].split(", ")
    for word, count in sorted(picture["guard"].items(), key=lambda item: -item[1]):
        table.add_row(printable(word), f"{count:,}", "●" if word in now else "")
    if not picture["guard"]:
        table.add_row("none", "", "")
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _spark(line: list[float | None]) -> str:
    known = [value for value in line if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if value is None else BARS[round((value - low) * scale)] for value in line)


def serve(watched: Watched, port: int) -> ThreadingHTTPServer:
    """Start a page about the agent on this machine, and return its server."""
    page = Path(__file__).with_name("monitor_page.html").read_text(encoding="utf-8")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not _is_local(self.headers.get("Host", "")):
                self.send_error(403)  # another site's name that points to this machine
            elif self.path == "/":
                self._start("text/html; charset=utf-8")
                now = json.dumps(watched.picture()).replace("<", "\\u003c")  # no end of the script in a name
                self.wfile.write(page.replace('"PICTURE"', now).encode())
            elif self.path == "/events":
                self._start("text/event-stream")
                try:
                    while True:
                        self.wfile.write(f"data: {json.dumps(watched.picture())}\n\n".encode())
                        self.wfile.flush()
                        time.sleep(0.2)
                except OSError:  # the browser has gone
                    return
            else:
                self.send_error(404)

        def _start(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _is_local(host: str) -> bool:
    return host.rpartition(":")[0] in ("127.0.0.1", "localhost")

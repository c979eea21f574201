"""`selftune monitor`: a running agent in the terminal or in the browser, from its telemetry."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from .screen import SafeConsole, refusing


def monitor(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="The MCAP file of a Telemetry, or its websocket: ws://127.0.0.1:8765."),
    ],
    browser: Annotated[bool, typer.Option("--browser", help="Show a page in place of the terminal.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the page. 0: any free port.")] = 0,
) -> None:
    """Watch a running agent: gains, cost, contraction and the guard's decisions. The agent is not touched."""
    with refusing(with_jax=False), suppress(KeyboardInterrupt):  # Ctrl-C is the way to end a monitor
        from rich.live import Live

        from ..foundation.errors import InputError
        from ..realtime import telemetry_reader
        from . import monitor_view

        is_socket = source.startswith(("ws://", "wss://"))
        if not is_socket and not Path(source).is_file():
            raise InputError(f"{source}: no such file; give the file of a Telemetry, or ws://127.0.0.1:PORT")
        steps = telemetry_reader.listen(source) if is_socket else telemetry_reader.follow(Path(source))
        watched = monitor_view.Watched(source)
        failed: list[BaseException] = []

        def read() -> None:
            try:
                for message in steps:
                    if message is None:
                        time.sleep(0.05)
                    else:
                        watched.add(message)
            except BaseException as error:
                failed.append(error)
            watched.is_over = True

        console = SafeConsole(highlight=False)
        server = monitor_view.serve(watched, port) if browser else None
        if server is not None:
            console.print(f"http://127.0.0.1:{server.server_port}/   (Ctrl-C ends the monitor)")
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        if server is not None:
            while not failed:
                reader.join(0.2)
                time.sleep(0.2 if watched.is_over else 0.0)  # the page stays after the agent has ended
        else:
            with Live(console=console, refresh_per_second=5, auto_refresh=False) as live:
                while True:
                    is_over = watched.is_over
                    live.update(monitor_view.terminal(watched.picture()), refresh=True)
                    if is_over:
                        break
                    reader.join(0.2)
        if failed:
            raise failed[0]

"""A sign of life on the terminal while something takes long."""

import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PATIENCE = 1.0
"""Seconds before anything is shown."""
PERIOD = 0.1


@contextmanager
def spinner(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show `text` with a turning line while the body runs for more than a second, and remove it afterwards.

    Nothing is written if the stream, by default stderr, is not a terminal.
    """
    stream = sys.stderr if stream is None else stream
    if stream is None or not stream.isatty():
        yield
        return
    finished = threading.Event()

    def turn() -> None:
        if finished.wait(PATIENCE):
            return
        for sign in itertools.cycle("|/-\\"):
            stream.write(f"\r{sign} {text}")
            stream.flush()
            if finished.wait(PERIOD):
                break
        stream.write("\r" + " " * (len(text) + 2) + "\r")
        stream.flush()

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()

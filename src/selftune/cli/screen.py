"""What all commands share: output to stdout and stderr, handling of errors and Ctrl-C, and JAX's settings."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..foundation import json_values
from ..foundation.errors import InputError
from ..foundation.safe_text import printable, without_passwords

BAD_INPUT, INTERRUPTED = 2, 130


class SafeConsole(Console):
    """A console that shows the control codes of a text, such as those of a file, instead of obeying them."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(without_passwords(printable(text)), **options)


class Screen:
    """The output of a command: results go to stdout, notes and progress to stderr."""

    def __init__(self, quiet: bool, as_json: bool):
        self.quiet, self.as_json = quiet, as_json
        self.started = time.monotonic()
        self.out, self.err = SafeConsole(highlight=False), SafeConsole(stderr=True, highlight=False)

    def note(self, text: str) -> None:
        if not self.quiet:
            self.err.print(escape(text), soft_wrap=True)

    def phase(self, text: str) -> None:
        """Tell on stderr which phase of a long command begins, one line each, also if stderr is not a terminal."""
        if not self.quiet:
            now = time.monotonic() - self.started
            self.err.print(escape(f"{now:5.0f} s  {text}"), soft_wrap=True)

    def show(self, what: Any) -> None:
        """Print text or a table for people."""
        if not self.quiet and not self.as_json:
            if isinstance(what, str):
                self.out.print(escape(what), soft_wrap=True)
            else:
                self.out.print(what)

    def give(self, value: Any) -> None:
        """Print the result, which may contain pydantic models, as JSON for programs."""
        if self.as_json:
            sys.stdout.write(f"{json_values.text_for_terminal(value)}\n")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[int, int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(
            *columns,
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.err,
            transient=True,
            disable=self.quiet or not self.err.is_terminal,  # without a terminal, Rich would print an empty line
        ) as bar:
            task = bar.add_task(text, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def refusing(*, with_jax: bool = True, continues: bool = True) -> Iterator[None]:
    """Configure JAX and run the body. An error that the user can fix ends in one message and exit code 2.

    With `continues`, the command continues its work when it runs again.
    """
    try:
        if with_jax:
            from ..foundation import jax_settings  # it loads JAX, which the help does not need

            jax_settings.start_command()
        yield
    except KeyboardInterrupt:
        then = "run the same command again to continue" if continues else "the same command starts from the beginning"
        SafeConsole(stderr=True).print(f"interrupted; {then}")
        raise typer.Exit(INTERRUPTED) from None
    except InputError as error:
        SafeConsole(stderr=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from None
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        text = f"{where}{error.strerror or error}"
        SafeConsole(stderr=True, highlight=False).print(f"[red]error:[/] {escape(text)}", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from None


@contextmanager
def stoppable(screen: Screen) -> Iterator[None]:
    """The first Ctrl-C lets the running seeds finish and says so. The second ends the process at once.

    A completed seed is never lost: files in a folder are written whole, even if the process dies.
    """

    def first(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, second)
        screen.err.print("interrupted; finishing the seeds in flight; press Ctrl-C again to stop now")
        raise KeyboardInterrupt

    def second(number: int, frame: Any) -> None:
        screen.err.show_cursor(True)
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def new_table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)

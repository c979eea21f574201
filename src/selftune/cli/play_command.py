"""The command `selftune play`: serve the built playground on this machine."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..foundation.errors import InputError
from .options import Quiet
from .screen import Screen, refusing

if TYPE_CHECKING:
    import http.server

BUILT = Path(__file__).parents[3] / "playground" / "dist"
"""The built playground of a checkout, if the package is installed from there."""
HOST = "127.0.0.1"
"""Only this machine can connect."""


def _handler() -> "type[http.server.SimpleHTTPRequestHandler]":
    import http.server  # here, because `selftune --help` needs no server

    class Handler(http.server.SimpleHTTPRequestHandler):
        # Some systems know other types for these endings; browsers then refuse modules.
        extensions_map = {  # noqa: RUF012 - as in the base class
            **http.server.SimpleHTTPRequestHandler.extensions_map,
            ".html": "text/html",
            ".js": "text/javascript",
            ".css": "text/css",
            ".wasm": "application/wasm",
        }

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def list_directory(self, path: Any) -> None:
            self.send_error(404)

    return Handler


def server(folder: Path, port: int) -> "http.server.ThreadingHTTPServer":
    """Return a server for the files of the playground in a folder; port 0 takes a free port."""
    from http.server import ThreadingHTTPServer

    if not (folder / "index.html").is_file():
        if folder == BUILT and not (BUILT.parent / "package.json").is_file():
            raise InputError(
                "the installed package has no playground: it needs a checkout of the repository. "
                "Run make playground there, and then selftune play DIR with its folder playground/dist"
            )
        raise InputError(f"{folder}: no playground is built there; run make playground first (it needs Node.js)")
    try:
        return ThreadingHTTPServer((HOST, port), functools.partial(_handler(), directory=str(folder)))
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None


def play(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The built playground.", show_default="playground/dist of the checkout"),
    ] = BUILT,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8010,
    quiet: Quiet = False,
) -> None:
    """Serve the playground on this machine: controllers that tune themselves in your browser.

    It needs a checkout of the repository in which make playground has built the files. Ctrl-C stops the server.
    """
    screen = Screen(quiet, as_json=False)
    with refusing(), server(folder, port) as made:
        screen.show(f"playground   http://{HOST}:{made.server_port}/   (Ctrl-C stops it)")
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            screen.note("stopped")

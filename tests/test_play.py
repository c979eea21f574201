"""`selftune play` serves the built playground on this machine, and says what is missing."""

import threading
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from selftune.cli import play_command
from selftune.cli.app import app
from selftune.foundation.errors import InputError


@pytest.fixture
def built(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<title>playground</title>")
    (tmp_path / "assets" / "one.wasm").write_bytes(b"\0asm")
    return tmp_path


def test_serves_files_on_loopback(built):
    with play_command.server(built, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        with urllib.request.urlopen(home) as page:
            assert b"playground" in page.read()
        with urllib.request.urlopen(home + "assets/one.wasm") as module:
            assert module.headers["content-type"] == "application/wasm"
        for path in ("assets/", "../secret", "none"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(home + path)
            assert refused.value.code == 404
            refused.value.close()
        server.shutdown()


def test_a_port_in_use_is_named(built):
    with play_command.server(built, 0) as server, pytest.raises(InputError, match=f"port {server.server_port} cannot"):
        play_command.server(built, server.server_port)


def test_without_files_the_command_says_what_to_do(tmp_path, monkeypatch):
    done = CliRunner().invoke(app, ["play", str(tmp_path)])
    assert done.exit_code == 2
    assert "make playground" in done.stderr
    monkeypatch.setattr(play_command, "BUILT", tmp_path / "playground" / "dist")
    with pytest.raises(InputError, match="needs a checkout"):
        play_command.server(play_command.BUILT, 0)

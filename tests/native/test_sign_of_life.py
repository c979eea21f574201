"""The sign of life while a program is compiled."""

import io
import time

import pytest

from selftune.native.c import sign_of_life


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "seconds", "is_shown"), [(Terminal, 0.2, True), (Terminal, 0, False), (io.StringIO, 0.2, False)]
)
def test_it_appears_on_a_terminal_after_a_while_and_is_removed(stream, seconds, is_shown, monkeypatch):
    monkeypatch.setattr(sign_of_life, "PATIENCE", 0.05)
    monkeypatch.setattr(sign_of_life, "PERIOD", 0.01)
    written = stream()
    with sign_of_life.spinner("compiling", written):
        time.sleep(seconds)
    text = written.getvalue()
    assert ("| compiling" in text) == is_shown
    assert not text.replace("\r", "\n").splitlines()[-1:] or not text.replace("\r", "\n").splitlines()[-1].strip()

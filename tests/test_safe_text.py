"""Text from elsewhere: its control codes do not reach the terminal, and passwords do not reach a message."""

import json
import pickle
import re
import traceback
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from selftune.cli.app import app
from selftune.cli.screen import Screen
from selftune.foundation.errors import ArgumentError, InputError, OverwriteError, StoreError, in_one_line
from selftune.foundation.safe_text import printable, without_passwords
from selftune.storage import files
from selftune.storage.store import RunStore
from tests import test_store

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e\x7f\udc80"


def is_clean(text):
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)


def test_control_codes_become_escapes():
    assert printable("a\tb\n\x1b[31mθ̂ × 10⁻³\x9b") == "a\tb\n\\x1b[31mθ̂ × 10⁻³\\x9b"
    assert printable(HOSTILE) == r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e\x7f\udc80"


def test_the_screen_shows_control_codes(capsys):
    screen = Screen(quiet=False, as_json=False)
    screen.show(HOSTILE)
    screen.note(HOSTILE)
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    screen.show(table)
    printed = capsys.readouterr()
    for text in printed:
        assert "owned" in text
        assert is_clean(text)


def test_json_for_programs_has_no_control_codes_and_the_same_content(capsys):
    Screen(quiet=False, as_json=True).give({"note": HOSTILE})
    text = capsys.readouterr().out
    assert is_clean(text)
    assert json.loads(text) == {"note": HOSTILE}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_manifest_of_a_run_does_not_control_the_terminal(tmp_path, options):
    note = HOSTILE.replace("\udc80", "")
    with test_store.begin(tmp_path / "run", settings={"note": note}):
        done = CliRunner().invoke(app, ["info", str(tmp_path / "run"), *options])
    assert "owned" in done.output
    assert is_clean(done.output)


def test_an_error_about_a_file_does_not_control_the_terminal(tmp_path):
    folder = tmp_path / "\x1b[2J"
    folder.mkdir()
    (folder / "manifest.json").write_text("{")
    done = CliRunner().invoke(app, ["info", str(folder)])
    assert done.exit_code == 2
    assert r"\x1b[2J" in done.output.replace("\n", "")
    assert is_clean(done.output)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("s3://key:secret@host/run: no", "s3://***@host/run: no"),
        ("s3://key:se@cr@host/run", "s3://***@host/run"),
        ("s3:/key:secret@host/run", "s3:/***@host/run"),
        ("'ftp://key:secret@host'", "'ftp://***@host'"),
        ("https://host/a?sig=secret&x=1", "https://host/a?sig=***&x=1"),
        ("https://host/a?x=1&api_key=secret", "https://host/a?x=1&api_key=***"),
        ("s3://AKIA:wJal/K7M+bPx'R@host/run", "s3://***@host/run"),
        ("s3:/AKIA:wJal/K7M@host/run", "s3:/***@host/run"),
        (
            "https://host/a;x=1&X-Amz-Credential=secret;passphrase=b",
            "https://host/a;x=1&X-Amz-Credential=***;passphrase=***",
        ),
        ("tcp://host:8786/a@b, C:/a/b@2, 'http://host:80'@", "tcp://host:8786/a@b, C:/a/b@2, 'http://host:80'@"),
        ("a@b.org, s3://bucket/run@2", "a@b.org, s3://bucket/run@2"),
        ("/home/x@y/run", "/home/x@y/run"),
    ],
)
def test_passwords_are_left_out(text, clean):
    assert without_passwords(text) == clean


URL = "nosuch://key:secret@host/bucket/run"


@pytest.mark.parametrize(
    "raises",
    [
        lambda: files.as_folder(URL),
        lambda: files.as_folder(Path(URL)),
        lambda: files.as_folder("ftp://key:secret@127.0.0.1:9/bucket/run"),
        lambda: (_ for _ in ()).throw(StoreError(f"{URL}: no")),
    ],
)
def test_no_error_contains_the_password_of_a_url(raises):
    with pytest.raises((InputError, ValueError)) as caught:
        raises()
    told = "".join(traceback.format_exception(caught.value))
    assert "secret" not in "".join(line for line in told.splitlines() if "lambda" not in line)
    assert "secret" not in repr(caught.value)
    assert "***@" in str(caught.value)


def test_a_run_that_cannot_be_opened_does_not_tell_the_password(tmp_path, monkeypatch):
    """Also not in the cause, which a traceback shows."""
    folder = test_store.run(tmp_path / "run", tasks=[])

    def refuse(path):
        raise OSError(f"{URL}: no answer")

    monkeypatch.setattr("selftune.storage.zarr_arrays.open_group", refuse)
    with pytest.raises(StoreError, match="no answer") as caught:
        RunStore(folder)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_the_parts_of_errors_have_no_password_either():
    for error in (OverwriteError(f"{URL}: x", f"use {URL}"), ArgumentError("folder", "a folder", URL, URL)):
        copy = pickle.loads(pickle.dumps(error))
        assert "secret" not in f"{vars(copy)} {copy} {copy.args}"
    assert in_one_line(RuntimeError(URL)) == "RuntimeError: nosuch://***@host/bucket/run"

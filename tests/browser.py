"""A page in a real browser, Chromium without a window: what it draws, and what it complains about."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=5000",
)


def find() -> str:
    """The browser; without one the test is skipped, or fails where one is demanded."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    reason = f"no browser on the PATH: none of {', '.join(NAMES)}"
    if os.environ.get("SELFTUNE_NEEDS_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def look(page: Path, folder: Path, question: str, *, width: int = 1280) -> tuple[Any, list[str]]:
    """What the JavaScript expression `question` gives once `page` is drawn, and the lines of the console.

    It may give a promise.
    """
    asking = folder / "asking.html"
    keep = "(answer) => { document.body.dataset.answer = encodeURIComponent(JSON.stringify(answer)); }"
    ask = f"<script>Promise.resolve({question}).then({keep})</script></body>"
    asking.write_text(page.read_text().replace("</body>", ask))
    command = [find(), *OPTIONS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run([*command, asking.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    answer = re.search(r'data-answer="([^"]*)"', done.stdout)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return None if answer is None else json.loads(unquote(answer[1])), console

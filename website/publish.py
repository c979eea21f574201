"""Put the built site beside the other versions: python -m website.publish FOLDER VERSION

FOLDER is a checkout of the branch that GitHub Pages shows. "dev" is the site of the main branch; a release has its
number, and "latest" is a copy of the newest release. The theme's list of versions reads versions.json.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from .places import SITE

REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={target}/"><a href="{target}/">selftune</a>\n'


def publish(folder: Path, version: str, site: Path = SITE) -> None:
    if version != "dev" and not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f'VERSION: expected "dev" or a number such as 0.1.0, got {version!r}')
    replace(site, folder / version)
    numbers = [path.name for path in folder.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    numbers.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if name == numbers[0] else []} for name in numbers
    ]
    if (folder / "dev").exists():
        entries.append({"version": "dev", "title": "dev", "aliases": []})
    if numbers:
        replace(folder / numbers[0], folder / "latest")
    (folder / "versions.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(REDIRECT.format(target="latest" if numbers else "dev"), encoding="utf-8")
    (folder / ".nojekyll").touch()


def replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m website.publish FOLDER VERSION")
    publish(Path(sys.argv[1]), sys.argv[2])

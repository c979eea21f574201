"""Put the built site beside the other versions: python -m website.publish FOLDER VERSION

FOLDER is a checkout of the branch that GitHub Pages shows. "dev" is the site of the main branch. A release has its
number. "latest" is a copy of the newest release, or of "dev" before the first release. The theme's list of versions
reads versions.json.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from .places import ADDRESS, SITE

REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url=latest/"><a href="latest/">selftune</a>\n'


def publish(folder: Path, version: str, site: Path = SITE) -> None:
    if version != "dev" and not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f'VERSION: expected "dev" or a number such as 0.1.0, got {version!r}')
    replace(site, folder / version)
    relocate(folder / version, "", f"/{version}")
    numbers = [path.name for path in folder.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    numbers.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if name == numbers[0] else []} for name in numbers
    ]
    if (folder / "dev").exists():
        entries.append({"version": "dev", "title": "dev", "aliases": []})
    newest = numbers[0] if numbers else "dev"
    replace(folder / newest, folder / "latest")
    relocate(folder / "latest", f"/{newest}", "/latest")
    (folder / "versions.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(REDIRECT, encoding="utf-8")
    shutil.copy(folder / "latest" / "404.html", folder / "404.html")  # the only place where GitHub looks for it
    (folder / ".nojekyll").touch()


def relocate(site: Path, old: str, new: str) -> None:
    """Change the complete addresses of a site: the canonical ones, those of the site map, and all of the page 404."""
    for page in (*site.rglob("*.html"), site / "sitemap.xml"):
        text = page.read_text(encoding="utf-8").replace(f"{ADDRESS}{old}/", f"{ADDRESS}{new}/")
        if page == site / "404.html":
            text = re.sub(f'"{urlsplit(ADDRESS).path}{old}(?=[/"])', f'"{urlsplit(ADDRESS).path}{new}', text)
        page.write_text(text, encoding="utf-8")


def replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m website.publish FOLDER VERSION")
    publish(Path(sys.argv[1]), sys.argv[2])

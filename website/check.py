"""The finished site: links and anchors lead somewhere, links reach every page, and no file is from another server."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .places import ADDRESS, SITE


class Page(HTMLParser):
    """The ids of a page, the addresses that its links name, and the addresses that it loads by itself."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if identity := values.get("id"):
            self.ids.add(identity)
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
        if tag in ("script", "img", "video", "source", "iframe") and (target := values.get("src")):
            self.loads.append(target)
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload") and (target := values.get("href")):
            self.loads.append(target)


def problems(site: Path = SITE) -> list[str]:
    """Everything that is wrong, in words."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found, reached = [], set()
    for path, page in pages.items():
        for target in (*page.links, *page.loads):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loads and parts.scheme != "data":
                    found.append(f"{path.relative_to(site)} loads {target} from another server")
                continue
            # The addresses of the page 404 begin at the root of the server.
            below = f".{parts.path.removeprefix(urlsplit(ADDRESS).path)}" if parts.path.startswith("/") else None
            start = path.parent if below is None else site
            place = (start / unquote(below or parts.path)).resolve() if parts.path else path
            place = place / "index.html" if place.is_dir() else place
            if not place.exists():
                found.append(f"{path.relative_to(site)} links to {target}, which does not exist")
            elif parts.fragment and place in pages and unquote(parts.fragment) not in pages[place].ids:
                found.append(f"{path.relative_to(site)} links to {target}, which has no such anchor")
            if place != path and path.name != "404.html":
                reached.add(place)
    unreached = [path for path in pages if path not in reached and path.name != "404.html"]
    found += [f"{path.relative_to(site)} is reached by no link" for path in unreached]
    return found

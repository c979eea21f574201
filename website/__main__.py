"""Build the site: python -m website

1. The pages of docs/, the reference and the tutorials, which are run, are assembled in build/pages.
2. Zensical makes build/site, and stops at a broken link. The playground is added if `make playground` has built it.
3. The finished site is checked: links, anchors, pages that no link reaches, files from other servers, public names.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import check, notebooks, pages, playground, reference
from .places import PAGES, ROOT, SITE, WEBSITE

CONFIG = ROOT / "build" / "zensical.toml"


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    PAGES.mkdir(parents=True)
    api, titles = reference.make()
    pages.copy(api)
    notebooks.make(api)
    text = configuration(titles)
    problems = navigation_problems(text)
    CONFIG.write_text(text, encoding="utf-8")
    zensical = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    subprocess.run([*zensical, "--config-file", str(CONFIG)], check=True)
    if not playground.add():
        print("the site has no playground: make playground builds it")
    problems += check.problems() + [f"{name} is not in the reference" for name in undocumented(api)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}")


def configuration(titles: list[tuple[str, str, str]]) -> str:
    """The settings, with the generated pages in the navigation: a section for each module."""
    rows = []
    for module in dict.fromkeys(module for module, _, _ in titles):
        pages = ", ".join(f'{{ "{title}" = "{page}" }}' for owner, title, page in titles if owner == module)
        rows.append(f'{{ "{module}" = [{pages}] }},')
    return re.sub(r"# GENERATED.*", lambda _: "\n        ".join(rows), (WEBSITE / "zensical.toml").read_text("utf-8"))


def navigation_problems(config: str) -> list[str]:
    """Pages that the navigation lacks, or names twice, or that do not exist."""
    named = re.findall(r'"([\w/-]+\.md)"', config)
    present = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    twice = sorted({name for name in named if named.count(name) > 1})
    return [
        *(f"{name} is not in the navigation of website/zensical.toml" for name in sorted(present - set(named))),
        *(f"website/zensical.toml names {name}, which does not exist" for name in sorted(set(named) - present)),
        *(f"website/zensical.toml names {name} twice" for name in twice),
    ]


def undocumented(api: dict[str, str]) -> list[str]:
    """Public names whose place in the reference does not exist on the finished site."""
    ids: dict[str, set[str]] = {}
    missing = []
    for name, place in api.items():
        page, _, anchor = place.partition("#")
        if page not in ids:
            ids[page] = check.Page(SITE / page.removesuffix(".md") / "index.html").ids
        if anchor not in ids[page]:
            missing.append(name)
    return missing


if __name__ == "__main__":
    main()

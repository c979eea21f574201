"""The pages of docs/, with links that work on the site."""

import os
import re
import shutil
from pathlib import Path

from .places import DOCS, PAGES, REPOSITORY, ROOT, WEBSITE

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
NAME = re.compile(r"(?<![\[`])`st\.(\w+)`(?![\]`])")


def copy(api: dict[str, str]) -> None:
    """Copy the pages, the figures, the style sheet and KaTeX. `api` has the address of each public name."""
    for page in sorted(DOCS.rglob("*.md")):
        if page == DOCS / "reference.md" or page.parent == DOCS / "tutorials":
            continue  # reference.py and notebooks.py make these pages
        place = PAGES / page.relative_to(DOCS)
        place.parent.mkdir(exist_ok=True)
        above = "" if page.parent == DOCS else "../"
        text = link_names(page.read_text(encoding="utf-8"), {name: above + to for name, to in api.items()})
        place.write_text(outside_links(text, page.parent), encoding="utf-8")
    shutil.copytree(DOCS / "figures", PAGES / "figures")
    katex = WEBSITE / "node_modules" / "katex" / "dist"
    for name in ("katex.min.css", "katex.min.js"):
        (PAGES / "assets" / "katex").mkdir(parents=True, exist_ok=True)
        shutil.copy(katex / name, PAGES / "assets" / "katex" / name)
    shutil.copytree(
        katex / "fonts", PAGES / "assets" / "katex" / "fonts", ignore=shutil.ignore_patterns("*.ttf", "*.woff")
    )
    for name in ("site.css", "math.js"):
        shutil.copy(WEBSITE / name, PAGES / "assets" / name)


def outside_links(text: str, folder: Path) -> str:
    """Lead links to files outside docs/, such as an example, to the repository on GitHub. Leave code as it is."""

    def change(match: re.Match[str]) -> str:
        target = match[2]
        if target.startswith(("http", "#", "mailto:")):
            return match[0]
        path = Path(os.path.normpath(folder / target.partition("#")[0]))
        if path.parent == DOCS / "tutorials":  # a script, which is a page on the site
            return f"{match[1]}{target.replace('.py', '.md')}{match[3]}"
        if path.is_relative_to(DOCS) and path.suffix != ".py":
            return match[0]
        return f"{match[1]}{REPOSITORY}/{path.relative_to(ROOT).as_posix()}{match[3]}"

    # A link's text may be code, so only fenced blocks are left out.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(change, part) for part in parts)


def link_names(text: str, api: dict[str, str]) -> str:
    """Make each `st.NAME` of a public name a link to its reference, outside headings and blocks of code."""

    def change(match: re.Match[str]) -> str:
        place = api.get(f"selftune.{match[1]}")
        return f"[{match[0]}]({place})" if place else match[0]

    parts = re.split(r"(^```.*?^```$|^#+ .*?$|\[[^\]\n]*\]\([^)\n]*\))", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith(("```", "#", "[")) else NAME.sub(change, part) for part in parts)

"""The reference: docs/reference.md lists all public names in tables, and each row of a table becomes a page."""

import inspect
import pkgutil
import re
from pathlib import Path

from .places import DOCS, PAGES, REPOSITORY, ROOT

SECTION = re.compile(r"`selftune\.(\w+)`")
ROW = re.compile(r"^\| (\*\*.*?) \| (.*) \|$", re.MULTILINE)


def make() -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Write the pages. Return the address of each public name, and the (module, title, file) of each page."""
    address, titles, module = {}, [], "selftune"
    listing = (DOCS / "reference.md").read_text(encoding="utf-8")
    made = []
    (PAGES / "api").mkdir(parents=True)
    for part in listing.split("\n\n"):
        if not part.startswith("|"):
            found = SECTION.search(part)
            module = f"selftune.{found[1]}" if found else module
            made.append(part)
            continue
        for title, names in ROW.findall(part):
            plain = re.sub(r"\*\*|\[|\]\([^)]*\)", "", title)
            short = plain if module == "selftune" else f"{module.removeprefix('selftune.')}: {plain}"
            slug = re.sub(r"[^a-z]+", "-", short.lower()).strip("-")
            listed = re.findall(r"`(\w+)`", names)
            page = f"api/{slug}.md"
            (PAGES / page).write_text(page_of(plain, module, listed), encoding="utf-8")
            address.update({f"{module}.{name}": f"{page}#{module}.{name}" for name in listed})
            titles.append((module, plain[0].upper() + plain[1:], page))
        made.append(
            re.sub(r"`(\w+)`", lambda name, module=module: f"[{name[0]}]({address[f'{module}.{name[1]}']})", part)
        )
    (PAGES / "reference.md").write_text("\n\n".join(made), encoding="utf-8")
    return address, titles


def page_of(title: str, module: str, names: list[str]) -> str:
    blocks = [f"# {title[0].upper() + title[1:]}"]
    for name in names:
        blocks.append(f"::: {module}.{name}")
        if (place := source(module, name)) is not None:
            blocks.append(place)
    return "\n\n".join(blocks) + "\n"


def source(module: str, name: str) -> str | None:
    """A link to the lines that define the name; None for a constant, which has no place that Python knows."""
    value = inspect.unwrap(getattr(pkgutil.resolve_name(module), name))
    try:
        lines, first = inspect.getsourcelines(value)
        path = Path(inspect.getsourcefile(value) or "").relative_to(ROOT)
    except (TypeError, ValueError, OSError):
        return None
    where = f"{REPOSITORY}/{path.as_posix()}#L{first}-L{first + len(lines) - 1}"
    return f"[Source: {path.relative_to('src').as_posix()}]({where}){{ .source }}"

"""The reference: docs/reference.md lists all public names in tables, and each table becomes a page."""

import inspect
import pkgutil
import re
from pathlib import Path

from .places import DOCS, PAGES, REPOSITORY, ROOT

MODULE = re.compile(r"## (selftune(?:\.\w+)?)")
GROUP = re.compile(r"### (.*)")
ROW = re.compile(r"\| `(\w+)` \| .* \|")


def make() -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Write the pages. Return the address of each public name, and the (module, title, file) of each page."""
    address, titles, module, title = {}, [], "", ""
    listed: dict[tuple[str, str], list[str]] = {}  # the names of each group
    made = []
    (PAGES / "api").mkdir(parents=True)
    for line in (DOCS / "reference.md").read_text(encoding="utf-8").splitlines():
        if found := MODULE.fullmatch(line):
            module = found[1]
        elif found := GROUP.fullmatch(line):
            title = found[1]
        elif found := ROW.fullmatch(line):
            short = title if module == "selftune" else f"{module.removeprefix('selftune.')}: {title}"
            page = f"api/{re.sub(r'[^a-z]+', '-', short.lower()).strip('-')}.md"
            names = listed.setdefault((module, title), [])
            if not names:
                titles.append((module, title, page))
            names.append(found[1])
            address[f"{module}.{found[1]}"] = place = f"{page}#{module}.{found[1]}"
            line = line.replace(f"`{found[1]}`", f"[`{found[1]}`]({place})", 1)
        made.append(line)
    for module, title, page in titles:
        (PAGES / page).write_text(page_of(title, module, listed[module, title]), encoding="utf-8")
    (PAGES / "reference.md").write_text("\n".join(made) + "\n", encoding="utf-8")
    return address, titles


def page_of(title: str, module: str, names: list[str]) -> str:
    blocks = [f"# {title}"]
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

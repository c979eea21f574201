"""Tutorials: scripts in Jupytext's percent format become pages with their outputs, and notebooks to download."""

# The tools of the site are not among those of the tests.
# pyright: reportMissingImports=false

import base64
import re
import tempfile
from pathlib import Path

import jupytext
import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from .pages import link_names, outside_links
from .places import DOCS, PAGES, REPOSITORY, ROOT

# The figures are SVG, which is sharp at any size. Their text stays text, and their ids do not change.
SETUP = """
import matplotlib_inline.backend_inline as _inline
_inline.set_matplotlib_formats("svg")
import matplotlib as _matplotlib
_matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "selftune", "figure.figsize": (7.0, 3.2)})
"""


def scripts() -> list[Path]:
    return sorted((DOCS / "tutorials").glob("*.py"))


def make(api: dict[str, str]) -> None:
    """Run every tutorial; write its page and its notebook."""
    folder = PAGES / "tutorials"
    folder.mkdir(parents=True)
    above = {name: f"../{place}" for name, place in api.items()}
    for script in scripts():
        notebook = execute(script)
        (folder / f"{script.stem}.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
        text = page(notebook, script.stem)
        (folder / f"{script.stem}.md").write_text(
            link_names(outside_links(text, script.parent), above), encoding="utf-8"
        )
    text = (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")
    (folder / "index.md").write_text(outside_links(text, DOCS / "tutorials"), encoding="utf-8")


def execute(script: Path) -> nbformat.NotebookNode:
    """Run the script as a notebook, unless its last outputs are newer than the script and the library."""
    kept = PAGES.parent / "notebooks" / f"{script.stem}.ipynb"
    changed = max(path.stat().st_mtime for path in (script, *(ROOT / "src").rglob("*.py")))
    if kept.exists() and kept.stat().st_mtime > changed:
        return nbformat.read(kept, as_version=4)
    notebook = jupytext.read(script)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    where = {"metadata": {"path": str(script.parent)}}
    # Sockets are files beside the connection file, which only this user can read. Their path is absolute, because the
    # kernel runs in the folder of the script and this program does not.
    with tempfile.TemporaryDirectory() as folder:
        kernel = AsyncKernelManager(
            kernel_name="python3", transport="ipc", connection_file=str(Path(folder) / "kernel.json")
        )
        NotebookClient(notebook, kernel, timeout=600, startup_timeout=300, resources=where).execute()
    del notebook.cells[0]
    kept.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, kept)
    return notebook


def page(notebook: nbformat.NotebookNode, name: str) -> str:
    """The notebook as Markdown. Figures are files beside the page."""
    title, _, rest = notebook.cells[0].source.partition("\n")
    links = (
        f"[The script]({REPOSITORY}/docs/tutorials/{name}.py) · [the notebook]({name}.ipynb). "
        "The outputs on this page were made when the site was built."
    )
    parts = [title, links, rest]
    heading = title
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            heading = [heading, *re.findall(r"^#+ .*$", cell.source, re.MULTILINE)][-1]
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        parts.append(fenced(printed) if printed else "")
        about = f"Figure: {heading.strip('# ')}"
        parts += [shown(output, name, len(parts), about) for output in cell.outputs if output.output_type != "stream"]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: nbformat.NotebookNode, name: str, number: int, about: str) -> str:
    data = output.get("data", {})
    if "image/svg+xml" in data or "image/png" in data:
        kind = "svg" if "image/svg+xml" in data else "png"
        path = PAGES / "tutorials" / f"{name}-{number}.{kind}"
        if kind == "svg":
            path.write_text(data["image/svg+xml"], encoding="utf-8")
        else:
            path.write_bytes(base64.b64decode(data["image/png"]))
        return f"![{about}]({path.name}){{ .plot }}"
    return fenced(data["text/plain"]) if "text/plain" in data else ""


def fenced(text: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text.rstrip())
    return f"``` {{ .text .output }}\n{plain}\n```"

"""Pages from Jinja2 templates, which escape every value. Templates lie in `templates` and beside the experiments."""

import base64
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.io
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..control import result_codes
from ..foundation import numbers
from ..storage.manifest import Manifest
from . import plotly_figures

# The browser blocks every request that would leave the page.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render(template: str, **data: Any) -> str:
    """The page of a template, named by its path in this package, such as "experiments/paper/page.html"."""
    return environment().get_template(template).render(data)


@cache
def environment() -> jinja2.Environment:
    """The settings of all templates. A name that the data does not have is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__.partition(".")[0], ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"POLICY": POLICY, "plotly_script": lambda: Markup(get_plotlyjs())}
    made.filters |= {
        "number": number,
        "interval": interval,
        "band_texts": band_texts,
        "flat": flat,
        "plot_json": plot_json,
        "one_line": one_line,
        "sentence": sentence,
    }
    return made


def about(manifest: Manifest, command: str, chosen: Iterable[str] = ()) -> dict[str, Any]:
    """The data of the section about a run. `command` repeats the run; `chosen`: the settings to mark."""
    words = {str(code): text for code, text in result_codes.WORDS.items()}
    return {
        "command": command,
        "git": manifest.git,
        "settings": manifest.settings,
        "chosen": set(chosen),
        "provenance": {
            "Versions": manifest.versions,
            "Platform": manifest.platform,
            "How the runs ended": {words.get(code, code): count for code, count in manifest.results.items()},
            "Checksums (SHA-256)": manifest.checksums,
        },
    }


def image(file: Path) -> dict[str, Any] | None:
    """A PNG file for a page: its address and its width on the page. None if there is no file."""
    if not file.is_file():
        return None
    content = file.read_bytes()
    width = int.from_bytes(content[16:20], "big") // 2  # the PNG header's width; two image pixels per page pixel
    return {"address": f"data:image/png;base64,{base64.b64encode(content).decode()}", "width": width}


def flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """The values of a nested mapping as text, each with its names joined by dots."""
    if isinstance(values, dict):
        return [
            pair for name, value in values.items() for pair in flat(value, f"{prefix}.{name}" if prefix else str(name))
        ]
    return [(prefix or "value", values if isinstance(values, str) else json.dumps(values, ensure_ascii=False))]


def plot_json(figure: Any) -> Markup:
    """The figure as JSON, escaped so that it cannot end its script element."""
    made = json.loads(plotly.io.to_json(figure, validate=False) or "{}") | {"config": plotly_figures.CONFIG}
    return Markup(json.dumps(made, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


def one_line(text: str) -> str:
    """The text with single spaces in place of line breaks and indentation."""
    return type(text)(" ".join(text.split()))


def sentence(text: str) -> str:
    """The text with a capital first letter. `str.capitalize` would also turn Δ into δ."""
    return text[:1].upper() + text[1:]


def interval(made: Any) -> Markup:
    """Mean and interval (an `Interval`) on one line."""
    mean, *ends = band_texts(made)
    return Markup(f"{mean} [{ends[0]}, {ends[1]}]") if ends else mean


def band_texts(made: Any, form: str | None = None) -> list[Markup]:
    """The texts of the mean and of the ends of a `Band` or `Interval`; without ends if there is only one seed."""
    ends = [made.low, made.high]
    if any(end is None or np.isnan(end) for end in ends):
        return [number(made.mean, form)]
    values = [float(value) for value in (made.mean, *ends)]
    return _together(*values) if form is None else [number(value, form) for value in values]


def number(value: Any, form: str | None = None) -> Markup:
    """A number for readers: four significant digits, grouped thousands, powers of ten for very large or small ones."""
    if value is None or np.isnan(float(value)):
        return Markup('<span class="none">–</span>')
    value = float(value)
    if form is None or not np.isfinite(value) or (value != 0 and not 1e-3 <= abs(value) < 1e9):
        return _together(value)[0]
    return Markup(format(value, ",.0f" if abs(value) >= 1000 else form).replace("-", "−"))


def _together(*values: float) -> list[Markup]:
    texts = (re.sub(r"e([+-]\d+)$", _power, text) for text in numbers.together(*values))
    return [Markup(text.replace("inf", "∞").replace("-", "−")) for text in texts]


def _power(found: re.Match[str]) -> str:
    return f" × 10<sup>{int(found[1])}</sup>"

"""The parts of a page: tables, plots, and the frame around them. Text is escaped here or by the caller."""

import json
import re
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import Any

import numpy as np
import plotly.io
from plotly.offline import get_plotlyjs

from ..foundation import numbers
from . import plotly_figures
from .panels import Panel

# The browser blocks every request that would leave the page.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def mapping(values: Any, marked: Iterable[str] = ()) -> str:
    """A nested mapping as a table of two columns, with names joined by dots."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td><code>{escape(_plain(value))}</code>'
        f"{_BADGE if name.split('.')[0] in marked else ''}</td></tr>"
        for name, value in _flat(values)
    )
    return scroll(f'<table class="plain"><tbody>{rows}</tbody></table>', "values")


_BADGE = '<span class="badge">chosen here</span>'


def _flat(values: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(values, dict):
        return [(prefix or "value", values)]
    return [
        pair for name, value in values.items() for pair in _flat(value, f"{prefix}.{name}" if prefix else str(name))
    ]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def panels(shown: list[Panel]) -> str:
    """The elements of the plots, each with its data; `report.js` draws the plots when all elements have a size."""
    made = []
    for panel in shown:
        plots = "".join(
            f"<div>{f'<p class=over>{escape(plot.title)}</p>' if plot.title else ''}"
            f'<div class="plot" id="{plot.name}" role="img" aria-label="{escape(plot.description)}"></div>'
            f'<script type="application/json" data-plot="{plot.name}">{_json(plot.figure)}</script></div>'
            for plot in panel.plots
        )
        layout = "pair" if len(panel.plots) > 1 else "wide"
        # Captions are written in this package and contain <sub>; a title may be the name of a user's variable.
        made.append(
            f'<section class="panel"><h3>{escape(panel.title)}</h3><figure>'
            f'<figcaption class="caption">{panel.caption}</figcaption><div class="{layout}">{plots}</div>'
            "</figure></section>"
        )
    return "".join(made)


def _json(figure: Any) -> str:
    """The figure as JSON, escaped so that it cannot end its script element."""
    made = json.loads(plotly.io.to_json(figure, validate=False) or "{}") | {"config": plotly_figures.CONFIG}
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def cards(cards: list[tuple[str, str]]) -> str:
    made = "".join(f"<li><strong>{number}</strong><span>{text}</span></li>" for number, text in cards)
    return f'<ul class="cards" aria-label="headline numbers">{made}</ul>'


def cell(values: Any, form: str | None = None) -> str:
    """A table cell with the mean and, below it, the interval."""
    mean, low, high = (float(value) for value in values)
    if np.isnan(low):
        return f"<td>{number(mean, form)}</td>"
    shown = _together(mean, low, high) if form is None else [number(value, form) for value in (mean, low, high)]
    return f"<td>{shown[0]}<small>[{shown[1]}, {shown[2]}]</small></td>"


def interval(made: Any) -> str:
    """Mean and interval (an `Interval`) on one line."""
    if made.low is None or made.high is None:
        return number(made.mean)
    return "{} [{}, {}]".format(*_together(made.mean, made.low, made.high))


def checks(found: list[Any], note: str) -> str:
    """A table of checks, with a note above it."""
    words = {True: ("holds", "good"), False: ("fails", "bad"), None: ("not judged", "none")}
    rows = []
    for check in found:
        word, kind = words[check.holds]
        ends = (np.nan if end is None else end for end in (check.measured.low, check.measured.high))
        rows.append(
            f'<tr><th scope="row">{escape(check.name)}</th><td>{escape(check.expected)}</td>'
            f'{cell((check.measured.mean, *ends), ".4f")}<td class="left {kind}">{word}</td></tr>'
        )
    head = '<th scope="col" class="left">check</th><th scope="col">expected</th><th scope="col">measured</th>'
    head += '<th scope="col" class="left">verdict</th>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<p class="caption">{note}</p>' + scroll(table, "checks")


def number(value: Any, form: str | None = None) -> str:
    """A number for readers: four significant digits, grouped thousands, powers of ten for very large or small ones."""
    if value is None or np.isnan(float(value)):
        return '<span class="none">–</span>'
    value = float(value)
    if form is None or not np.isfinite(value) or (value != 0 and not 1e-3 <= abs(value) < 1e9):
        return _together(value)[0]
    return format(value, ",.0f" if abs(value) >= 1000 else form).replace("-", "−")


def _together(*values: float) -> list[str]:
    texts = (re.sub(r"e([+-]\d+)$", _power, text) for text in numbers.together(*values))
    return [text.replace("inf", "∞").replace("-", "−") for text in texts]


def _power(found: re.Match[str]) -> str:
    return f" × 10<sup>{int(found[1])}</sup>"


def scroll(table: str, label: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'


def details(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def page(title: str, eyebrow: str, head: str, sections: list[tuple[str, str, str]]) -> str:
    links = "".join(f'<a href="#{name}">{text}</a>' for name, text, _ in sections)
    body = "".join(f'<section><h2 id="{name}">{text}</h2>{inside}</section>' for name, text, inside in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)} · selftune</title>
<link rel="icon" href="data:,">
<style>{_asset("report.css")}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<a class="skip" href="#{sections[0][0]}">To the content</a>
<header>
<p class="eyebrow">{escape(eyebrow)}</p>
<h1>{escape(title)}</h1>
{head}
<nav aria-label="sections">{links}</nav>
<noscript><p>The plots need JavaScript. The same figures are in the folder <code>figures</code>.</p></noscript>
</header>
<main>
{body}
</main>
<footer><p>Written by selftune. This page contains all its data and loads nothing from the network.</p></footer>
<script>{_asset("report.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (resources.files(__package__ or "") / name).read_text(encoding="utf-8")

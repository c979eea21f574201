"""The page about a sweep, for `report.write`."""

from html import escape
from typing import Any

import numpy as np
import xarray as xr

from ...reporting import html_parts
from ...reporting.statistics import Interval
from ...storage.manifest import Manifest
from ...sweeps.point_table import Points, in_words, points, show
from ...sweeps.summary import Best, Comparison, Failed, best, compare_settings, failures, percent, standings
from . import panels

MOST = 50
COMMAND = "selftune sweep CONFIG.toml"


def render(manifest: Manifest, dataset: xr.Dataset, about: str, name: str) -> str:
    found = points(dataset)
    won = best(dataset) if found.ok.any() else None
    lost = failures(found)
    sections = []
    if won is not None:
        sections.append(("results", "The best settings", _standings(found, won)))
        if text := "".join(_comparison(compare_settings(dataset, name)) for name in _compared(found)):
            sections.append(("compare", "Comparison", text))
    if shown := panels.make_panels(dataset):
        sections.append(("figures", "Figures", html_parts.panels(shown)))
    if lost:
        sections.append(("failed", "Failed runs", _failed(lost, found)))
    sections.append(("about", "About this sweep", about))
    head = "".join(f'<p class="lead{kind}">{text}</p>' for text, kind in _answer(won, lost, found))
    design = str(dataset.attrs.get("design", "grid"))
    return html_parts.page(
        name, "selftune · a sweep", head + html_parts.cards(_headlines(won, found, design)), sections
    )


def _compared(found: Points) -> list[str]:
    """The settings with text values, such as tuners or estimators."""
    return [name for name in found.varying if not found.is_numeric(name) and len(found.levels(name)[0]) <= MOST]


def _answer(won: Best | None, lost: list[Failed], found: Points) -> list[tuple[str, str]]:
    if won is None:
        first = lost[0]
        text = f"Every one of {len(found):,} settings has a failed run ({int(found.failed.sum()):,} of "
        text += f"{found.failed.size:,} runs), so there is no best setting. First failure: "
        text += f"{escape(in_words(first.setting))}: "
        return [(text + f"{escape(first.reason)}.", " bad")]
    text = f"<b>{escape(in_words(won.setting))}</b> has the lowest {escape(won.judged)}, "
    text += f"{html_parts.interval(won.cost)} over {won.seeds} seed{'s' if won.seeds != 1 else ''}."
    if won.fair is not None:
        text += f" The expected cost of this choice on a new seed is {html_parts.interval(won.fair)}: the cost on each "
        text += "seed of the setting that is best on all other seeds."
    sentences = [(text, "")]
    sure = "; ".join([won.sure(), *won.beyond()])
    sentences.append((f"{escape(sure[:1].upper() + sure[1:])}.", ""))
    if lost:
        sentences.append((f"{escape(won.lost())}.", " bad"))
    return sentences


def _headlines(won: Best | None, found: Points, design: str) -> list[tuple[str, str]]:
    cards = []
    if won is not None:
        cards.append((html_parts.number(won.cost.mean), f"{escape(won.judged)}, best setting"))
        if won.chance is not None and len(found) > 1:
            cards.append((percent(won.chance), "of bootstrap resamples of the seeds in which this setting is the best"))
        cards.append((f"{len(won.rivals):,}", f"other settings that {won.undecided()}"))
    cards.append((f"{int(found.failed.sum()):,}", f"of {found.failed.size:,} runs failed"))
    size = f"settings, by {_article(design)}, each with {found.seeds.size:,} seeds"
    return [*cards, (f"{len(found):,}", escape(size))]


def _article(design: str) -> str:
    return {"grid": "a full grid", "random": "a random design", "latin hypercube": "a Latin hypercube"}.get(
        design, design
    )


def _standings(found: Points, won: Best) -> str:
    shown = standings(found, MOST)
    head = "".join(f'<th scope="col" class="left">{escape(name)}</th>' for name in found.names)
    head += f'<th scope="col">{escape(won.judged)}</th><th scope="col">difference to the best</th>'
    head += '<th scope="col">ratio to the best</th>'
    rows = []
    for i, one in enumerate(shown):
        near = i == 0 or one.near
        settings = _settings(one.setting)
        more = "<td>–</td><td>–</td>" if i == 0 else _cell(one.difference) + _cell(one.ratio)
        rows.append(f"<tr{' class=ours' if near else ''}>{settings}{_cell(one.cost)}{more}</tr>")
    good = int(found.ok.sum())
    count = f"The best {len(shown)} of {good:,}. " if good > len(shown) else ""
    return (
        f'<p class="caption">{count}Settings without failed runs, with 95 % bootstrap intervals over seeds. '
        f"Differences "
        "and ratios are paired by seed: a seed draws the same noise at every setting. Their intervals hold for all "
        f"settings simultaneously. Coloured: the best setting, and the settings that {won.undecided()}.</p>"
        + _table(head, rows, "settings")
    )


def _comparison(made: Comparison) -> str:
    head = "".join(f'<th scope="col" class="left">{text}</th>' for text in (escape(made.over), "other settings"))
    head += f'<th scope="col">{escape(made.judged)}</th><th scope="col">difference to {escape(show(made.to))}</th>'
    head += '<th scope="col">failed</th>'
    rows = []
    for side in made.sides:
        rest = "–" if side.setting is None else escape(in_words(side.setting)) if side.setting else ""
        cells = f'<th scope="row">{escape(show(side.value))}</th><td class="left">{rest}</td>'
        bad = " class=bad" if side.failed else ""
        rows.append(
            f"<tr>{cells}{_cell(side.cost)}{_cell(side.difference)}<td{bad}>{side.failed:,}/{side.runs:,}</td></tr>"
        )
    return (
        f"<h3>{escape(made.over)}</h3>"
        '<p class="caption">Each value is shown with its best other settings. They are chosen for each seed by all '
        "other "
        "seeds, so that a value has no advantage if more settings were tried. Differences are paired by seed; an "
        "interval above zero means a higher cost.</p>" + _table(head, rows, made.over)
    )


def _failed(lost: list[Failed], found: Points) -> str:
    head = "".join(f'<th scope="col" class="left">{escape(name)}</th>' for name in found.names)
    head += '<th scope="col">failed runs</th><th scope="col" class="left">reason of the first failure</th>'
    rows = [
        f'<tr>{_settings(one.setting)}<td class="bad">{one.failed:,}/{one.runs:,}</td>'
        f'<td class="left">{escape(one.reason)}</td></tr>'
        for one in lost[:MOST]
    ]
    more = f'<p class="caption">The first {MOST} of {len(lost):,} settings.</p>' if len(lost) > MOST else ""
    return more + _table(head, rows, "failed runs")


def _settings(setting: dict[str, Any]) -> str:
    return "".join(f'<td class="left">{escape(show(value))}</td>' for value in setting.values())


def _cell(made: Interval | None) -> str:
    if made is None:
        return "<td>–</td>"
    return html_parts.cell([made.mean, *(np.nan if end is None else end for end in (made.low, made.high))])


def _table(head: str, rows: list[str], label: str) -> str:
    return html_parts.scroll(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>", label)

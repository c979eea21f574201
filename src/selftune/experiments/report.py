"""The page about a run, `report.html`. The page contains all its data and needs no network."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..control import result_codes
from ..reporting import datasets, html_parts, statistics
from ..storage import files
from ..storage.manifest import Manifest, StoreError
from ..storage.store import open_run, read_manifest
from .paper import certificate_file, quantities
from .paper import panels as paper_panels
from .paper.quantities import NOISE, OURS, RESCALED
from .paper.run import Settings, given
from .paper.summary import summarize

VERDICTS = {"holds": "good", "vacuous": "warn", "fails": "bad", "not promised": "none", "not checked": "none"}
COLUMNS = {
    "total_cost": "total cost",
    "to_fixed": "relative to fixed gain",
    "to_exact": "relative to exact model",
    "to_static": "relative to best static gain",
    "to_static_later": "the same, after the first period",
}


def write(folder: Path) -> Path:
    """Write `report.html` from a complete run and from its `certificate.json` and `findings.json`, if they exist.

    A reader sees either the old page or the new page, never a part of one. The page depends only on the run. For other
    runs than the paper's simulation, the robots' comparison and a sweep, the page shows every recorded variable over
    time. Raises `StoreError` if the folder has no run, or if the run is incomplete or damaged.
    """
    folder = Path(folder)
    dataset, manifest = opened(folder)
    path = folder / "report.html"
    if manifest.kind == "sweep":
        from .sweep import page as sweep_page

        about = _about(manifest, sweep_page.COMMAND)
        files.write(path, sweep_page.render(manifest, dataset, about, folder.resolve().name).encode())
        return path
    if manifest.kind == "robots":
        from .robots import page as robots_page

        about = _about(manifest, robots_page.command(manifest.settings))
        files.write(path, robots_page.render(manifest, dataset, folder / "figures", about).encode())
        return path
    kept, failed = datasets.usable(dataset)
    if quantities.is_paper(dataset):
        try:
            quantities.check(dataset)
        except ValueError as error:
            raise StoreError(f"{folder}: cannot be reported on: {error}") from None
        page = _paper(manifest, kept, failed, certificate_file.read(folder), _experiments(folder))
    else:
        page = _generic(manifest, kept, failed, folder.resolve().name)
    files.write(path, page.encode())
    return path


def opened(folder: Path) -> tuple[xr.Dataset, Manifest]:
    """The dataset and manifest of a complete run, verified, or of a complete sweep, by settings."""
    manifest = read_manifest(folder)
    if manifest.kind != "sweep" or manifest.state != "complete":
        return open_run(folder)
    from ..sweeps.sweeper import Sweep

    sweep = Sweep(folder)
    return sweep.to_dataset(), sweep.manifest


def _experiments(folder: Path) -> list[tuple[str, str, str]]:
    """A section for each experiment of the theory whose findings are in the folder."""
    from .rates import page, run

    return [(name, escape(one.title), page.section(one, folder / "figures")) for name, one in run.read(folder).items()]


def _paper(
    manifest: Manifest,
    dataset: xr.Dataset,
    failed: list[int],
    theory: dict[str, Any] | None,
    experiments: list[tuple[str, str, str]],
) -> str:
    standings = quantities.standings(dataset)
    panels = paper_panels.make_panels(dataset, quantities.start(dataset))
    sections = [
        ("results", "Results", _results(standings)),
        ("checks", "Checks", _checks(dataset, manifest.settings)),
        ("figures", "Figures", html_parts.panels(panels)),
    ]
    if theory is not None and theory["certificates"]:
        parts = "".join(_theory(certificate, noise) for noise, certificate in theory["certificates"].items())
        sections.append(("theory", "Theory, checked on a run", _which_run(theory.get("settings", {})) + parts))
    sections += experiments
    sections.append(("about", "About this run", _about(manifest, _command(manifest.settings))))
    lead = "".join(f'<p class="lead">{sentence}</p>' for sentence in _answer(dataset, standings))
    head = lead + _left_out(failed) + html_parts.cards(_headlines(dataset, standings, failed))
    eyebrow = "selftune · Online Policy Optimization in Unknown Nonlinear Systems, simulation appendix"
    return html_parts.page("M-GAPS against a fixed gain", eyebrow, head, sections)


def _generic(manifest: Manifest, dataset: xr.Dataset, failed: list[int], name: str) -> str:
    seeds = dataset.sizes.get("seed", 1)
    sections = []
    if costs := _costs(dataset):
        sections.append(("results", "Results", costs))
    if panels := paper_panels.traces(dataset):
        sections.append(("figures", "Figures", html_parts.panels(panels)))
    sections.append(("about", "About this run", _about(manifest, "selftune run CONFIG.toml")))
    length = f", {datasets.steps(dataset):,} steps" if "time" in dataset.sizes else ""
    head = f'<p class="lead">{seeds} seed{"s" if seeds != 1 else ""}{length}.</p>' + _left_out(failed)
    return html_parts.page(name, "selftune · a run", head, sections)


def _answer(dataset: xr.Dataset, standings: dict[str, dict[str, xr.Dataset]]) -> list[str]:
    """A few sentences on the result for each form of the noise, with the numbers of the data."""
    sentences = []
    for noise, shown in standings.items():
        best = html_parts.number(dataset.static_gain.sel(noise=noise).mean(), ".3g")
        text = f"With the {escape(NOISE.get(noise, noise))}, {_compared(shown[OURS])} in hindsight"
        text += f" (θ = {best}, mean over seeds)."
        if RESCALED in shown:
            text += f" With the learning rate η/Δ<sup>2</sup> instead of η, {_compared(shown[RESCALED])}."
        sentences.append(text)
    return sentences


def _compared(ours: xr.Dataset) -> str:
    ratios = [
        (f"{gain:.3g}", f"<b>{html_parts.number(ours.to_fixed.sel(gain=gain, band='mean'))}</b>")
        for gain in ours.gain.values
    ]
    (first, ratio), others = ratios[0], "; ".join(f"from {gain}: {ratio}" for gain, ratio in ratios[1:])
    text = f"M-GAPS started from θ<sub>0</sub> = {first} costs {ratio} times as much as this gain held fixed"
    name, when = (
        ("to_static_later", "after the first period") if "to_static_later" in ours else ("to_static", "in total")
    )
    means = ours[name].sel(band="mean").values
    low, high = html_parts.number(means.min()), html_parts.number(means.max())
    span = f"{low} times" if low == high else f"between {low} and {high} times"
    return f"{text}{f' ({others})' if others else ''}; {when} it costs {span} as much as the best static gain"


def _headlines(
    dataset: xr.Dataset, standings: dict[str, dict[str, xr.Dataset]], failed: list[int]
) -> list[tuple[str, str]]:
    form, shown = next(iter(standings.items()))
    ours, noise = shown[OURS], escape(NOISE.get(form, form))

    def card(name: str, pick: int, text: str) -> tuple[str, str]:
        mean, low, high = (float(value) for value in ours[name].isel(gain=pick))
        within = "" if np.isnan(low) else f"; 95 % interval {html_parts.number(low)} to {html_parts.number(high)}"
        return html_parts.number(mean), f"{text} from θ<sub>0</sub> = {float(ours.gain[pick]):.3g}, {noise}{within}"

    def most(name: str) -> int:
        return int(np.argmax(ours[name].sel(band="mean").values))

    runs = int(np.prod([dataset.sizes[name] for name in (*quantities.CELL, "seed")]))
    size = (
        f"runs of {datasets.steps(dataset):,} steps: {dataset.sizes['noise']} forms of noise, {dataset.sizes['gain']} "
        f"starts, {dataset.sizes['algorithm']} algorithms, {dataset.sizes['seed']} seeds; "
        f"{len(failed) or 'no'} seed{'s' if len(failed) != 1 else ''} left out"
    )
    cards = [
        card("to_fixed", int(np.argmin(ours.to_fixed.sel(band="mean").values)), "of the fixed gain's cost, at best,")
    ]
    if "to_static_later" in ours:
        text = "of the best static gain's cost after the first period, at worst,"
        cards.append(card("to_static_later", most("to_static_later"), text))
    cards.append(card("to_exact", most("to_exact"), "of the cost with the exact model, at worst,"))
    return [*cards, (f"{runs:,}", size)]


def _results(standings: dict[str, dict[str, xr.Dataset]]) -> str:
    first = next(iter(next(iter(standings.values())).values()))
    columns = [name for name in COLUMNS if name in first]
    head = "".join(f'<th scope="col" class="left">{title}</th>' for title in ("θ<sub>0</sub>", "algorithm"))
    head += "".join(f'<th scope="col">{COLUMNS[name]}</th>' for name in columns)
    made = [
        '<p class="caption">Means over seeds, with 95 % bootstrap intervals. Ratios are paired: both runs have the '
        "same seed, and so the same a* and w. A ratio below 1 means a lower cost.</p>"
    ]
    for noise, shown in standings.items():
        groups = [
            _group(f"{gain:.3g}", {name: costs.sel(gain=gain) for name, costs in shown.items()}, columns)
            for gain in first.gain.values
        ]
        title = escape(NOISE.get(noise, noise))
        inside = f"<caption>{title}</caption><thead><tr>{head}</tr></thead>{''.join(groups)}"
        made.append(html_parts.scroll(f"<table class=groups>{inside}</table>", title))
    return "".join(made)


def _group(start: str, rows: dict[str, xr.Dataset], columns: list[str]) -> str:
    """The table rows of one start, with the start in the first column."""
    made = []
    for i, (name, row) in enumerate(rows.items()):
        first = f'<th scope="rowgroup" rowspan="{len(rows)}">{start}</th>' if i == 0 else ""
        dot = f'<span class="dot" style="background:{quantities.color(name, i)}"></span>'
        values = "".join(
            html_parts.cell(row[column].values, ".4f" if column != "total_cost" else None) for column in columns
        )
        kind = ' class="ours"' if name == OURS else ""
        made.append(f'<tr{kind}>{first}<th scope="row">{dot}{escape(name)}</th>{values}</tr>')
    return f'<tbody class="group">{"".join(made)}</tbody>'


def _checks(dataset: xr.Dataset, settings: dict) -> str:
    """The checks that `selftune reproduce` makes."""
    return html_parts.checks(
        summarize(dataset, settings).checks,
        "Each name states the form of the noise, the start, and the two costs whose ratio is checked. A * marks the "
        "best static gain in hindsight, from the second period on. The whole interval must satisfy the condition. For "
        "“±”, only the mean must.",
    )


def _costs(dataset: xr.Dataset) -> str:
    """A table of the variables of any run that have one number for each seed, such as the total cost."""
    rows = []
    for name, values in dataset.data_vars.items():
        if values.dims == ("seed",) and values.dtype.kind == "f" and values.size:
            made = statistics.band(values.values)
            extremes = f"<td>{html_parts.number(values.min())}</td><td>{html_parts.number(values.max())}</td>"
            rows.append(f'<tr><th scope="row">{escape(str(name))}</th>{html_parts.cell(np.array(made))}{extremes}</tr>')
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{title}</th>' for title in ("mean over seeds", "minimum", "maximum"))
    top = f'<thead><tr><th scope="col" class="left">quantity</th>{head}</tr></thead>'
    return html_parts.scroll(f"<table>{top}<tbody>{''.join(rows)}</tbody></table>", "totals")


def _which_run(settings: dict) -> str:
    """A sentence on the run that the certificates examine, or "" if the file does not say."""
    if not settings.keys() >= {"steps", "seed", "gain", "theta"}:
        return ""
    low, high = settings["theta"]
    return (
        f'<p class="caption">A separate run of M-GAPS: {settings["steps"]:,} steps of seed {settings["seed"]}, '
        f"from θ<sub>0</sub> = {settings['gain']:.3g}, with Θ = [{low:.3g}, {high:.3g}] for the theory.</p>"
    )


def _theory(certificate: dict, noise: str) -> str:
    rows = quantities.inequalities(certificate)
    assumed = [row for row in certificate["rows"] if row not in rows]
    verdicts = [quantities.verdict(row) for row in rows]
    counted = ", ".join(f"{verdicts.count(word)} {word}" for word in VERDICTS if word in verdicts)
    folded = {"Hypotheses": _rows_of_theory(assumed, "hypothesis")} if assumed else {}
    for name in ("constants", "contraction", "derived"):
        if certificate.get(name):
            folded[_sentence(name)] = html_parts.mapping(certificate[name])
    return (
        f"<h3>{escape(_sentence(quantities.NOISE.get(noise, noise)))}</h3>"
        f'<p class="caption">{len(rows)} inequalities: {counted}. Vacuous: the bound is larger than a bound that holds '
        "without the theorem. Not promised: the inequality does not hold, and neither does a hypothesis that it needs. "
        "A constant is given if it follows from the problem, and sampled if a search estimated it.</p>"
        + html_parts.panels([paper_panels.bounds(certificate, noise)])
        + _rows_of_theory(rows, "inequality")
        + "".join(html_parts.details(title, text) for title, text in folded.items())
    )


def _sentence(text: str) -> str:
    """The text with a capital first letter. `str.capitalize` would also turn Δ into δ."""
    return text[:1].upper() + text[1:]


def _rows_of_theory(rows: list[dict], kind: str) -> str:
    made = []
    for row in rows:
        verdict = quantities.verdict(row)
        failed = "; ".join(escape(str(one)) for one in row.get("failed_hypotheses") or [])
        notes = f'<small class="bad">hypotheses that fail: {failed}</small>' if failed else ""
        used = "; ".join(f"{how} {_names(row[how])}" for how in ("given", "sampled") if row.get(how))
        name, reference, statement = (escape(str(row.get(key, ""))) for key in ("name", "reference", "statement"))
        numbers = "".join(
            f"<td>{html_parts.number(row.get(key), ',.4g')}</td>" for key in ("measured", "bound", "slack")
        )
        made.append(
            f'<tr><th scope="row">{name}<small>{reference}</small></th>'
            f'<td class="left {VERDICTS[verdict]}">{verdict}</td>{numbers}'
            f'<td class="left">{statement}{notes}</td><td class="left">{used}</td></tr>'
        )
    titles = (kind, "verdict", "measured", "bound", "slack", "statement", "constants")
    left = {kind, "statement", "verdict", "constants"}
    head = "".join(f'<th scope="col"{" class=left" if title in left else ""}>{title}</th>' for title in titles)
    return html_parts.scroll(
        f"<table class=theory><thead><tr>{head}</tr></thead><tbody>{''.join(made)}</tbody></table>", "certificate"
    )


def _names(constants: list[str]) -> str:
    """The names of up to four constants; for more, only their number."""
    return ", ".join(map(escape, constants)) if len(constants) <= 4 else f"all {len(constants)}"


def _about(manifest: Manifest, command: str) -> str:
    marked = set(manifest.settings) - set(given(manifest.settings)) if manifest.kind == "paper" else set()
    note = '<p class="caption">Marked settings are not given in the paper; they were chosen here.</p>' if marked else ""
    commit = ""
    if manifest.git is not None:
        state = "with uncommitted changes" if manifest.git.dirty else "without uncommitted changes"
        commit = f"<p>Computed by selftune at commit <code>{escape(manifest.git.commit)}</code>, {state}.</p>"
    names = {str(code): words for code, words in result_codes.WORDS.items()}
    folded = {
        "Versions": manifest.versions,
        "Platform": manifest.platform,
        "How the runs ended": {names.get(code, code): count for code, count in manifest.results.items()},
        "Checksums (SHA-256)": manifest.checksums,
    }
    return (
        f"<h3>Run it again</h3><pre><code>{escape(command)}</code></pre>{commit}"
        f"<h3>Settings</h3>{note}{html_parts.mapping(manifest.settings, marked)}<h3>Provenance</h3>"
        + "".join(html_parts.details(title, html_parts.mapping(value)) for title, value in folded.items() if value)
    )


def _command(settings: dict) -> str:
    """The command that repeats the run, as far as the command line has options for the settings."""
    default = Settings()
    other = {name: settings.get(name) for name in ("seeds", "periods", "period")}
    options = [f"--{name} {value}" for name, value in other.items() if value not in (None, getattr(default, name))]
    return " ".join(["selftune reproduce", *options])


def _left_out(failed: list[int]) -> str:
    if not failed:
        return ""
    seeds = ", ".join(map(str, failed))
    return f'<p class="bad">These seeds are left out because one of their runs failed: {seeds}.</p>'

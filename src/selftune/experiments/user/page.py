"""The page about a run of a user's configuration: its numbers, and every recorded field over time."""

from ...reporting import datasets, pages, plotly_figures, statistics
from ..registry import Experiment, Progress, StoredRun
from . import figures, summary


def render(run: StoredRun) -> str:
    dataset, failed = datasets.usable(run.dataset)
    return pages.render(
        "experiments/user/page.html",
        title=run.folder.resolve().name,
        eyebrow="selftune · a run",
        seeds=dataset.sizes.get("seed", 1),
        steps=datasets.steps(dataset) if "time" in dataset.sizes else None,
        failed=failed,
        totals=summary.rows(dataset),
        panels=plotly_figures.panels(figures.on_page(run.dataset)),
        about=pages.about(run.manifest, "selftune run CONFIG.toml"),
    )


def _draw(run: StoredRun, progress: Progress) -> None:
    figures.draw_all(run.dataset, run.folder / "figures", progress=progress)


EXPERIMENT = Experiment(
    summarize=lambda run: statistics.interval(run.dataset.total_cost),
    render=render,
    draw=_draw,
    figures=lambda run: figures.files(run.dataset, run.folder / "figures"),
    plant_settings=("system", "scenario"),
)

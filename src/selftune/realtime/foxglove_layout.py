"""A layout for Foxglove, with the SDK's own classes: the panels that show an agent's telemetry."""

import math

import foxglove.layouts as fl
import numpy as np

from .telemetry_writer import TOPIC


def text(fields: np.dtype) -> str:
    """Return the layout for an agent whose messages have these fields, as JSON."""
    learned = [name for name in fields.names or () if name.partition(".")[0] in ("theta", "a_hat")]
    panels = [
        _plot("θ", [one for name in learned if name.startswith("theta") for one in _paths(fields, name)]),
        _plot("cost", ["cost", *(["tuner_contraction"] if "tuner_contraction" in (fields.names or ()) else [])]),
        _plot("x and u", [*_paths(fields, "x"), *_paths(fields, "u")]),
        _plot("â", [one for name in learned if name.startswith("a_hat") for one in _paths(fields, name)]),
    ]
    guard = fl.StateTransitionsPanel(
        title="guard",
        config=fl.StateTransitionsConfig(paths=[fl.StateTransitionsSeries(value=f"{TOPIC}.guard", label="guard")]),
    )
    left, right = panels[:2], [*panels[2:], guard]
    columns = [
        fl.SplitContainer(direction="column", items=[fl.SplitItem(content=panel) for panel in part])
        for part in (left, right)
    ]
    items = [fl.SplitItem(content=column) for column in columns]
    return fl.Layout(content=fl.SplitContainer(direction="row", items=items)).to_json()


def _paths(fields: np.dtype, name: str) -> list[str]:
    """Return the path of each number of a field."""
    shape = fields[name].shape
    return [f"{name}[{i}]" for i in range(math.prod(shape))] if shape else [name]


def _plot(title: str, paths: list[str]) -> fl.PlotPanel:
    series = [fl.PlotSeries(value=f"{TOPIC}.{path}", label=path, enabled=True) for path in paths]
    return fl.PlotPanel(title=title, config=fl.PlotConfig(paths=series, show_legend=True, is_synced=True))

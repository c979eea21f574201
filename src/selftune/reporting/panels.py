"""The parts of a page that hold plots."""

from typing import NamedTuple

import plotly.graph_objects as go


class Plot(NamedTuple):
    """One plot: the id of its element, its title as HTML, a description for screen readers, and the figure."""

    name: str
    title: str
    description: str
    figure: go.Figure


class Panel(NamedTuple):
    """A group of plots, with a heading and a caption."""

    title: str
    caption: str
    plots: list[Plot]

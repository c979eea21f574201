"""The parts of a page that hold plots."""

from typing import NamedTuple

import plotly.graph_objects as go


class Plot(NamedTuple):
    """One plot: the id of its element, the words over it, what it shows in words, and the figure."""

    name: str
    title: str
    description: str
    figure: go.Figure


class Panel(NamedTuple):
    """What belongs together: a heading, a caption and the plots under it."""

    title: str
    caption: str
    plots: list[Plot]

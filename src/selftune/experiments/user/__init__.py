"""A user's own configuration (`selftune run`)."""

from .run import check as check
from .run import compute as compute
from .run import draw as draw
from .run import sizes_of as sizes_of
from .run import widths_of as widths_of

KIND = "run"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

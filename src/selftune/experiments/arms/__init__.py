"""Arms from their files that tune themselves (`selftune bench arms`)."""

from .run import Settings as Settings
from .run import compute as compute
from .run import layout as layout

KIND = "arms"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

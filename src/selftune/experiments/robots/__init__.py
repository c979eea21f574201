"""Robots that tune their gains (`selftune bench robots`)."""

from .run import Settings as Settings
from .run import compute as compute
from .run import layout as layout
from .run import load as load

KIND = "robots"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

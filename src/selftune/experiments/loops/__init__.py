"""Control loops that tune their PID from gains that are ten times wrong (`selftune bench loops`)."""

from .run import Settings as Settings
from .run import compute as compute
from .run import layout as layout

KIND = "loops"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

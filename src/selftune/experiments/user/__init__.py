"""A user's own configuration (`selftune run`)."""

from .run import check as check
from .run import compute as compute

KIND = "run"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

"""Robots that tune their gains (`selftune bench robots`)."""

from .run import CONDITIONS as CONDITIONS
from .run import EVERYWHERE as EVERYWHERE
from .run import HALVES as HALVES
from .run import LAPS as LAPS
from .run import POINTS as POINTS
from .run import ROBOTS as ROBOTS
from .run import Settings as Settings
from .run import cases as cases
from .run import compute as compute
from .run import describe as describe
from .run import layout as layout
from .run import load as load
from .run import one_task as one_task
from .run import steps as steps

KIND = "robots"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

"""The paper's simulation (`selftune reproduce`)."""

from .run import DELTA as DELTA
from .run import NOISES as NOISES
from .run import Settings as Settings
from .run import compute as compute
from .run import controllers as controllers
from .run import example_system as example_system
from .run import given as given
from .run import scenario as scenario

KIND = "paper"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

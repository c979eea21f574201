"""The figures and the page of a sweep, and its configuration file."""

KIND = "sweep"
"""The kind of this experiment's runs, as their manifest states it (`experiments/registry.py`)."""

"""Checks of arguments, errors, extras, text for numbers, and worker threads: what every other package may use."""

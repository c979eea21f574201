"""The figures and the page of a sweep, and its configuration file."""

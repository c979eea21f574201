"""A controller as files for other programs: a folder of C."""

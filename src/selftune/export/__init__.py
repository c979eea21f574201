"""The export of a controller as a folder of C files for other programs."""

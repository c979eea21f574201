"""The experiments that the commands run: one package for each, and the report."""

"""Tools for every other package: checks of arguments, errors, extras, text for numbers, and worker threads."""

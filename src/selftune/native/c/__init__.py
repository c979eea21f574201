"""From a graph to C, and from C to a loaded library."""

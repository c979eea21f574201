"""Generation of C from a graph, and compilation of C to a loaded library."""

"""From a jaxpr to a graph of scalar operations."""

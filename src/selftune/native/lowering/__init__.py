"""Lowering of a jaxpr to a graph of scalar operations."""

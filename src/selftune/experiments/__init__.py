"""Experiments that anyone can rerun: `paper`, the simulation appendix."""

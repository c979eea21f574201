"""The paper's algorithms once more, in plain NumPy: the program that makes `tests/golden`, and an oracle for selftune.

Nothing here imports JAX or selftune. `python -m tests.independent` makes the golden files.
"""

"""Tests and docstring examples alike run in float64, with strict promotion."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def standard_promotion():
    """For what a user does without strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield

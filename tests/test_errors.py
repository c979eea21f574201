"""Errors carry their parts as attributes, so that no caller reads a message."""

import pickle

import jax.numpy as jnp
import pytest

import selftune as st
from selftune.foundation.errors import OverwriteError


def test_the_parts_of_an_argument_error_are_attributes():
    with pytest.raises(st.ArgumentError) as caught:
        st.Ball(radius=-1.0)
    error = caught.value
    assert (error.argument, error.expected, error.got) == ("radius", "a finite number > 0", "-1.0")
    assert str(error) == "radius: expected a finite number > 0, got -1.0"
    assert isinstance(error, ValueError)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: st.System(1, 2, 3, 4), "dynamics"),
        (lambda: st.Scenario(jnp.zeros(1), jnp.zeros((3, 1)), jnp.zeros((3, 2))), "w"),
        (lambda: st.Guard(window=-1), "window"),
        (lambda: st.simulate(None, None), "controller"),
        (lambda: st.Range(0.0, 1.0, log=True), "low"),
    ],
)
def test_every_part_of_the_library_raises_it(call, argument):
    with pytest.raises(st.ArgumentError) as caught:
        call()
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (st.ArgumentError("dt", "a number > 0", "-1"), "dt: expected a number > 0, got -1"),
        (
            st.ArgumentError("x", "an array", "a list", "write jnp.stack"),
            "x: expected an array, got a list; write jnp.stack",
        ),
        (OverwriteError("out: not empty", "--overwrite"), "out: not empty; choose another folder, or --overwrite"),
    ],
)
def test_an_error_survives_the_way_back_from_a_worker_process(error, text):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error) == text

"""What the native engine cannot write is refused, with the operation and the user's own line."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from selftune.native._values import LoweringError
from selftune.native.lower import lower

MATRIX = np.eye(2)
VECTOR = np.arange(3.0)
REFUSED = {
    "eigh": (lambda x: jnp.linalg.eigh(x)[0], MATRIX),
    "svd": (lambda x: jnp.linalg.svd(x)[1], MATRIX),
    "eig": (lambda x: jnp.abs(jnp.linalg.eigvals(x)), MATRIX),
    "lgamma": (lambda x: lax.lgamma(x), VECTOR),
    "digamma": (lambda x: lax.digamma(x), VECTOR),
    "while": (lambda x: lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: 2 * y, x), VECTOR),
    "complex": (lambda x: jnp.abs(x + 1j * x), VECTOR),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), VECTOR),
    "int8": (lambda x: x.astype(jnp.int8), VECTOR),
    "float16": (lambda x: x.astype(jnp.float16), VECTOR),
    "householder": (lambda x: jnp.linalg.qr(x, mode="raw"), MATRIX),
    "places": (lambda x: jnp.zeros((70, 70))[x[0].astype(int), x[1].astype(int)], VECTOR),
    "numbers": (lambda x: lax.fori_loop(0, 9, lambda i, y: y @ y + x, x), np.eye(40)),
    "callback": (lambda x: jax.pure_callback(lambda x: x, x, x), VECTOR),
}
SAYS = {
    "while": "while loop",
    "complex": "complex128",
    "fft": "'fft'|complex128",
    "eig": "'eig'",
    "householder": "'geqrf'",
    "places": "4096 places",
    "numbers": "'dot_general': a program of more than 200,000 numbers",
    "callback": "'pure_callback'",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("as_a_user")
def test_refused_by_name_and_line(name):
    function, x = REFUSED[name]
    with pytest.raises(LoweringError, match=SAYS.get(name, name)) as caught:
        lower(lambda x: {"y": function(x)}, {"x": x})
    assert str(caught.value).startswith("the native engine has no way to write ")
    assert f"{Path(__file__).name}:" in str(caught.value)


def test_inputs_of_other_kinds_are_refused():
    with pytest.raises(LoweringError, match="int8"):
        lower(lambda x: {"y": x}, {"x": np.zeros(2, np.int8)})


def test_a_captured_tracer_is_refused():
    def outer(y):
        lower(lambda x: {"z": x + y}, {"x": np.zeros(())})
        return y

    with pytest.raises(ValueError, match="captured an array"):
        jax.jit(outer)(1.0)

"""What the native engine cannot write is refused, with the operation and the user's own line."""

import pickle
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

from selftune.native.lowering.from_jaxpr import CapturedError, lower
from selftune.native.lowering.values import LoweringError

pytestmark = pytest.mark.versions

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


def like_the_first(name):
    """An operation that JAX does not have, or not in this form: of any operands and parameters."""
    made = Primitive(name)
    made.def_abstract_eval(lambda x, *_, **__: x)
    return made.bind


UNKNOWN = {
    "made_up": (lambda x: like_the_first("made_up")(x), "the operation 'made_up'"),
    "made_up_of_known_numbers": (
        lambda x: x + like_the_first("made_up_of_known_numbers")(jnp.ones(3)),
        "the operation 'made_up_of_known_numbers' in the form of JAX .*NotImplementedError",
    ),
    "cumsum": (lambda x: like_the_first("cumsum")(x, reverse=False), "'cumsum' of JAX .* has no parameter 'axis'"),
    "mul": (lambda x: like_the_first("mul")(x, x, out_dtype="f4"), "'mul' with out_dtype='f4', of JAX"),
    "sub": (lambda x: like_the_first("sub")(x, np.ones(3), turned=True), "'sub' with turned=True, of JAX"),
    "clamp": (lambda x: like_the_first("clamp")(x), r"'clamp' in the form of JAX .* \(TypeError: "),
    "scan": (lambda x: like_the_first("scan")(x, length=3), "'scan' of JAX .* has no parameter 'num_consts'"),
    "jit": (lambda x: like_the_first("jit")(x, name="f"), "'jit' of JAX .* has no parameter 'jaxpr'"),
    "call_hi_primitive": (lambda x: like_the_first("call_hi_primitive")(x), "has no parameter 'function'"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_another_jax_is_refused_by_name_and_line(name):
    function, message = UNKNOWN[name]
    with pytest.raises(LoweringError, match=message) as caught:
        lower(lambda x: {"y": function(x)}, {"x": VECTOR})
    error = caught.value
    assert str(error).startswith("the native engine does not support the operation")
    assert str(error).endswith(f", at {error.line}")
    assert error.primitive == name
    line = function.__code__.co_firstlineno
    assert re.search(rf"{Path(__file__).name}:({line}|{line + 1})\b", error.line)


def test_an_error_travels_to_another_process():
    with pytest.raises(LoweringError) as caught:
        lower(lambda x: {"y": jnp.linalg.eigh(x)[0]}, {"x": MATRIX})
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.primitive, again.line) == (str(caught.value), "eigh", caught.value.line)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("as_a_user")
def test_refused_by_name_and_line(name):
    function, x = REFUSED[name]
    with pytest.raises(LoweringError, match=SAYS.get(name, name)) as caught:
        lower(lambda x: {"y": function(x)}, {"x": x})
    assert str(caught.value).startswith("the native engine does not support ")
    assert f"{Path(__file__).name}:" in str(caught.value)


def test_inputs_of_other_kinds_are_refused():
    with pytest.raises(LoweringError, match="int8"):
        lower(lambda x: {"y": x}, {"x": np.zeros(2, np.int8)})


def test_a_captured_tracer_is_refused():
    def outer(y):
        lower(lambda x: {"z": x + y}, {"x": np.zeros(())})
        return y

    with pytest.raises(CapturedError, match="captured an array"):
        jax.jit(outer)(1.0)

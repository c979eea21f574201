"""Is the residual affine in a? A traced program answers the question for all x, a and t of the same shapes.

Each value of the program has a degree in a: 0 if it does not depend on a, 1 if it is affine in a, and 2 if it may be
anything. The rules below give the degree of an operation's result from the degrees of its operands. An operation
without a rule, and a function with a derivative of its own (`jax.custom_jvp`, `jax.custom_vjp`), give degree 2 as soon
as an operand depends on a. So the answer is never a wrong yes; it may be a wrong no.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .system import AbstractSystem

FIXED, AFFINE, OTHER = 0, 1, 2


def is_affine(system: AbstractSystem, x: Any, a: PyTree, t: Any) -> bool:
    r"""Return whether the program of $f_t(x, a)$ shows that it is affine in a, for all x, a and t of these shapes.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> from selftune.problem.affine import is_affine
        >>> def system(residual):
        ...     return st.System(lambda x, u, f, t: x, residual, lambda x, theta, f, t: f, lambda x, u, theta, t: x[0])
        >>> x, a = jnp.ones(1), jnp.ones(2)
        >>> is_affine(system(lambda x, a, t: a[0] * jnp.sin(x) + a[1]), x, a, 0)
        True
        >>> is_affine(system(lambda x, a, t: a[0] * jnp.sin(a[1] * x)), x, a, 0)
        False
    """
    program = jax.make_jaxpr(lambda x, a, t: system.residual(x, a, t))(x, a, t)
    sizes = [len(jax.tree.leaves(part)) for part in (x, a, t)]
    given = [FIXED] * sizes[0] + [AFFINE] * sizes[1] + [FIXED] * sizes[2]
    return all(degree <= AFFINE for degree in _program(program, given))


def _program(program: Any, given: Sequence[int]) -> list[int]:
    """Return the degrees of a program's results, from the degrees of its inputs."""
    jaxpr = getattr(program, "jaxpr", program)
    degrees: dict[Any, int] = dict(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> int:  # constants and literals do not depend on a
        return FIXED if hasattr(atom, "val") else degrees.get(atom, FIXED)

    for equation in jaxpr.eqns:
        results = _operation(equation, [read(atom) for atom in equation.invars])
        degrees.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _operation(equation: Any, given: list[int]) -> list[int]:
    outputs = equation.outvars
    if not any(given):
        return [FIXED] * len(outputs)
    name = equation.primitive.name
    if name == "scatter":
        return [_scatter_with(equation.params.get("update_jaxpr"), given)]
    if name in _RULES and all(_is_real(output) for output in outputs):
        return [_RULES[name](given)] * len(outputs)
    if name in _CALLS:
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        return _program(inner, given) if inner is not None else [OTHER] * len(outputs)
    if name == "cond" and given[0] == FIXED:  # the branch does not depend on a
        branches = [_program(branch, given[1:]) for branch in equation.params["branches"]]
        return [max(each) for each in zip(*branches, strict=True)]
    if name == "scan":
        return _scan(equation.params, given)
    if name == "custom_linear_solve":
        return _linear_solve(equation.params, given)
    return [OTHER] * len(outputs)


def _scan(params: Any, given: list[int]) -> list[int]:
    if "ft_in" in params:  # since JAX 0.11
        consts, carry, _ = params["ft_in"].unpack()
        first, last = len(consts), len(consts) + len(carry)
    else:
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    given = list(given)
    while True:  # a degree only grows, so this ends
        results = _program(params["jaxpr"], given)
        carried = list(map(max, given[first:last], results[: last - first]))
        if carried == given[first:last]:
            return results
        given[first:last] = carried


def _linear_solve(params: Any, given: list[int]) -> list[int]:
    """`jnp.linalg.solve`. JAX runs the program `solve`, on its own constants and on the right-hand sides."""
    counts = params["const_lengths"]
    first = counts.matvec + counts.vecmat
    constants = given[first : first + counts.solve]
    if any(given[: sum(counts)]):  # the matrix depends on a
        return [OTHER] * (len(given) - sum(counts))
    return _program(params["jaxprs"].solve, [*constants, *given[sum(counts) :]])


def _scatter_with(update: Any, given: list[int]) -> int:
    """`x.at[i].set(v)`, which has no `update` program, and `x.at[i].apply(function)`, which has one."""
    return _scatter(given) if update is None else OTHER


def _is_real(output: Any) -> bool:
    return jnp.issubdtype(output.aval.dtype, jnp.floating)


def _largest(given: list[int]) -> int:
    return max(given)


def _product(given: list[int]) -> int:
    return min(sum(given), OTHER)


def _first(given: list[int]) -> int:
    """The operation is linear in its first operand: the numerator, or the array that is read."""
    return OTHER if any(given[1:]) else given[0]


def _all_but_first(given: list[int]) -> int:
    """The operation is linear in all operands but the first: the predicate of a selection, the matrix of a solve, or
    the variable of a polynomial."""
    return OTHER if given[0] else max(given[1:])


def _update(given: list[int]) -> int:
    """Indices come third: the operation writes the second operand into the first."""
    return OTHER if any(given[2:]) else max(given[:2])


def _scatter(given: list[int]) -> int:
    """Indices come second: the operation adds the third operand to the first."""
    return OTHER if given[1] else max(given)


_LINEAR = (
    *("add", "add_any", "sub", "neg", "reduce_sum", "cumsum", "convert_element_type", "copy", "copy_p"),
    *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "concatenate", "slice", "split", "rev"),
    *("pad", "stack", "unstack", "tile", "optimization_barrier"),
)
_RULES: dict[str, Callable[[list[int]], int]] = {
    **dict.fromkeys(_LINEAR, _largest),
    **dict.fromkeys(("mul", "dot_general", "conv_general_dilated"), _product),
    **dict.fromkeys(("div", "gather", "dynamic_slice"), _first),
    # A polynomial (since JAX 0.12) is linear in its coefficients, which come after its variable.
    **dict.fromkeys(("select_n", "triangular_solve", "polynomial"), _all_but_first),
    **dict.fromkeys(("scatter-add", "scatter_add"), _scatter),
    "dynamic_update_slice": _update,
}
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")

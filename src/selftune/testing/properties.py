"""The properties that the rest of the library relies on. Each function raises `AssertionError` if a part lacks one."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .cases import BATCH, STEPS, AbstractCase, ConstraintCase

_PURE = (
    "Compute the result from the arguments alone: use jnp instead of np and math, jnp.where or jax.lax.cond instead of "
    "`if`, and keep what the next step needs in the returned state, not in self or in a global variable."
)
_ARRAY_FIELD = "Store the number as an array: `step: jax.Array = eqx.field(converter=jnp.asarray)`."
_SAME_STATE = (
    "Return values with the structure, shapes and dtypes of the first ones, and make all of them arrays with a dtype: "
    "`jnp.zeros((), x.dtype)` instead of `0.0`."
)
_CAST = "Cast settings and constants: `self.step.astype(x.dtype)`, `jnp.zeros(3, x.dtype)`."


def check_jit_equals_eager(case: AbstractCase) -> None:
    """Check that a step compiled by `jax.jit` gives the numbers of the same step without jit, except for rounding."""
    name = "jit equals eager"
    eager = _attempt(case, name, "a step without jit failed", "Correct this error first.", lambda: case.eager)
    values = case.begin(case.part, case.row(0, 0))
    for t, expected in enumerate(eager):
        row = case.row(0, t)
        got = _attempt(case, name, "a step under jit failed", _PURE, case.compiled, case.part, values, row)
        _check_close(case, name, got, expected, f"at step {t}, under jit and without jit", _PURE)
        values = got[0]


def check_vmap_equals_loop(case: AbstractCase) -> None:
    """Check that `jax.vmap` gives the numbers of a loop. The items of the batch differ in inputs and in settings."""
    name = "vmap equals loop"
    parts = [_with_numbers(case.part, lambda leaf, item=item: _scaled(leaf, item)) for item in range(BATCH)]
    rest = eqx.filter(case.part, _is_inexact, inverse=True)
    numbers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(eqx.filter(part, _is_inexact) for part in parts))
    begin = jax.vmap(lambda numbers, row: case.begin(eqx.combine(numbers, rest), row))
    step = eqx.filter_jit(jax.vmap(lambda numbers, values, row: case.step(eqx.combine(numbers, rest), values, row)))

    def rows(t: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[:, t], case.rows)

    advice = f"Make no choice of shapes or branches from the values of arrays. {_PURE}"
    batch = _attempt(case, name, "init under vmap failed", advice, begin, numbers, rows(0))
    alone = [case.begin(parts[item], case.row(item, 0)) for item in range(BATCH)]
    for t in range(STEPS):
        batch, infos = _attempt(case, name, "a step under vmap failed", advice, step, numbers, batch, rows(t))
        for item in range(BATCH):
            expected = case.compiled(parts[item], alone[item], case.row(item, t))
            where = f"at step {t} for item {item} of a batch, under vmap and in a loop"
            _check_close(case, name, _item((batch, infos), item), expected, where, advice)
            alone[item] = expected[0]


def check_one_trace(case: AbstractCase) -> None:
    """Check that JAX compiles a step once: neither later steps nor other numbers in the settings compile it again."""
    name = "one trace only"
    for path in _static_numbers(case.part):
        fail(case, name, f"the number {path} is static, so each value of it is compiled anew", _ARRAY_FIELD)
    first = case.begin(case.part, case.row(0, 0))
    _check_same_kind(case, name, first, first, "before the first step")
    values = first
    for t in range(STEPS):
        values, _ = case.compiled(case.part, values, case.row(0, t))
        _check_same_kind(case, name, first, values, f"after step {t}")
    restarted = case.restart(case.part, values, case.row(0, 0))
    _check_same_kind(case, name, first, restarted, "after reset")
    case.compiled(case.part, restarted, case.row(1, 0))
    if case.compiled.traces > 1:
        fail(case, name, f"JAX traced the step {case.compiled.traces} times for values of the same kind", _PURE)
    other = jax.tree.map(lambda leaf: _scaled(leaf, 1) if isinstance(leaf, float | complex) else leaf, case.part)
    other = _with_numbers(other, lambda leaf: _scaled(leaf, 1))
    case.compiled(other, first, case.row(0, 0))
    if case.compiled.traces > 1:
        fixed = [path for path, leaf in _leaves(case.part) if isinstance(leaf, float | complex)]
        fail(case, name, f"another value of {', '.join(fixed) or 'a setting'} compiles the step again", _ARRAY_FIELD)


def check_dtype_kept(case: AbstractCase) -> None:
    """Check that float32 inputs give float32 values, and float64 inputs float64, whatever the dtype of the settings."""
    name = "dtype kept"
    with jax.enable_x64(True):
        for dtype, other in ((jnp.float32, jnp.float64), (jnp.float64, jnp.float32)):
            # Settings of the other dtype show where a cast is missing.
            part = _with_numbers(case.part, lambda leaf, other=other: leaf.astype(other))
            row = _with_numbers(case.row(0, 0), lambda leaf, dtype=dtype: leaf.astype(dtype))
            problem = f"a step in {dtype.__name__}, with settings in {other.__name__}, failed"

            for leaves in _attempt(case, name, problem, _CAST, _shapes, case, part, row):
                for path, leaf in _leaves(_named(leaves)):
                    if _is_inexact(leaf) and leaf.dtype != dtype:
                        fail(case, name, f"{path} is {leaf.dtype.name} where the inputs are {dtype.__name__}", _CAST)


def check_round_trip(case: AbstractCase) -> None:
    """Check that the part and its state are pytrees: after flatten and unflatten, the next step gives the same bits."""
    name = "pytree round trip"
    before = case.eager[-2][0]
    for path, leaf in _leaves(before):
        if not eqx.is_array(leaf):
            advice = "Make the state an eqx.Module, a tuple or a dictionary of arrays."
            fail(case, name, f"{path} is not a jax.Array but {type(leaf).__name__}", advice)
    advice = (
        "Declare everything that `init` and `update` use as a field of an eqx.Module, and set nothing else on self."
    )
    part, values = jax.tree.map(lambda leaf: leaf, (case.part, before))
    row = case.row(0, STEPS - 1)
    got = _attempt(case, name, "a step after the round trip failed", advice, case.step, part, values, row)
    _check_close(case, name, got, case.eager[-1], "after the round trip and without it", advice, tolerance=0.0)


def check_stays_in_set(case: AbstractCase) -> None:
    """Check that each θ or â is in the set `constraint`; for a constraint, that `project` is the projection on it."""
    name = "stays in the set"
    if isinstance(case, ConstraintCase):
        _check_projection(case, name)
        return
    values = case.begin(case.part, case.row(0, 0))
    for t in range(4 * STEPS):  # episodes end in between
        values, _ = case.compiled(case.part, values, case.row(t % BATCH, t % STEPS))
        for outside in case.outside(values):
            advice = "Return `self.constraint.project(...)` of the new value."
            fail(case, name, f"{outside} is outside of the set `constraint` after step {t}", advice)


def _check_projection(case: ConstraintCase, name: str) -> None:
    points = [case.row(item, t)["v"] for item in range(BATCH) for t in range(STEPS)]
    project = eqx.filter_jit(lambda part, v: part.project(v))
    projected = [project(case.part, v) for v in points]
    for v, point in zip(points, projected, strict=True):
        if not bool(case.part.contains(point)):
            fail(
                case, name, f"contains(project(v)) is False for v = {v}", "Allow `contains` the rounding of `project`."
            )
        again = project(case.part, point)
        advice = "A point of the set is its own projection."
        _check_close(case, name, {"project": again}, {"project": point}, f"for a point of the set, {point},", advice)
        for other in projected:
            step, way = _flat(v) - _flat(point), _flat(other) - _flat(point)
            slack = np.sqrt(np.finfo(step.dtype).eps) * (1 + np.linalg.norm(_flat(v))) ** 2
            if step @ way > slack:
                fail(
                    case,
                    name,
                    f"project({v}) is {point}, but points of the set in the direction of {other} are nearer",
                    "Return the nearest point of a closed convex set, in the Euclidean norm over all leaves.",
                )
    if not np.any(
        np.isnan(_flat(project(case.part, jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), points[0]))))
    ):
        fail(case, name, "project(NaN) is a number", "Let NaN stay NaN, so that later checks find the failure.")


def fail(case: AbstractCase, name: str, problem: str, advice: str) -> NoReturn:
    """Raise the error of a property: the part, the property, the problem and what to do."""
    raise AssertionError(f"{type(case.part).__name__}: {name}: {problem}. {advice}")


def _shapes(case: AbstractCase, part: Any, row: PyTree) -> tuple[PyTree, PyTree]:
    """Return the values before and after a step, as shapes and dtypes; nothing is computed."""
    values = eqx.filter_eval_shape(case.begin, part, row)
    return values, eqx.filter_eval_shape(case.step, part, values, row)


def _attempt(
    case: AbstractCase, name: str, problem: str, advice: str, function: Callable[..., Any], *arguments: Any
) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        message = str(error).strip().split("\n", 1)[0]
        raise AssertionError(
            f"{type(case.part).__name__}: {name}: {problem}: {type(error).__name__}: {message.rstrip('.')}. {advice}"
        ) from error


def _leaves(tree: PyTree) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="."), leaf


def _check_close(
    case: AbstractCase,
    name: str,
    got: PyTree,
    expected: PyTree,
    where: str,
    advice: str,
    tolerance: float | None = None,
) -> None:
    """Compare two trees leaf by leaf.

    The default tolerance is the square root of the machine epsilon, relative to the leaf. A difference at the rounding
    level of the largest number of the tree is accepted as well: a zero may come out as 1e-17.
    """
    got, expected = (dict(_leaves(_named(tree))) for tree in (got, expected))
    if got.keys() != expected.keys():
        fail(
            case,
            name,
            f"{', '.join(sorted(got.keys() ^ expected.keys()))} is in only one of the two results {where}",
            advice,
        )
    numbers = [_plain(leaf) for leaf in expected.values() if np.issubdtype(_plain(leaf).dtype, np.inexact)]
    largest = max((np.max(np.abs(b), initial=0.0, where=np.isfinite(b)) for b in numbers), default=0.0)
    for path, leaf in got.items():
        a, b = (_plain(value) for value in (leaf, expected[path]))
        if a.shape != b.shape:
            fail(case, name, f"{path} has the shapes {a.shape} and {b.shape} {where}", advice)
        if not np.issubdtype(a.dtype, np.inexact):
            same = np.array_equal(a, b)
        else:
            eps = np.finfo(a.dtype).eps
            relative, rounding = (np.sqrt(eps), 16 * eps * largest) if tolerance is None else (tolerance, 0.0)
            scale = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
            same = np.allclose(a, b, rtol=relative, atol=relative * scale + rounding, equal_nan=True)
        if not same:
            fail(case, name, f"{path} differs {where}: {a} and {b}", advice)


def _named(tree: PyTree) -> PyTree:
    """Return the values and the report of a step as one dictionary, for short names of the leaves."""
    return {**tree[0], **tree[1]} if isinstance(tree, tuple) else tree


def _plain(leaf: Any) -> np.ndarray:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _check_same_kind(case: AbstractCase, name: str, first: PyTree, values: PyTree, when: str) -> None:
    before, after = (dict(_leaves(tree)) for tree in (first, values))
    if jax.tree.structure(first) != jax.tree.structure(values):
        changed = ", ".join(sorted(before.keys() ^ after.keys())) or "a part"
        fail(case, name, f"the values {when} have another structure than the first ones: {changed}", _SAME_STATE)
    for path, leaf in after.items():
        if not eqx.is_array(leaf):
            fail(case, name, f"{path} is not a jax.Array but {type(leaf).__name__} {when}", _SAME_STATE)
        kinds = [f"{kind.weak_type * 'weak '}{kind.str_short()}" for kind in map(jax.typeof, (before[path], leaf))]
        if kinds[0] != kinds[1]:
            fail(case, name, f"{path} is {kinds[1]} {when} and {kinds[0]} before the first step", _SAME_STATE)


def _static_numbers(part: Any, prefix: str = "") -> Iterator[str]:
    """Find the fields of modules that are static and hold a float."""
    if isinstance(part, eqx.Module):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name, None)
            if field.metadata.get("static", False):
                if isinstance(value, float | complex):
                    yield prefix + field.name
            else:
                yield from _static_numbers(value, f"{prefix}{field.name}.")


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _with_numbers(tree: PyTree, change: Callable[[Any], Any]) -> PyTree:
    """Return the tree with `change` of every array of floating-point numbers."""
    return jax.tree.map(lambda leaf: change(leaf) if _is_inexact(leaf) else leaf, tree)


def _scaled(leaf: Any, item: int) -> Any:
    """Return a setting that is a little smaller for each item of the batch."""
    return leaf * (1 - 0.001 * item)


def _item(tree: PyTree, item: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[item], tree)


def _flat(tree: PyTree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])

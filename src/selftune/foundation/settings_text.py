"""The `repr` of settings and results: one function for tuners, estimators, constraints, guards, systems, metrics, …"""

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from . import arguments

MOST = 16
"""An array with more numbers than this is shown by its dtype and shape."""
WIDTH = 100
"""A longer text has a line for each field."""


def show(self: Any, computed: Mapping[str, Any] | None = None, always: tuple[str, ...] = ()) -> str:
    """Return the class and the arguments of an `equinox.Module` as text; classes use this function as `__repr__`.

    - The arguments are those of the constructor. Their values are the attributes of the same name, or `computed`.
    - An argument that has its default value is left out, unless it is in `always`.
    - A number and a small array are shown as numbers, in the fewest digits that give the same number in its dtype.
    - A large array, and an array without known values (JAX traces it, or has deleted it), is shown by dtype and shape.
    - A function is shown by its name, and a transformation of optax by the function that made it.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> st.MGAPS(learning_rate=0.05, constraint=st.Box(0.0, [5.0, 50.0]))
        MGAPS(learning_rate=0.05, constraint=Box(low=0.0, high=[5.0, 50.0]))
        >>> st.Box(jnp.zeros(100, "float32"), 1.0)
        Box(low=float32[100], high=1.0)
    """
    fields = [
        f"{name}={value(found)}"
        for name, found, is_default in _arguments(self, computed or {})
        if name in always or not is_default
    ]
    return _join(f"{type(self).__name__}(", fields, ")")


def _arguments(self: Any, computed: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name and the value of each argument that is known, and whether the value is the default."""
    fields = {field.name: field for field in dataclasses.fields(self)}
    for name, parameter in inspect.signature(type(self)).parameters.items():
        field = fields.get(name)
        if name in computed:
            yield name, computed[name], _is_same(computed[name], parameter.default)
        elif field is not None and field.repr and hasattr(self, name):
            found = getattr(self, name)
            yield name, found, _is_default(field, found) or _is_same(found, parameter.default)


def value(item: Any) -> str:
    """Return the text of any value: of a number, an array, a function, a container or a module."""
    if isinstance(item, jax.Array | np.ndarray | np.generic):
        return _array(item)
    if isinstance(item, eqx.Module):
        return show(item) if type(item).__repr__ is eqx.Module.__repr__ else repr(item)
    if _is_optax(item):
        return f"{_maker(item.update)}(…)"
    if isinstance(item, tuple) and (names := getattr(item, "_fields", None)):
        return _join(f"{type(item).__name__}(", [f"{name}={value(getattr(item, name))}" for name in names], ")")
    if isinstance(item, dict):
        return _join("{", [f"{key!r}: {value(each)}" for key, each in item.items()], "}")
    if isinstance(item, list | tuple):
        open_, close = ("[", "]") if isinstance(item, list) else ("(", ",)" if len(item) == 1 else ")")
        return _join(open_, list(map(value, item)), close)
    if isinstance(item, functools.partial):
        options = [f"{name}={value(each)}" for name, each in item.keywords.items()]
        return _join("partial(", [value(item.func), *map(value, item.args), *options], ")")
    if callable(item) and not isinstance(item, type) and hasattr(item, "__name__"):
        return item.__name__
    return repr(item)


def _array(array: Any) -> str:
    is_hidden = not arguments.is_known(array) or arguments.is_key(array) or array.size > MOST
    if is_hidden or (isinstance(array, jax.Array) and array.is_deleted()):
        return arguments.describe(array)
    return _numbers(np.asarray(array))


def _numbers(array: np.ndarray) -> str:
    # `str` of a NumPy scalar has the digits of its dtype; `tolist` would show the digits of a float64.
    return f"[{', '.join(map(_numbers, array))}]" if array.ndim else str(array[()])


def _is_default(field: dataclasses.Field, found: Any) -> bool:
    """Whether the field has its default value, after the converter of the field."""
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        return False
    if found is default:
        return True
    convert = field.metadata.get("converter")
    default = default if convert is None else convert(default)
    return type(found) is type(default) and value(found) == value(default)


def _is_same(found: Any, default: Any) -> bool:
    """Whether a value is the default of the constructor: the same text, or an array full of the default number."""
    if default is inspect.Parameter.empty:
        return False
    if isinstance(default, int | float) and isinstance(found, jax.Array) and arguments.is_known(found):
        return (
            found.size > 0 and not found.is_deleted() and bool(np.all(np.asarray(found) == found.dtype.type(default)))
        )
    return value(found) == value(default)


def _is_optax(item: Any) -> bool:
    return isinstance(item, tuple) and getattr(item, "_fields", ()) == ("init", "update")


def _maker(function: Any) -> str:
    """The public function that made a closure, such as optax.chain."""
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    name = getattr(function, "__qualname__", type(function).__name__).partition(".<locals>")[0]
    return f"{package}.{name}" if package else name


def _join(begin: str, parts: list[str], end: str) -> str:
    line = begin + ", ".join(parts) + end
    if len(line) <= WIDTH and "\n" not in line:
        return line
    lines = ",\n".join(parts).replace("\n", "\n  ")
    return f"{begin}\n  {lines},\n{end}"

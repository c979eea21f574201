"""Differences between JAX's releases in the names of operations and parameters; only here lowering depends on them.

The rules are written for one form. `name_of` and `parameters_of` convert an equation of any release to this form:

| since | what JAX changed | the rules see |
|---|---|---|
| 0.10.0 | a scan has no `linear` and no `_split_transpose` any more | a scan without them |
| 0.10.1 | `stack` and `unstack` are operations of their own | both forms |
| 0.11.0 | a scan counts its constants and carries by `ft_in`, before by `num_consts` and `num_carry` | the two counts |
| 0.11.0 | a jaxpr holds its own constants, and `ClosedJaxpr` is another name of `Jaxpr` | `closed` of either |
| 0.11.2 | `log2` and `one_minus_square` (in the derivatives of tanh, asin, acos, atanh) | their own rules |
| 0.12.0 | `polynomial` | its own rule |
| 0.12.0 | `call_hi_primitive`: one operation for searchsorted, einsum, … that can expand itself | the expanded form |

An operation without a rule, a missing parameter that a rule needs, and a parameter that no rule knows raise
`LoweringError`, so that a later release cannot change numbers unnoticed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from .values import LoweringError

ALIASES = {
    "pjit": "jit",
    "closed_call": "call",
    "core_call": "call",
    "custom_vmap_call": "call",
    "remat2": "remat",
    "checkpoint": "remat",
    "copy_p": "copy",
    "scatter-add": "scatter_add",
    "scatter-sub": "scatter_sub",
    "scatter-mul": "scatter_mul",
    "scatter-min": "scatter_min",
    "scatter-max": "scatter_max",
}
"""Names that differ between releases, and the name that the rules use."""

_PLACES = {"sharding", "out_sharding", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "memory_space"}
_COMPILING = {"inline", "name", "unroll", "prevent_cse", "policy", "ctx_mesh", "donated_invars", "keep_unused"}
_EXACTNESS = {"accuracy", "precision", "use_magma", "compiler_options_kvs"}
_PROMISES = {"indices_are_sorted", "unique_indices", "is_stable"}  # every order here is stable
_DERIVATIVES = {"differentiated", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros"}
_BATCHING = {"rule", "in_tree", "out_tree"}
_IMPLIED = {"weak_type", "conjugate_a", "impl", "update_jaxpr", "update_consts", "branches_platforms"}
WITHOUT_EFFECT = _PLACES | _COMPILING | _EXACTNESS | _PROMISES | _DERIVATIVES | _BATCHING | _IMPLIED
"""Parameters that change no number in a small program of real numbers on one device, after differentiation."""

_CALLS = ("jit", "call", "remat", "custom_jvp_call", "custom_vjp_call")


class Parameters:
    """The parameters of one operation, by name; `finish` raises an error for those that the rule has not read."""

    def __init__(self, primitive: str, values: Mapping[str, Any]):
        self._primitive, self._values = primitive, values
        self._unread = {name for name, value in values.items() if value is not None} - WITHOUT_EFFECT

    def __getitem__(self, name: str) -> Any:
        self._unread.discard(name)
        if name not in self._values:
            raise LoweringError(
                f"the operation {self._primitive!r} of JAX {jax.__version__}, which has no parameter {name!r}"
            )
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._values else default

    def finish(self) -> None:
        if self._unread:
            unread = ", ".join(f"{name}={_short(self._values[name])}" for name in sorted(self._unread))
            raise LoweringError(f"the operation {self._primitive!r} with {unread}, of JAX {jax.__version__}")


def name_of(eqn: Any) -> str:
    name = str(eqn.primitive)
    return ALIASES.get(name, name)


def parameters_of(eqn: Any) -> Parameters:
    name = name_of(eqn)
    return Parameters(name, _FORMS[name](eqn.params) if name in _FORMS else eqn.params)


def closed(jaxpr: Any) -> ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def _call(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a call; `jaxpr` is the called function."""
    rest = {name: value for name, value in params.items() if name != "num_consts"}
    held = next((name for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call") if name in rest), None)
    return rest if held is None else {"jaxpr": closed(rest.pop(held)), **rest}


def _scan(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a scan; `num_consts` operands are constant, `num_carry` are carried between steps."""
    dropped = ("ft_in", "ft_out", "linear", "_split_transpose")  # the last two matter only for transposition
    rest = {name: value for name, value in params.items() if name not in dropped}
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        rest |= {"num_consts": len(consts), "num_carry": len(carry)}
    return rest


def _hi_primitive(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of an operation that expands itself; `function` computes it by simpler operations."""
    held: Any = params.get("_prim")
    if not hasattr(held, "in_tree") or not hasattr(held, "expand"):
        return dict(params)

    def function(*leaves: Any) -> Any:
        return held.expand(*jax.tree.unflatten(held.in_tree, leaves))

    return {"function": function}


_FORMS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    **dict.fromkeys(_CALLS, _call),
    "scan": _scan,
    "call_hi_primitive": _hi_primitive,
}


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."

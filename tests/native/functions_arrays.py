"""Small functions that move numbers about: shapes, indices, sorting."""

import jax
import jax.numpy as jnp
from jax import lax

from .cases import Case


def _set(mode, how="set"):
    """x.at[i].how(y), for a number i that is only known when it runs."""
    return lambda x, i, y: getattr(x.at[i], how)(y, mode=mode)


SHAPES = [
    Case("reshape", lambda x: (x.reshape(3, 2), x.ravel(), x.T, x[None], x[..., None]), "f2x3"),
    Case("concatenate", lambda x, y: (jnp.concatenate([x, y]), jnp.concatenate([x, y, x], axis=1)), "f2x2 f2x2"),
    Case(
        "stack", lambda x, y: (jnp.stack([x, y]), jnp.stack([x, y], 1), jnp.hstack([x, y]), jnp.vstack([x, y])), "f3 f3"
    ),
    Case("split", lambda x: (jnp.split(x, 2), jnp.split(x, [1, 3]), jnp.unstack(x)), "f4"),
    Case("block", lambda A, B: jnp.block([[A, B], [B, jnp.zeros_like(A)]]), "f2x2 f2x2"),
    Case("broadcast", lambda x, y: (jnp.broadcast_to(x, (2, 3)), x * y[:, None], x + 0 * x), "f3 f2"),
    Case("roll", lambda x: (jnp.roll(x, 1), jnp.roll(x, -2)), "f4"),
    Case("flip", lambda x: (jnp.flip(x), x[::-1], jnp.flip(x, 1), jnp.rot90(x)), "f2x3"),
    Case("pad", lambda x: (jnp.pad(x, 1), jnp.pad(x, (2, 0), mode="edge"), lax.pad(x, x[0], [(-1, 2, 1)])), "f3"),
    Case("tril", lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.tril(x, -1)), "f3x3"),
    Case("diag", lambda x, v: (jnp.diag(x), jnp.diag(v), jnp.trace(x), jnp.diagonal(x, 1)), "f3x3 f3"),
    Case("eye", lambda x: x + jnp.eye(3, dtype=x.dtype), "f3x3"),
    Case("swapaxes", lambda x: (jnp.moveaxis(x, 0, -1), jnp.swapaxes(x, 0, 1)), "f2x1x3"),
    Case("tile_repeat", lambda x: (jnp.tile(x, 2), jnp.repeat(x, 2)), "f2"),
    Case("meshgrid", lambda x, y: jnp.meshgrid(x, y), "f2 f3"),
    Case("linspace", lambda a, b: jnp.linspace(a, b, 4), "f f", nasty=False),
    Case("sort", lambda x: (jnp.sort(x), jnp.sort(x, descending=True)), "f4"),
    Case("sort_rows", lambda x: (jnp.sort(x, 0), jnp.sort(x, 1)), "f2x3"),
    Case("argsort", lambda x: (jnp.argsort(x), jnp.argsort(x, descending=True)), "f4", derive=False),
    Case("sort_by_keys", lambda x, y: lax.sort((x, y), num_keys=2), "f4 f4", derive=False),
    Case("sort_whole", lambda i: (jnp.sort(i), jnp.argsort(i)), "i4", derive=False),
    Case("top_k", lambda x: lax.top_k(x, 2), "f4", derive=False),
    Case("largest_two", lambda x: jnp.sort(x)[-2:], "f4"),
    Case("nonzero", lambda x: jnp.nonzero(x > 0, size=4, fill_value=-1)[0], "f4", derive=False),
    Case("searchsorted", lambda x: jnp.searchsorted(jnp.array([-1.0, 0.0, 0.5, 2.0], x.dtype), x), "f3", derive=False),
    Case("interp", lambda x, y: jnp.interp(x, jnp.array([-2.0, -0.5, 1.0, 1.7], x.dtype), y), "f2 f4", 64, nasty=False),
    Case("polyval", lambda c, x: jnp.polyval(c, x), "f4 f2", 64, nasty=False),
    Case("horner", lambda x: jnp.polyval(jnp.array([0.5, -1.0, 2.0], x.dtype), x), "f3"),
    Case("digitize", lambda x: jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0], x.dtype)), "f3", derive=False),
    Case("one_hot", lambda i: jax.nn.one_hot(i, 3), "i3", derive=False),
]

INDICES = [
    Case("static_index", lambda x: (x[0, 1], x[-1], x[:, 1:], x[0, ::2], x[jnp.array([1, 0, 1])]), "f2x3"),
    Case("bool_mask", lambda x: jnp.where(jnp.array([True, False, True]), x, 0), "f3"),
    Case("dynamic_index", lambda x, i: (x[i], x[i % 4], x[-1 - i % 4]), "f4 i"),
    Case("dynamic_row", lambda x, i: (x[i % 3], x[i]), "f3x2 i"),
    Case("two_dynamic_indices", lambda x, i, j: (x[i, j], x[i % 3, j % 2]), "f3x2 i i"),
    Case("indices_dynamic", lambda x, i: x[i], "f4 i3"),
    Case("index_clip", lambda x, i: (x.at[i].get(mode="clip"), jnp.take(x, i, mode="clip")), "f4 i3"),
    Case("index_fill", lambda x, i: (x.at[i].get(mode="fill"), x.at[i].get(mode="fill", fill_value=7)), "f4 i3"),
    Case("index_wrap", lambda x, i: jnp.take(x, i, mode="wrap"), "f4 i3"),
    Case("index_promised", lambda x, i: x.at[jnp.clip(i, 0, 3)].get(mode="promise_in_bounds"), "f4 i3"),
    Case("index_whole", lambda k, i: (k[i], k.at[i].get(mode="fill")), "i4 i2", derive=False),
    Case("index_unsigned", lambda k, i: (k[i], k.at[i].get(mode="fill")), "u4 u2", derive=False),
    Case("index_bool", lambda b, i: (b[i], b.at[i].get(mode="fill")), "b4 i2", derive=False),
    Case("take", lambda x, i: (jnp.take(x, i, axis=1), jnp.take(x, jnp.array([2, 0]), axis=1)), "f2x3 i2"),
    Case("take_along_axis", lambda x, i: jnp.take_along_axis(x, i, axis=1), "f2x3 i2x2"),
    Case("take_smallest", lambda x, y: jnp.take_along_axis(y, jnp.argsort(x), axis=0), "f4 f4"),
    Case("dynamic_slice", lambda x, i: (lax.dynamic_slice(x, (i,), (2,)), lax.dynamic_slice_in_dim(x, i, 3)), "f4 i"),
    Case("dynamic_slices", lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 1)), "f3x2 i i"),
    Case("dynamic_update_slice", lambda x, y, i: lax.dynamic_update_slice(x, y, (i,)), "f4 f2 i"),
    Case("dynamic_update_slices", lambda x, y, i, j: lax.dynamic_update_slice(x, y, (i, j)), "f3x2 f2x1 i i"),
    Case("dynamic_index_in_dim", lambda x, i: lax.dynamic_index_in_dim(x, i, 0, keepdims=False), "f3x2 i"),
    Case("ring_buffer", lambda x, y, t: (x.at[t % 4].set(y), x[(t - 1) % 4]), "f4 f i"),
    Case("shift_register", lambda x, y: jnp.roll(x, 1, axis=0).at[0].set(y), "f3x2 f2"),
    Case("set_static", lambda x, y: (x.at[1].set(y), x.at[-1].set(0), x.at[1:3].set(y), x.at[::2].add(y)), "f4 f"),
    Case("add_static", lambda x, y: (x.at[1].add(y), x.at[jnp.array([0, 0, 2])].add(y)), "f4 f"),
    Case("mul_max_static", lambda x, y: (x.at[1].mul(y), x.at[2].max(y), x.at[0].min(y)), "f4 f", nasty=False),
    Case("divide_static", lambda x, y: (x.at[1].divide(y), x.at[1].subtract(y)), "f4 f", nasty=False),
    Case("set_matrix", lambda x, y: (x.at[0].set(y), x.at[:, 1].set(y[:2]), x.at[1, 2].add(y[0])), "f2x3 f3"),
    Case("set_dynamic", _set(None), "f4 i f"),
    Case("set_drop", _set("drop"), "f4 i f"),
    Case("set_clip", _set("clip"), "f4 i f"),
    Case("set_promised", lambda x, i, y: x.at[jnp.clip(i, 0, 3)].set(y, mode="promise_in_bounds"), "f4 i f"),
    Case("add_dynamic", _set(None, "add"), "f4 i f"),
    Case("add_clip", _set("clip", "add"), "f4 i f"),
    # XLA's CPU scatter has its own order of NaN, and its derivative of a maximum divides by counts.
    Case("mul_dynamic", _set("drop", "mul"), "f4 i f", derive=False),
    Case("max_dynamic", _set("clip", "max"), "f4 i f", derive=False, nasty=False),
    Case("min_dynamic", _set(None, "min"), "f4 i f", derive=False, nasty=False),
    Case("set_row_dynamic", _set(None), "f3x2 i f2"),
    Case("add_many_dynamic", _set(None, "add"), "f4 i3 f3"),
    Case("set_two_dynamic", lambda x, i, j, y: x.at[i, j].set(y), "f3x2 i i f"),
]

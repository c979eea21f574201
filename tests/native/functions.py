"""Small functions of numbers, by kind: what the native engine must compute as JAX does."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from .cases import Case

PI = 3.141592653589793


def _stepped(x):
    return jnp.where(x > 0.5, jnp.floor(x), jnp.where(x < -0.5, jnp.ceil(x), x * x))


MATHS = [
    Case("sin", jnp.sin, "f3"),
    Case("cos", jnp.cos, "f3"),
    Case("tan", jnp.tan, "f3"),
    Case("asin", jnp.arcsin, "f3"),
    Case("acos", jnp.arccos, "f3"),
    Case("atan", jnp.arctan, "f3"),
    Case("sinh", jnp.sinh, "f3"),
    Case("cosh", jnp.cosh, "f3"),
    Case("tanh", jnp.tanh, "f3", derive=False),
    Case("tanh_small", lambda x: jnp.tanh(0.3 * x), "f3", 512),  # its derivative, 1 - tanh², cancels
    Case("asinh", jnp.arcsinh, "f3", below_largest=8),
    Case("acosh", jnp.arccosh, "f3", below_largest=8),
    Case("atanh", jnp.arctanh, "f3", 99),  # XLA's own is off by that
    Case("exp", jnp.exp, "f3"),
    Case("exp2", jnp.exp2, "f3"),
    Case("expm1", jnp.expm1, "f3"),
    Case("log", jnp.log, "f3"),
    Case("log2", jnp.log2, "f3"),
    Case("log10", jnp.log10, "f3"),
    Case("log1p", jnp.log1p, "f3", 64),
    Case("sqrt", jnp.sqrt, "f3"),
    Case("rsqrt", lax.rsqrt, "f3"),
    Case("cbrt", jnp.cbrt, "f3", 512),  # XLA may take a power of one third
    Case("square", jnp.square, "f3"),
    Case("reciprocal", jnp.reciprocal, "f3"),
    Case("integer_powers", lambda x: (x**2, x**3, x**7, x**-1, x**-4, x**0), "f3"),
    Case("power", lambda x, y: jnp.power(jnp.abs(x), y), "f3 f3", 64, nasty=False),
    Case("power_value", jnp.power, "f3 f3", derive=False),
    Case("constant_power", lambda x: (x**0.5, x**1.7, x**-0.3), "f3"),
    Case("power_of_constant", lambda x: 1.3**x, "f3"),
]

SPECIAL = [
    Case("erf", special.erf, "f3"),
    Case("erfc", special.erfc, "f3"),
    Case("erf_inv", special.erfinv, "f3"),
    Case("erf_inv_inside", lambda x: special.erfinv(0.9 * jnp.sin(x)), "f3", 99),
    Case("normal_cdf", jax.scipy.stats.norm.cdf, "f3"),
    Case("logistic", jax.nn.sigmoid, "f3"),
    Case("softplus", jax.nn.softplus, "f3"),
    Case("activations", lambda x: (jax.nn.relu(x), jax.nn.silu(x), jax.nn.elu(x)), "f3", 512),
    Case("gelu", lambda x: jax.nn.gelu(jnp.maximum(x, -1)), "f3", 512),  # 1 + tanh cancels
    Case("softmax", jax.nn.softmax, "f3", 99),
    Case("logsumexp", special.logsumexp, "f3"),
    Case("logaddexp", jnp.logaddexp, "f3 f3", 512),
    Case("xlogy_entr", lambda x, y: (special.xlogy(x, jnp.abs(y)), special.entr(jnp.abs(x))), "f3 f3", 512),
    Case("atan2", jnp.arctan2, "f3 f3"),
    Case("hypot", jnp.hypot, "f3 f3"),
    Case("sinc", jnp.sinc, "f3", derive=False),
    Case("sinc_away", lambda x: jnp.sinc(0.2 + jnp.abs(x)), "f3", 512),  # at zero, its derivative cancels
    Case("angle_wrapped", lambda x: jnp.mod(x + PI, 2 * PI) - PI, "f3"),
    Case("radians", lambda x: (jnp.deg2rad(x), jnp.rad2deg(x)), "f3"),
]

ROUNDING = [
    Case("sign", jnp.sign, "f4"),
    Case("floor", jnp.floor, "f4"),
    Case("ceil", jnp.ceil, "f4"),
    Case("round", lambda x: (jnp.round(x), jnp.round(x * 0.5), jnp.trunc(x)), "f4"),
    Case("round_away", lambda x: lax.round(2 * x, lax.RoundingMethod.AWAY_FROM_ZERO), "f4"),
    Case("mod", jnp.mod, "f4 f4"),
    Case("rem", lax.rem, "f4 f4"),
    Case("floor_divide", jnp.floor_divide, "f4 f4", derive=False),
    Case("divide", jnp.divide, "f4 f4"),
    Case("divide_by_constants", lambda x: (x / 3, x / 4, x / -1, 2 / x, x / 0.3), "f4"),
    Case("fractions", lambda x: jnp.modf(x), "f4", derive=False),
    Case("copysign_fabs", lambda x, y: (jnp.copysign(x, y), jnp.fabs(x)), "f4 f4", derive=False),
    Case("nextafter", jnp.nextafter, "f4 f4", derive=False),
    Case("ldexp", lambda x, i: jnp.ldexp(x, i), "f4 i4", derive=False, nasty=False),
    Case("signbit", jnp.signbit, "f4", derive=False),
    Case("to_integer", lambda x: (x.astype(jnp.int32), x.astype(jnp.int64)), "f4", derive=False),
    Case("to_unsigned", lambda x: (x.astype(jnp.uint32), x.astype(jnp.uint64)), "f4", derive=False),
    Case("to_bool", lambda x: x.astype(bool), "f4", derive=False),
    Case("precisions", lambda x: (x.astype(jnp.float32), x.astype(jnp.float32).astype(x.dtype)), "f4", derive=False),
]

CHOICES = [
    Case("maximum", jnp.maximum, "f4 f4"),
    Case("minimum", jnp.minimum, "f4 f4"),
    Case("fmax_fmin", lambda x, y: (jnp.fmax(x, y), jnp.fmin(x, y)), "f4 f4"),
    Case("clip", lambda x: jnp.clip(x, -0.4, 0.7), "f4"),
    Case("clip_by_unknown", lambda x, a, b: lax.clamp(a, x, b), "f4 f4 f4"),
    Case("where", lambda x, y: jnp.where(x < y, jnp.sin(x), y * y), "f4 f4"),
    Case("where_nested", _stepped, "f4"),
    Case("nan_to_num", jnp.nan_to_num, "f4"),
    Case("select", lambda x: jnp.select([x < -1, x < 1], [x, x * x], -x), "f4"),
    Case("select_of_many", lambda i, x: lax.select_n(jnp.clip(i, 0, 2), x, 2 * x, x * x), "i4 f4"),
    Case("piecewise", lambda x: jnp.piecewise(x, [x < 0, x >= 1], [lambda x: -x, lambda x: x**2, 3.0]), "f4"),
    Case("isnan_isinf", lambda x: (jnp.isnan(x), jnp.isinf(x), jnp.isfinite(x), jnp.isposinf(x)), "f4", derive=False),
    Case("comparisons", lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y), "f4 f4", derive=False),
    Case("isclose", lambda x, y: jnp.isclose(x, y), "f4 f4", derive=False),
    Case("bool_logic", lambda a, b: (a & b, a | b, a ^ b, ~a, jnp.logical_and(~a, b)), "b4 b4", derive=False),
    Case("bool_compare", lambda a, b: (a == b, a != b, ~a == b, a < b, a >= b), "b4 b4", derive=False),
    Case(
        "bool_max",
        lambda a, b: (lax.max(a, b), lax.min(a, b), jnp.where(a, ~b, b), a.any(), b.all()),
        "b4 b4",
        derive=False,
    ),
    Case("bool_sum", lambda a: (jnp.sum(a), a.astype(jnp.int32) * 3, jnp.argmax(a), jnp.sort(a)), "b4", derive=False),
    Case("bool_times", lambda a, x: a.astype(x.dtype) * x, "b4 f4"),
]

WHOLE = [
    Case("wrap_around", lambda i, j: (i + j, i - j, i * j, -i, abs(i)), "i4 i4", derive=False),
    Case("wrap_around_unsigned", lambda i, j: (i + j, i - j, i * j, -i, abs(i)), "u4 u4", derive=False),
    Case("divide_whole", lambda i, j: (lax.div(i, j), lax.rem(i, j)), "i4 i4", derive=False),
    Case("divide_unsigned", lambda i, j: (lax.div(i, j), lax.rem(i, j)), "u4 u4", derive=False),
    Case("floor_divide_whole", lambda i, j: (i // j, i % j, jnp.sign(i)), "i4 i4", derive=False),
    Case("floor_divide_constant", lambda i: (i // 3, i % 3, i // -4, i % -4, i % 0), "i4", derive=False),
    Case("shifts", lambda i, j: (i << j, i >> j, lax.shift_right_logical(i, j)), "i4 i4", derive=False),
    Case("shifts_unsigned", lambda i, j: (i << j, i >> j, lax.shift_right_arithmetic(i, j)), "u4 u4", derive=False),
    Case("shifts_constant", lambda i, u: (i << 3, i >> 2, u << 31, u >> 5), "i4 u4", derive=False),
    Case("bits", lambda i, j: (i & j, i | j, i ^ j, ~i), "i4 i4", derive=False),
    Case("bits_unsigned", lambda i, j: (i & j, i | j, i ^ j, ~i), "u4 u4", derive=False),
    Case("whole_max", lambda i, j: (jnp.maximum(i, j), jnp.minimum(i, j), jnp.clip(i, -2, 5)), "i4 i4", derive=False),
    Case("unsigned_max", lambda i, j: (jnp.maximum(i, j), i < j, i < 0, i >= 0, jnp.sign(i)), "u4 u4", derive=False),
    Case("whole_compare", lambda i, j: (i < j, i == j, i != 3, i == i, j >= -1), "i4 i4", derive=False),
    Case(
        "whole_reduce", lambda i: (i.sum(), i.prod(), i.max(), i.min(), i.argmax(), jnp.cumsum(i)), "i4", derive=False
    ),
    Case("whole_powers", lambda i, j: (i**2, i**5, i ** jnp.abs(j)), "i4 i4", derive=False, nasty=False),
    Case(
        "whole_to_float", lambda i, u: (i.astype(float), u.astype(float), i.astype(jnp.float32)), "i4 u4", derive=False
    ),
    Case("whole_sizes", lambda i: (i.astype(jnp.int32), i.astype(jnp.uint32), i.astype(jnp.int64)), "i4", derive=False),
    Case("whole_product", lambda i, j: (i @ j, jnp.dot(j, j)), "i3x3 i3", derive=False),
    Case("time_varying", lambda x, t: x * jnp.sin(0.1 * t.astype(x.dtype)), "f3 i"),
    Case("schedule", lambda x, t: jnp.where(t % 5 == 0, x, -x) / (1 + t).astype(x.dtype), "f3 i"),
]

REDUCTIONS = [
    Case("sum", lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean()), "f2x3"),
    Case("prod", lambda x: (x.prod(), x.prod(1)), "f2x3", nasty=False),
    Case("max", lambda x: (x.max(), x.max(0)), "f2x3"),
    Case("min", lambda x: (x.min(), x.min(1)), "f2x3"),
    Case("max_of_nothing", lambda x: (jnp.max(x[:0], initial=2.0), lax.reduce_max(x[:0], (0,)), x[:0].sum()), "f2"),
    Case("any_all", lambda x: ((x > 0).any(), (x > 0).all(0), jnp.count_nonzero(x > 1)), "f2x3", derive=False),
    Case("argmax", lambda x: (x.argmax(), x.argmin(), x.argmax(1), x.argmin(0)), "f2x3", derive=False),
    Case("nanmax", lambda x: (jnp.nanmax(x), jnp.nansum(x)), "f4"),
    Case("cumsum", lambda x: (jnp.cumsum(x), jnp.cumsum(x, 1), lax.cumsum(x, reverse=True)), "f2x3"),
    Case("cumprod", lambda x: (jnp.cumprod(x), jnp.cumprod(x, 0)), "f2x3", nasty=False),
    Case("cummax", lambda x: (lax.cummax(x, 1), lax.cummin(x, 0, reverse=True)), "f2x3"),
    Case("norm", lambda x: (jnp.linalg.norm(x), jnp.linalg.norm(x, axis=1), jnp.linalg.norm(x, 1)), "f2x3"),
    Case("norm_inf", lambda x: (jnp.linalg.norm(x[0], jnp.inf), jnp.linalg.norm(x, jnp.inf)), "f2x3"),
    Case("moments", lambda x: (x.var(), x.std(0), jnp.average(x, axis=0)), "f2x3"),
    Case("ptp", lambda x: jnp.ptp(x, axis=1), "f2x3"),
    Case("median", lambda x: (jnp.median(x), jnp.quantile(x, 0.3)), "f5"),
    Case("differences", lambda x: (jnp.diff(x), jnp.trapezoid(x)), "f4"),
]

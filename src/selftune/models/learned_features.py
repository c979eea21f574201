"""Terms of a residual for effects without a name: random Fourier features, radial basis functions, a network's last
layer. All are linear in a."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from .base import Signal
from .features import AbstractFeature, Parameter, Reads, bound_or, optional_bound, state_names


class RandomFourier(AbstractFeature):
    r"""Random Fourier features: $\varphi_j = \sqrt{2/D}\,\cos(\omega_j^\top (z/\ell) + b_j)$, $|a_j| \le$ `bound`.

    The frequencies $\omega_j$ are normal and the phases $b_j$ uniform, so $\varphi^\top\varphi'$ approximates a
    Gaussian kernel of length $\ell$ (Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", 2007).

    **Arguments:**

    - `key`: the key of the random numbers.
    - `state`: the names of the states z.
    - `length`: ℓ, the distance over which the unknown function changes: a number, or one for each state, in the states'
      units.
    - `count`: D.
    - `bound`: of each $a_j$; the default is the rated control.

    !!! Example

        >>> import jax
        >>> from selftune import models
        >>> feature = models.RandomFourier(jax.random.key(0), state="position", length=0.2, count=30)
        >>> len(models.DoubleIntegrator(mass=1.0, dt=0.01, unknown=(feature,)).parameters)
        30
    """

    frequencies: Array
    phases: Array
    bound: Array | None
    state: tuple[str, ...] | None = eqx.field(static=True)
    reads: ClassVar[Reads] = "all"

    def __init__(
        self, key: Any, *, state: str | tuple[str, ...], length: Any, count: int = 20, bound: float | None = None
    ):
        self.state = state_names(state)
        if self.state is None:
            raise ArgumentError("state", "the names of the states", "None")
        length = _one_for_each("length", arguments.variances("length", length), len(self.state))
        kw, kb = jax.random.split(arguments.key("key", key))
        shape = (arguments.count("count", count), len(self.state))
        self.frequencies = jax.random.normal(kw, shape, length.dtype) / length
        self.phases = jax.random.uniform(kb, shape[:1], length.dtype, maxval=2 * math.pi)
        self.bound = optional_bound(bound)

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        return math.sqrt(2 / len(self.phases)) * jnp.cos(self.frequencies @ z + self.phases)

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        return _numbered("fourier", len(self.phases), self.bound, load)


class RadialBasis(AbstractFeature):
    r"""Radial basis functions: $\varphi_j = \exp(-\tfrac12 \|(z - c_j)/\sigma\|^2)$, $|a_j| \le$ `bound`.

    **Arguments:**

    - `centers`: the $c_j$, (D, r), or (D,) for one state, in the states' units.
    - `width`: σ, a number, or one for each state.
    - `state`: the names of the r states z.
    - `bound`: of each $a_j$; the default is the rated control.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> feature = models.RadialBasis(jnp.linspace(-1, 1, 9), width=0.25, state="position")
        >>> len(models.DoubleIntegrator(mass=1.0, dt=0.01, unknown=(feature,)).parameters)
        9
    """

    centers: Array
    width: Array
    bound: Array | None
    state: tuple[str, ...] | None = eqx.field(static=True)
    reads: ClassVar[Reads] = "all"

    def __init__(self, centers: Any, *, width: Any, state: str | tuple[str, ...], bound: float | None = None):
        self.state = state_names(state)
        if self.state is None:
            raise ArgumentError("state", "the names of the states", "None")
        array = arguments.real_array("centers", centers)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != len(self.state):
            raise ArgumentError("centers", f"shape (D, {len(self.state)})", arguments.describe(array))
        self.centers = array
        self.width = _one_for_each("width", arguments.variances("width", width), len(self.state))
        self.bound = optional_bound(bound)

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        return jnp.exp(-0.5 * jnp.sum(jnp.square((z - self.centers) / self.width), axis=1))

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        return _numbered("basis", len(self.centers), self.bound, load)


class LastLayer(AbstractFeature):
    r"""The last layer of a network that you trained: a is learned online, and the hidden layers stay as they are.

    $$h_0 = z, \quad h_{i} = s(W_i h_{i-1} + b_i), \quad \varphi = (h_L, 1), \quad |a_j| \le \text{bound}$$

    **Arguments:**

    - `weights`: the matrices $W_1, \dots, W_L$; $W_i$ has shape (outputs, inputs), as in PyTorch and Equinox.
    - `biases`: the vectors $b_1, \dots, b_L$.
    - `activation`: s, for example `jnp.tanh` (the default) or `jax.nn.relu`.
    - `state`: the names of the states z, in the order of the network's inputs; None means all states of the model. The
      network gets the states in their own units.
    - `bound`: of each $a_j$; the default is the rated control.

    !!! Example

        >>> import numpy as np
        >>> from selftune import models
        >>> rng = np.random.default_rng(0)
        >>> weights, biases = [rng.normal(size=(8, 2)), rng.normal(size=(5, 8))], [np.zeros(8), np.zeros(5)]
        >>> feature = models.LastLayer(weights, biases)
        >>> len(models.DoubleIntegrator(mass=1.0, dt=0.01, unknown=(feature,)).parameters)
        6
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)
    bound: Array | None
    state: tuple[str, ...] | None = eqx.field(static=True)
    reads: ClassVar[Reads] = "all"

    def __init__(
        self,
        weights: Sequence[Any],
        biases: Sequence[Any],
        *,
        activation: Callable[[Array], Array] = jnp.tanh,
        state: str | tuple[str, ...] | None = None,
        bound: float | None = None,
    ):
        if not callable(activation):
            raise ArgumentError("activation", "a function such as jnp.tanh", arguments.describe(activation))
        self.weights = tuple(arguments.real_array("weights", matrix) for matrix in weights)
        self.biases = tuple(arguments.real_array("biases", vector) for vector in biases)
        self.activation, self.state, self.bound = activation, state_names(state), optional_bound(bound)
        if not self.weights or any(matrix.ndim != 2 for matrix in self.weights):
            got = [matrix.shape for matrix in self.weights]
            raise ArgumentError("weights", "at least one matrix, one for each hidden layer", f"shapes {got}")
        sizes = [matrix.shape[0] for matrix in self.weights]
        if [matrix.shape[1] for matrix in self.weights[1:]] != sizes[:-1]:
            got = [matrix.shape for matrix in self.weights]
            raise ArgumentError("weights", "matrices that fit one after the other", f"shapes {got}")
        if [vector.shape for vector in self.biases] != [(size,) for size in sizes]:
            got = [vector.shape for vector in self.biases]
            raise ArgumentError("biases", f"vectors of lengths {sizes}", f"shapes {got}")

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            z = self.activation(weight @ z + bias)
        return jnp.append(z, jnp.ones(1, z.dtype))

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        if self.weights[0].shape[1] != len(read):
            names = ", ".join(one.name for one in read)
            raise ArgumentError(
                "weights", f"a first matrix with {len(read)} columns, for {names}", f"{self.weights[0].shape}"
            )
        return _numbered("network", self.weights[-1].shape[0] + 1, self.bound, load)


def _one_for_each(name: str, value: Array, count: int) -> Array:
    if value.ndim and value.shape != (count,):
        raise ArgumentError(name, f"a number, or one for each of {count} states", arguments.describe(value))
    return value


def _numbered(name: str, count: int, bound: Array | None, load: Signal) -> tuple[Parameter, ...]:
    limit = bound_or(bound, load.scale)
    return tuple(Parameter(f"{name}_{j}", load.unit, -limit, limit) for j in range(count))

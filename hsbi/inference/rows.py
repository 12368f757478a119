"""Single-site simulations as training sees them: as they were simulated, or encoded for a surrogate."""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.inference.surrogate import Surrogate

# Rows that are encoded at once to see whether they are usable.
_ROWS_AT_ONCE = 4096


class Rows(NamedTuple):
    """Single-site simulations as a surrogate sees them.

    Attributes:
        features: `[rows, points, F]`.
        values: Standardized observations, `[rows, points, width]`.
        weights: `[rows]`.
        simulation: The simulation that each row is a replicate of, `[rows]`.
        cells: For binary values, the lower and upper ends of their cells, of the shape of the values; None for others.
        counts: For counts, how far they are above the lower bound; None for others.
    """

    features: Array
    values: Array
    weights: Array
    simulation: Array
    cells: tuple[Array, Array] | None = None
    counts: Array | None = None

    def take(self, index: ArrayLike) -> Self:
        """Select rows."""
        return jax.tree.map(lambda array: array[index], self)

    def encode(self, surrogate: Surrogate, key: Array) -> "Rows":
        """Give the rows: they are encoded."""
        return self


class Raw(NamedTuple):
    """Single-site simulations as they were made; batches are encoded when they are used, so that none is copied.

    Attributes:
        parameters: Flattened parameters and covariates, `[rows, k]`.
        inputs: Functional inputs, `[rows, points, d]`, or None.
        values: Observations, `[rows, points, width]`.
        weights: `[rows]`.
        simulation: The simulation that each row is a replicate of, `[rows]`.
    """

    parameters: Array
    inputs: Array | None
    values: Array
    weights: Array
    simulation: Array

    def take(self, index: ArrayLike) -> Self:
        """Select rows."""
        return jax.tree.map(lambda array: array[index], self)

    def encode(self, surrogate: Surrogate, key: Array) -> Rows:
        """Give features and standardized observations; integers are spread over their cells by noise."""
        inputs = None if self.inputs is None else self.inputs[:, None]
        features = surrogate.prepare(self.parameters, inputs, (1, self.values.shape[1]))[:, 0]
        transform = surrogate.transform
        cells = transform.cell(self.values) if transform.kind == "binary" else None
        counts = None if surrogate.noise is None else self.values.astype(jnp.float32) - transform.lower
        return Rows(features, transform.encode(key, self.values), self.weights, self.simulation, cells, counts)


def usable_rows(rows: Rows | Raw, surrogate: Surrogate, key: Array) -> Array:
    """Say which rows are finite and within the support, `[rows]`; some are encoded at a time."""

    def is_usable(row: Array) -> Array:
        encoded = rows.take(row[None]).encode(surrogate, key)
        return jnp.all(jnp.isfinite(encoded.values)) & jnp.all(jnp.isfinite(encoded.features))

    number = rows.values.shape[0]
    return jax.lax.map(is_usable, jnp.arange(number), batch_size=min(number, _ROWS_AT_ONCE))


def reshape_in_place(array: Array, shape: tuple[int, ...]) -> Array:
    """Reshape an array; on a CPU the result shares its memory, which `reshape` outside compiled code does not."""
    if all(device.platform == "cpu" for device in array.devices()):
        return jax.device_put(np.asarray(array).reshape(shape), may_alias=True)
    return array.reshape(shape)

"""Single-site simulations as training sees them: as they were simulated, or encoded for a surrogate."""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from hsbi.inference.surrogate import Surrogate


class Rows(NamedTuple):
    """Single-site simulations as a surrogate sees them.

    Attributes:
        features: `[rows, points, F]`.
        values: Standardized observations, `[rows, points, width]`.
        weights: `[rows]`.
        simulation: The simulation that each row is a replicate of, `[rows]`.
        cells: For integers, the lower and upper ends of their cells, of the shape of the values; None for others.
    """

    features: Array
    values: Array
    weights: Array
    simulation: Array
    cells: tuple[Array, Array] | None = None

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
        cells = transform.cell(self.values) if transform.is_discrete else None
        return Rows(features, transform.encode(key, self.values), self.weights, self.simulation, cells)


def usable_rows(rows: Rows | Raw, surrogate: Surrogate, key: Array) -> Array:
    """Say which rows are finite and within the support, `[rows]`."""
    encoded = rows.encode(surrogate, key)
    finite = jnp.all(jnp.isfinite(encoded.values), axis=(1, 2))
    return finite & jnp.all(jnp.isfinite(encoded.features), axis=(1, 2))

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

    def encode(self, index: ArrayLike, surrogate: Surrogate, key: Array) -> "Rows":
        """Select rows: they are encoded."""
        return self.take(index)


class Raw(NamedTuple):
    """Single-site simulations as they were made; rows are encoded when they are used, so that none is copied.

    A row is one replicate of a simulation, the replicates of each following one another.

    Attributes:
        parameters: Flattened parameters and covariates, `[simulations, k]`.
        site: The site of each simulation, `[simulations]`.
        inputs: Functional inputs of the sites, `[sites, replicates, points, d]`, or None.
        values: Observations, `[rows, points, width]`.
        weights: `[simulations]`.
    """

    parameters: Array
    site: Array
    inputs: Array | None
    values: Array
    weights: Array

    @property
    def simulation(self) -> Array:
        """The simulation that each row is a replicate of, `[rows]`."""
        return jnp.arange(self.values.shape[0]) // self._replicates

    @property
    def _replicates(self) -> int:
        return self.values.shape[0] // self.parameters.shape[0]

    def encode(self, index: ArrayLike, surrogate: Surrogate, key: Array) -> Rows:
        """Give features and standardized observations of rows; integers are spread over their cells by noise."""
        index = jnp.asarray(index)
        simulation, replicate = index // self._replicates, index % self._replicates
        values = self.values[index]
        inputs = None if self.inputs is None else self.inputs[self.site[simulation], replicate][:, None]
        features = surrogate.prepare(self.parameters[simulation], inputs, (1, values.shape[1]))[:, 0]
        transform = surrogate.transform
        cells = transform.cell(values) if transform.kind == "binary" else None
        counts = None if surrogate.noise is None else values.astype(jnp.float32) - transform.lower
        return Rows(features, transform.encode(key, values), self.weights[simulation], simulation, cells, counts)


def usable_rows(rows: Rows | Raw, surrogate: Surrogate, key: Array) -> Array:
    """Say which rows are finite and within the support, `[rows]`; some are encoded at a time."""

    def is_usable(row: Array) -> Array:
        encoded = rows.encode(row[None], surrogate, key)
        return jnp.all(jnp.isfinite(encoded.values)) & jnp.all(jnp.isfinite(encoded.features))

    number = rows.values.shape[0]
    return jax.lax.map(is_usable, jnp.arange(number), batch_size=min(number, _ROWS_AT_ONCE))


def reshape_in_place(array: Array, shape: tuple[int, ...]) -> Array:
    """Reshape an array; on a CPU the result shares its memory, which `reshape` outside compiled code does not."""
    if all(device.platform == "cpu" for device in array.devices()):
        return jax.device_put(np.asarray(array).reshape(shape), may_alias=True)
    return array.reshape(shape)

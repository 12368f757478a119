"""Features of parameters and covariates for a surrogate."""

import dataclasses
from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints

from hsbi.model.bijections import strip_independent
from hsbi.model.transforms import Standardizer, fit_standardizer

# Fourier features of a functional input that is scaled to [0, 1]: a few oscillations over the range, with fixed
# frequencies drawn once so that every machine has the same.
_NUM_FREQUENCIES, _BANDWIDTH, _FREQUENCY_SEED = 8, 1.5, 20240229
# Rows whose parameters lie more than about this many scales out are weighted down: they pin no posterior, but a linear
# fit would bend to reach them.
_FAR = 4.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterFeatures:
    """Standardized values of the parameters an observation depends on, with the logarithms of positive ones.

    Attributes:
        names: The parameters, in order.
        positive: The columns of all flattened parameters and covariates whose logarithm is a feature too; that of the
            absolute value, where a column takes both signs.
        scaling: Centre and scale of the features.
        input_low: The lowest functional input simulated, by dimension.
        input_range: The range of inputs simulated.
    """

    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    positive: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    scaling: Standardizer
    input_low: Array
    input_range: Array

    def __call__(self, parameters: Array) -> Array:
        """Map flattened parameters and covariates `[..., k]` to features `[..., F]`."""
        return self.scaling.standardize(_augment(parameters, self.positive))

    def of_inputs(self, inputs: Array) -> Array:
        """Map functional inputs `[..., d]` to features: scaled inputs, their squares and Fourier features."""
        unit = self.scale_inputs(inputs)
        angles = 2 * jnp.pi * unit @ jnp.asarray(_frequencies(inputs.shape[-1]))
        return jnp.concatenate([2 * unit - 1, (2 * unit - 1) ** 2, jnp.sin(angles), jnp.cos(angles)], axis=-1)

    def scale_inputs(self, inputs: Array) -> Array:
        """Scale functional inputs `[..., d]` to [0, 1] over the simulated range."""
        low = self.input_low.reshape((1,) * (inputs.ndim - 1) + (-1,))
        width = self.input_range.reshape((1,) * (inputs.ndim - 1) + (-1,))
        return (inputs - low) / width

    def weights(self, features: Array, *, logarithmic: bool = False) -> Array:
        """Weight rows by how far out their parameters lie, `[...]`.

        Args:
            features: `[..., F]`.
            logarithmic: Whether the observation is on a logarithmic scale; then a positive parameter is far out only
                where its logarithm is too.
        """
        plain = features.shape[-1] - len(self.positive)
        distance = jnp.abs(features[..., :plain] if logarithmic else features)
        for place, column in enumerate(self.positive if logarithmic else ()):
            nearer = jnp.minimum(distance[..., column], jnp.abs(features[..., plain + place]))
            distance = distance.at[..., column].set(nearer)
        far = jnp.max(distance, axis=-1, initial=0.0)
        return 1.0 / (1.0 + (far / _FAR) ** 6)


def fit_features(names: tuple[str, ...], parameters: Array, inputs: Array | None) -> ParameterFeatures:
    """Choose and scale features by simulations.

    Args:
        names: The parameters.
        parameters: Flattened parameters and covariates of the simulations, `[rows, k]`.
        inputs: Their functional inputs, `[..., d]`, or None.
    """
    lowest = np.asarray(jnp.min(parameters, axis=0))
    positive = tuple(int(column) for column in np.flatnonzero(lowest > 0))
    flat = jnp.zeros((1, 0)) if inputs is None else inputs.reshape(-1, inputs.shape[-1])
    low, high = jnp.min(flat, axis=0), jnp.max(flat, axis=0)
    return ParameterFeatures(
        names=names,
        positive=positive,
        scaling=fit_standardizer(_augment(parameters, positive)),
        input_low=low,
        input_range=jnp.where(high > low, high - low, 1.0),
    )


def add_logarithms(features: ParameterFeatures, parameters: Array) -> ParameterFeatures | None:
    """Add the logarithms of the absolute values of parameters that take both signs; None where there are none.

    Args:
        features: The features so far.
        parameters: Flattened parameters and covariates of the simulations, `[rows, k]`.
    """
    values = np.asarray(parameters)
    values = values[np.all(np.isfinite(values), axis=1)]
    signed = np.any(values < 0, axis=0) & np.any(values > 0, axis=0) & np.all(values != 0, axis=0)
    if not signed.any():
        return None
    columns = (*features.positive, *(int(column) for column in np.flatnonzero(signed)))
    return dataclasses.replace(
        features, positive=columns, scaling=fit_standardizer(_augment(jnp.asarray(values), columns))
    )


def flatten_parameters(
    names: tuple[str, ...], values: Mapping[str, Array], covariates: Array, shared: Collection[str] = ()
) -> Array:
    """Flatten parameters and append covariates, one row per site or simulation.

    Args:
        names: The parameters.
        values: Their values, `[rows, ...]`, but without the row axis where shared.
        covariates: `[rows, c]`.
        shared: The parameters that all rows share.
    """
    rows = covariates.shape[0]

    def flat(name: str) -> Array:
        if name in shared:
            return jnp.broadcast_to(values[name].reshape(1, -1), (rows, values[name].size))
        return values[name].reshape(rows, -1)

    return jnp.concatenate([*(flat(name) for name in names), covariates], axis=-1)


def find_bound(support: constraints.Constraint, covariates: Array) -> int | None:
    """Find the covariate that is the upper bound of a site's counts, such as a number of trials; None without one."""
    base, _ = strip_independent(support)
    if not isinstance(base, constraints.integer_interval):
        return None
    upper = np.asarray(base.upper_bound, float)
    if upper.size != covariates.shape[0] or np.ptp(upper) == 0 or not np.all(np.isfinite(upper)):
        return None
    same = np.all(np.asarray(covariates) == upper.reshape(-1, 1), axis=0)
    return int(np.argmax(same)) if same.any() else None


def _augment(parameters: Array, positive: tuple[int, ...]) -> Array:
    logs = [jnp.log(jnp.maximum(jnp.abs(parameters[..., column]), 1e-30))[..., None] for column in positive]
    return jnp.concatenate([parameters, *logs], axis=-1)


def _frequencies(dim: int) -> np.ndarray:
    rng = np.random.default_rng(_FREQUENCY_SEED)
    return (_BANDWIDTH * rng.standard_normal((dim, _NUM_FREQUENCIES))).astype(np.float32)

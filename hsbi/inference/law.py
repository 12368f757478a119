"""The law of what location and scale leave: a mixture of Gaussians, whose density and marginals are closed.

A flow learns any law, but its density costs an ODE. A mixture's costs one evaluation, so that draws can be weighed by
it, and one without a network has few parameters to pay for.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.networks.heads import Gaussian, color, marginal_scale
from hsbi.networks.mlp import ResidualMLP, apply, compress
from hsbi.networks.triangular import cholesky, solve_lower

# Bounds on the log scales of parts, in units of the residual: a part that shrinks to one simulation has no likelihood.
MIN_LOG_SCALE, MAX_LOG_SCALE = -5.0, 5.0
# Hidden layers of the network.
_DEPTH = 2
_LOG_2PI = math.log(2 * math.pi)


class Mixture(NamedTuple):
    """A mixture of Gaussians over a vector, for every leading index; leading axes may have size one.

    Attributes:
        log_weights: Log shares of the parts, `[..., K]`.
        parts: The parts, `[..., K, d]`.
    """

    log_weights: Array
    parts: Gaussian

    def log_parts(self, values: Array, known: Array | None = None) -> Array:
        """Evaluate the log density of values `[..., d]` under each part, times its share, `[..., K]`.

        Args:
            values: The values.
            known: Which entries are known, `[..., d]`; the others are integrated out.
        """
        values = values[..., None, :]
        if known is None:
            residual = _whiten(self.parts, values)
            density = jnp.sum(-0.5 * (residual**2 + _LOG_2PI) - self.parts.log_scale, axis=-1)
        else:
            density = _log_marginal(self.parts, values, known[..., None, :])
        return density + self.log_weights

    def log_prob(self, values: Array, known: Array | None = None) -> Array:
        """Evaluate the log density of values `[..., d]`, or of those of their entries that are known."""
        return jax.scipy.special.logsumexp(self.log_parts(values, known), axis=-1)

    def sample(self, key: Array, lead: tuple[int, ...]) -> Array:
        """Draw values `[*lead, d]`."""
        pick_key, noise_key = jax.random.split(key)
        number, dim = self.parts.loc.shape[-2:]
        log_weights = jnp.broadcast_to(self.log_weights, (*lead, number))
        chosen = jax.nn.one_hot(jax.random.categorical(pick_key, log_weights), number)
        noise = jax.random.normal(noise_key, (*lead, 1, dim))
        own = jax.tree.map(lambda array: _choose(array, chosen), self.parts)
        return color(own, noise[..., 0, :])

    def moments(self) -> tuple[Array, Array]:
        """Give mean and standard deviation of each entry, `[..., d]`."""
        shares = jnp.exp(self.log_weights)[..., None]
        mean = jnp.sum(shares * self.parts.loc, axis=-2)
        square = jnp.sum(shares * (self.parts.loc**2 + marginal_scale(self.parts) ** 2), axis=-2)
        return mean, jnp.sqrt(jnp.maximum(square - mean**2, 1e-12))

    def move(self, location: Array, log_scale: Array) -> "Mixture":
        """Give the mixture of location + exp(log scale) x, both `[..., d]`, for x of this one."""
        location, log_scale = location[..., None, :], log_scale[..., None, :]
        parts = self.parts._replace(
            loc=location + jnp.exp(log_scale) * self.parts.loc, log_scale=log_scale + self.parts.log_scale
        )
        return self._replace(parts=parts)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
    """A mixture that is the same everywhere, or follows the features by a network.

    Attributes:
        active: Which numbers of all parts, in the order logit, locations, log scales and slopes of each, the network
            drives.
        logits: Log shares of the parts up to a constant, `[K]`.
        loc: Their locations, `[K, d]`.
        log_scale: Log scales of an entry given those before, `[K, d]`.
        slopes: The regression of an entry on those before, row by row, `[K, d (d - 1) / 2]`. Unlike correlations they
            may be any numbers, and unlike the factor of a precision they stay moderate where a scale is small.
        net: Weights of the network, or None.
    """

    active: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    logits: Array
    loc: Array
    log_scale: Array
    slopes: Array
    net: Any = None

    def module(self, config: Any) -> ResidualMLP:
        """Give the network without weights, which starts at zero; the surrogate's configuration has its width."""
        return ResidualMLP(config.flow_width, _DEPTH, len(self.active), zero=True, dtype=config.dtype)

    def given(self, features: Array, config: Any) -> Mixture:
        """Give the mixture for features `[..., F]`; without a network its leading axes have size one."""
        number, dim = self.loc.shape
        constants = jnp.concatenate([self.logits[:, None], self.loc, self.log_scale, self.slopes], axis=-1)
        raw = constants.reshape((1,) * (features.ndim - 1) + (-1,))
        if self.net is not None:
            change = apply(self.module(config), self.net, compress(features))
            raw = jnp.broadcast_to(raw, (*features.shape[:-1], raw.shape[-1]))
            raw = raw.at[..., np.asarray(self.active)].add(change)
        raw = raw.reshape(*raw.shape[:-1], number, -1)
        logits, loc, log_scale, slopes = jnp.split(raw, [1, 1 + dim, 1 + 2 * dim], axis=-1)
        log_scale = jnp.clip(log_scale, MIN_LOG_SCALE, MAX_LOG_SCALE)
        log_weights = jax.nn.log_softmax(logits[..., 0], axis=-1)
        if dim == 1:
            return Mixture(log_weights, Gaussian(loc, log_scale))
        rows, columns = np.tril_indices(dim, -1)
        # A regression of differences from the location, where the Gaussian's is of residuals.
        entries = -slopes * jnp.exp(log_scale[..., columns] - log_scale[..., rows])
        lower = jnp.zeros((*entries.shape[:-1], dim, dim)).at[..., rows, columns].set(entries)
        return Mixture(log_weights, Gaussian(loc, log_scale, lower))


def _whiten(parts: Gaussian, values: Array) -> Array:
    """Whiten as `heads.whiten` does, by sums of products, which are faster for many small matrices."""
    residual = (values - parts.loc) * jnp.exp(-parts.log_scale)
    if parts.lower is None:
        return residual
    return residual + jnp.sum(parts.lower * residual[..., None, :], axis=-1)


def covariance(parts: Gaussian) -> Array:
    """Give covariances, `[..., d, d]`."""
    dim = parts.loc.shape[-1]
    scale = jnp.exp(parts.log_scale)
    eye = jnp.eye(dim)
    if parts.lower is None:
        return eye.reshape((1,) * (scale.ndim - 1) + eye.shape) * (scale**2)[..., None]
    unit = parts.lower + eye.reshape((1,) * (parts.lower.ndim - 2) + eye.shape)
    columns = jax.vmap(lambda basis: solve_lower(unit, jnp.broadcast_to(basis, scale.shape)), out_axes=-1)(eye)
    factor = scale[..., None] * columns
    return jnp.sum(factor[..., :, None, :] * factor[..., None, :, :], axis=-1)


def restrict(parts: Gaussian, known: Array) -> tuple[Array, Array]:
    """Give location and lower Cholesky factor of what is known, with unit variances where nothing is.

    Entries that are not known are then independent of the others, so that a residual of zero leaves them out.
    """
    matrix = covariance(parts)
    both = known[..., :, None] & known[..., None, :]
    eye = jnp.eye(matrix.shape[-1])
    matrix = jnp.where(both, matrix, eye.reshape((1,) * (matrix.ndim - 2) + eye.shape))
    return parts.loc, cholesky(matrix, min_eigenvalue=1e-12)


def _log_marginal(parts: Gaussian, values: Array, known: Array) -> Array:
    location, factor = restrict(parts, known)
    residual = solve_lower(factor, jnp.where(known, values - location, 0.0))
    log_scale = jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1))
    return jnp.sum(jnp.where(known, -0.5 * (residual**2 + _LOG_2PI) - log_scale, 0.0), axis=-1)


def _choose(array: Array, chosen: Array) -> Array:
    """Take the chosen part of an array `[..., K, ...]`, by one-hot numbers `[..., K]`."""
    extra = array.ndim - (chosen.ndim)
    return jnp.sum(array * chosen.reshape(*chosen.shape, *(1,) * extra), axis=chosen.ndim - 1)

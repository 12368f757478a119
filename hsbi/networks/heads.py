"""The location-scale part of a conditional density."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from hsbi.networks.mlp import ResidualMLP
from hsbi.networks.triangular import solve_lower

# Bounds on a log scale relative to standardized targets; beyond them an exponential could overflow float32.
_MAX_LOG_SCALE = 9.0
# The name of the linear map inside a head.
LINEAR = "linear"


class Gaussian(NamedTuple):
    """A conditional Gaussian: x = loc + scale * r with U r standard normal, U unit lower triangular.

    Attributes:
        loc: Locations, `[..., d]`.
        log_scale: Log scales, `[..., d]`.
        lower: The strictly lower part of U, `[..., d, d]`, or None where U is the identity.
    """

    loc: Array
    log_scale: Array
    lower: Array | None = None


def whiten(gaussian: Gaussian, x: Array) -> Array:
    """Give the residual of a value, standard normal if the Gaussian is right."""
    residual = (x - gaussian.loc) * jnp.exp(-gaussian.log_scale)
    if gaussian.lower is None:
        return residual
    return residual + jnp.einsum("...ij,...j->...i", gaussian.lower, residual)


def color(gaussian: Gaussian, residual: Array) -> Array:
    """Undo `whiten`."""
    if gaussian.lower is not None:
        unit = gaussian.lower + jnp.broadcast_to(jnp.eye(residual.shape[-1]), gaussian.lower.shape)
        residual = solve_lower(unit, residual)
    return gaussian.loc + jnp.exp(gaussian.log_scale) * residual


def marginal_scale(gaussian: Gaussian) -> Array:
    """Give the standard deviation of each coordinate, `[..., d]`."""
    scale = jnp.exp(gaussian.log_scale)
    if gaussian.lower is None:
        return scale
    unit = gaussian.lower + jnp.broadcast_to(jnp.eye(scale.shape[-1]), gaussian.lower.shape)
    # Row k of the stack is the k-th column of the inverse.
    columns = jax.vmap(lambda basis: solve_lower(unit, jnp.broadcast_to(basis, scale.shape)))(jnp.eye(scale.shape[-1]))
    return scale * jnp.sqrt(jnp.sum(columns**2, axis=0))


def negative_log_density(gaussian: Gaussian, x: Array) -> Array:
    """Evaluate -log N(x) up to d/2 log(2 pi), per row: |r|^2 / 2 + sum log scale."""
    residual = whiten(gaussian, x)
    return jnp.sum(0.5 * residual**2 + gaussian.log_scale, axis=-1)


def robust_loss(gaussian: Gaussian, x: Array, knee: float) -> Array:
    """Evaluate `negative_log_density` with residuals beyond a knee counted linearly (Huber), not squared."""
    residual = jnp.abs(whiten(gaussian, x))
    bent = jnp.where(residual < knee, 0.5 * residual**2, knee * (residual - 0.5 * knee))
    return jnp.sum(bent + gaussian.log_scale, axis=-1)


class GaussianHead(nn.Module):
    """Predict location and scale: a linear map and a nonlinear correction, both starting at zero.

    Attributes:
        dim: Dimension of the target.
        width: Units of hidden layers of the correction.
        depth: Its hidden layers.
        full: Whether correlations are predicted too.
        dtype: Type of the computation.
    """

    dim: int
    width: int = 64
    depth: int = 2
    full: bool = False
    dtype: str = "float32"

    @nn.compact
    def __call__(self, context: Array) -> Gaussian:
        """Map a context `[..., features]` to a Gaussian."""
        num_lower = self.dim * (self.dim - 1) // 2 if self.full else 0
        out = 2 * self.dim + num_lower
        linear = nn.Dense(out, kernel_init=nn.initializers.zeros, name=LINEAR)(context)
        raw = linear + ResidualMLP(self.width, self.depth, out, zero=True, dtype=self.dtype)(context)
        loc, log_scale, rest = jnp.split(raw, [self.dim, 2 * self.dim], axis=-1)
        log_scale = jnp.clip(log_scale, -_MAX_LOG_SCALE, _MAX_LOG_SCALE)
        if not num_lower:
            return Gaussian(loc, log_scale)
        rows, columns = jnp.tril_indices(self.dim, -1)
        lower = jnp.zeros((*raw.shape[:-1], self.dim, self.dim)).at[..., rows, columns].set(rest)
        return Gaussian(loc, log_scale, lower)

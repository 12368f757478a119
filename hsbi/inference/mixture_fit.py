"""Mixtures of Gaussians fitted to residuals by expectation and maximization, several sizes at once."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.law import MAX_LOG_SCALE, MIN_LOG_SCALE, Law
from hsbi.networks.triangular import cholesky, solve_lower

# Numbers of parts that are tried.
SIZES = (1, 2, 4, 8, 16)
_ROUNDS = 80
# Added to variances, in units of the residual's: no part may shrink to a point.
_LEAST_VARIANCE = 1e-4
# Parts start at random residuals with these standard deviations in turn, as noise may have a narrow core.
_STARTS = (0.7, 0.25)


def fit_mixtures(key: Array, residual: Array, weights: Array) -> Law:
    """Fit mixtures of all sizes to residuals.

    Args:
        key: A random key.
        residual: `[rows, d]`.
        weights: `[rows]`.

    Returns:
        Laws of all sizes, stacked; parts beyond a size have no share.
    """
    most = max(SIZES)
    share = weights / jnp.sum(weights)
    mean = share @ residual
    center = residual - mean[None]
    total = center.T @ (center * share[:, None])
    floor = _LEAST_VARIANCE * jnp.diag(jnp.diagonal(total))

    def start(own: Array) -> tuple[Array, Array]:
        """The first part starts as the Gaussian of all residuals."""
        picks = jax.random.categorical(own, jnp.log(share), shape=(most,))
        scale = jnp.tile(jnp.asarray(_STARTS), most)[:most]
        means = residual[picks].at[0].set(mean)
        return means, ((scale**2)[:, None, None] * total[None]).at[0].set(total)

    def fit_one(size: Array, own: Array) -> Law:
        active = jnp.arange(most) < size

        def improve(_: int, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            log_shares, means, covariances = state
            member = jax.nn.softmax(_log_parts(residual, log_shares, means, covariances), axis=-1) * share[:, None]
            mass = jnp.sum(member, axis=0) + 1e-12
            means = (member.T @ residual) / mass[:, None]
            square = jnp.einsum("nk,ni,nj->kij", member, residual, residual) / mass[:, None, None]
            covariances = square - means[:, :, None] * means[:, None, :] + floor[None]
            return jnp.where(active, jnp.log(mass), -jnp.inf), means, covariances

        means, covariances = start(own)
        log_shares = jnp.where(active, -jnp.log(size.astype(jnp.float32)), -jnp.inf)
        log_shares, means, covariances = jax.lax.fori_loop(0, _ROUNDS, improve, (log_shares, means, covariances))
        return _as_law(log_shares, means, covariances)

    return jax.vmap(fit_one)(jnp.asarray(SIZES), jax.random.split(key, len(SIZES)))


def _log_parts(values: Array, log_shares: Array, means: Array, covariances: Array) -> Array:
    """Give the log densities of rows under parts, times their shares, up to a constant, `[rows, K]`."""
    whitening, log_volume = _invert(covariances)
    residual = jnp.einsum("kij,nj->nki", whitening, values) - jnp.einsum("kij,kj->ki", whitening, means)[None]
    return log_shares[None] - log_volume[None] - 0.5 * jnp.sum(residual**2, axis=-1)


def _invert(covariances: Array) -> tuple[Array, Array]:
    """Give the inverses of the lower Cholesky factors, and the logs of their determinants."""
    factor = cholesky(covariances, min_eigenvalue=1e-10)
    eye = jnp.eye(factor.shape[-1])
    columns = jax.vmap(lambda basis: solve_lower(factor, jnp.broadcast_to(basis, factor.shape[:-1])), out_axes=-1)(eye)
    return columns, jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)


def _as_law(log_shares: Array, means: Array, covariances: Array) -> Law:
    whitening, _ = _invert(covariances)
    scale = 1.0 / jnp.diagonal(whitening, axis1=-2, axis2=-1)
    slopes = -whitening * scale[:, :, None]
    rows, columns = np.tril_indices(means.shape[-1], -1)
    log_scale = jnp.clip(jnp.log(scale), MIN_LOG_SCALE, MAX_LOG_SCALE)
    return Law(logits=log_shares, loc=means, log_scale=log_scale, slopes=slopes[:, rows, columns])

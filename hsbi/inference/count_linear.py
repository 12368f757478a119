"""Linear regression of counts: the link of their mean and one dispersion, solved by Fisher scoring."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.inference.linear import Linear, for_each_column
from hsbi.inference.scores import CountNoise

_ROUNDS = 40
# The link of no row moves further than this in a round.
_MAX_STEP = 1.0
# Relative to the mean information of a column.
_RIDGE = 1e-6
_MIN_DISPERSION, _MAX_DISPERSION = 1e-5, 2.0


def fit_count_linear(features: Array, counts: Array, weights: Array, noise: CountNoise) -> Linear:
    """Fit link(mean) = X a, with one dispersion for each entry.

    The score of a is X^T ((y - m) m' / v) with m' the derivative of the mean by its link and v the variance, its Fisher
    information X^T (m'^2 / v) X. The dispersion is that of (y - m)^2, weighted by 1 / v^2.

    Args:
        features: `[rows, features]`.
        counts: `[rows, d]`.
        weights: `[rows]`.
        noise: The distribution of the counts.
    """
    ones = jnp.ones((features.shape[0], 1), features.dtype)
    design = jnp.concatenate([features, ones], axis=-1)
    units = jnp.sqrt(weights @ design**2 / jnp.sum(weights))
    units = jnp.where(units > 0, units, 1.0)
    design = design / units[None, :]

    def solve(gram: Array, moment: Array) -> Array:
        ridge = _RIDGE * jnp.trace(gram) / gram.shape[0] + 1e-12
        return jnp.linalg.solve(gram + ridge * jnp.eye(gram.shape[0]), moment)

    if jnp.ndim(noise.upper) > 1:
        # One bound for each row.
        noise = dataclasses.replace(noise, upper=noise.upper[:, 0])

    def fit_one(count: Array) -> tuple[Array, Array]:
        def improve(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            coefficients, dispersion = state
            link = design @ coefficients
            mean, slope = jax.jvp(noise.mean, (link,), (jnp.ones_like(link),))
            variance = noise.variance(link, jnp.full_like(link, jnp.log(dispersion))) + 1e-6
            information = weights * slope**2 / variance
            step = solve(
                design.T @ (design * information[:, None]), design.T @ (weights * (count - mean) * slope / variance)
            )
            most = jnp.max(jnp.abs(design @ step))
            coefficients = coefficients + step * jnp.minimum(1.0, _MAX_STEP / (most + 1e-9))
            return (coefficients, _find_dispersion(count, mean, variance, weights, noise, dispersion)), None

        start = _start_link(count, noise)
        coefficients = solve(design.T @ (design * weights[:, None]), design.T @ (weights * start))
        start_dispersion = jnp.asarray(0.1, design.dtype)
        (coefficients, dispersion), _ = jax.lax.scan(improve, (coefficients, start_dispersion), None, length=_ROUNDS)
        constant = jnp.zeros(design.shape[1]).at[-1].set(jnp.log(dispersion))
        return coefficients, constant

    location, log_dispersion = for_each_column(fit_one, counts, design.size)
    return Linear(location / units[:, None], log_dispersion / units[:, None])


def _start_link(count: Array, noise: CountNoise) -> Array:
    if noise.bounded:
        return jnp.log(count + 0.5) - jnp.log(noise.upper - count + 0.5)
    return jnp.log(count + 0.5)


def _find_dispersion(
    count: Array, mean: Array, variance: Array, weights: Array, noise: CountNoise, dispersion: Array
) -> Array:
    """Give the dispersion that explains squared deviations beyond what the mean explains."""
    if noise.bounded:
        # The variance is (1 + dispersion) times that of a binomial.
        ratio = (1.0 + dispersion) * (count - mean) ** 2 / variance
        found = jnp.sum(weights * jnp.minimum(ratio, 50.0)) / jnp.sum(weights) - 1.0
    else:
        own = weights * mean**2 / variance**2
        found = jnp.sum(own * ((count - mean) ** 2 - mean)) / (jnp.sum(own * mean**2) + 1e-12)
    return jnp.clip(found, _MIN_DISPERSION, _MAX_DISPERSION)

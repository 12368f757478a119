"""Linear location-scale regression, solved rather than trained."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

# Fisher scoring converges in a few rounds, but its bounded steps take about 20 where scales span six decades.
_ROUNDS = 30
# A squared residual counts at most this much in a round, so that one wild row cannot throw the scales off.
_MAX_SQUARED_RESIDUAL = 50.0
# No coefficient of the log scale moves further than this in a round.
_MAX_STEP = 1.0
# Coefficients of the log scale are dropped, the weakest first, until each is this large in squared standard errors. A
# scale that is off everywhere in the same direction is what biases the posterior of the globals most.
_MIN_STRENGTH = 4.0
_ROUNDS_AFTER_DROP = 3
_RIDGE = 1e-6
# Numbers that columns which are fitted at once may hold.
_MAX_HELD = 2**18


class Linear(NamedTuple):
    """Coefficients of location and log scale, with the intercept in the last row, `[features + 1, d]` each."""

    location: Array
    log_scale: Array

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Give location and log scale, `[..., d]` each."""
        ones = jnp.ones((*features.shape[:-1], 1), features.dtype)
        features = jnp.concatenate([features, ones], axis=-1)
        return features @ self.location, features @ self.log_scale


def fit_linear(features: Array, targets: Array, weights: Array) -> Linear:
    """Fit y = X a + exp(X b) r, r standard normal, by Fisher scoring.

    Given b, the maximum-likelihood a is weighted least squares. Given a, the score of b is X^T (r^2 - 1) and its Fisher
    information 2 X^T X. The two alternate. Then coefficients of b that are not significant are left out one by one:
    each that is fitted for nothing adds to the error of all scales.

    Args:
        features: `[rows, features]`.
        targets: `[rows, d]`.
        weights: `[rows]`. Weights that depend on the features alone leave the conditional distribution unbiased.
    """
    ones = jnp.ones((features.shape[0], 1), features.dtype)
    design = jnp.concatenate([features, ones], axis=-1)
    # In units of their own spread, columns meet the same ridge and the same bound on a step.
    units = jnp.sqrt(weights @ design**2 / jnp.sum(weights))
    units = jnp.where(units > 0, units, 1.0)
    design = design / units[None, :]
    information = 2.0 * _gram(design, weights)

    num_columns = design.shape[1]
    intercept = jnp.arange(num_columns) == num_columns - 1

    def fit_one(target: Array) -> tuple[Array, Array]:
        def improve(log_scale: Array, keep: Array, num_rounds: int) -> Array:
            masked = _restrict(information, keep)

            def improve_once(log_scale: Array, _: None) -> tuple[Array, None]:
                predicted = design @ log_scale
                location = _least_squares(design, target, weights, predicted)
                residual = (target - design @ location) * jnp.exp(-predicted)
                score = design.T @ (weights * (jnp.minimum(residual**2, _MAX_SQUARED_RESIDUAL) - 1.0))
                step = jnp.linalg.solve(masked, score * keep)
                return log_scale + step * jnp.minimum(1.0, _MAX_STEP / (jnp.max(jnp.abs(step)) + 1e-9)), None

            return jax.lax.scan(improve_once, log_scale, None, length=num_rounds)[0]

        def drop_weakest(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            log_scale, keep = state
            variance = jnp.diagonal(jnp.linalg.inv(_restrict(information, keep)))
            strength = jnp.where((keep > 0) & ~intercept, log_scale**2 / variance, jnp.inf)
            weakest = jnp.argmin(strength)
            keep = keep.at[weakest].multiply(strength[weakest] >= _MIN_STRENGTH)
            return (improve(log_scale * keep, keep, _ROUNDS_AFTER_DROP), keep), None

        everything = jnp.ones(num_columns)
        start = jnp.zeros(num_columns).at[-1].set(jnp.log(_spread(target, weights)))
        start = improve(start, everything, _ROUNDS)
        (log_scale, _), _ = jax.lax.scan(drop_weakest, (start, everything), None, length=num_columns - 1)
        return _least_squares(design, target, weights, design @ log_scale), log_scale

    location, log_scale = for_each_column(fit_one, targets, design.size)
    return Linear(location / units[:, None], log_scale / units[:, None])


def for_each_column(fit_one: Callable[[Array], tuple[Array, Array]], targets: Array, cost: int) -> tuple[Array, Array]:
    """Fit every column of targets `[rows, d]`, as many at once as memory allows; columns again in what is given.

    Args:
        fit_one: Gives coefficients of one column, `[features]` twice.
        targets: The columns.
        cost: Numbers that one column holds at once.
    """
    number = max(1, min(targets.shape[1], _MAX_HELD // max(cost, 1)))
    first, second = jax.lax.map(fit_one, targets.T, batch_size=number)
    return first.T, second.T


def _restrict(information: Array, keep: Array) -> Array:
    """Leave coefficients out of an information matrix, as if their variance were one and they were alone."""
    return information * keep[:, None] * keep[None, :] + jnp.diag(1.0 - keep)


def _spread(target: Array, weights: Array) -> Array:
    mean = jnp.sum(weights * target) / jnp.sum(weights)
    return jnp.sqrt(jnp.sum(weights * (target - mean) ** 2) / jnp.sum(weights) + 1e-12)


def _gram(design: Array, weights: Array) -> Array:
    gram = design.T @ (design * weights[:, None])
    return gram + _RIDGE * jnp.trace(gram) * jnp.eye(gram.shape[0])


def _least_squares(design: Array, target: Array, weights: Array, log_scale: Array) -> Array:
    """Solve weighted least squares with columns brought to unit length, as scales may span decades."""
    # Relative to the largest precision, and bounded below in ratio by what float32 can add up.
    root = jnp.sqrt(weights) * jnp.exp(-jnp.clip(log_scale - jnp.median(log_scale), -8.0, 8.0))
    scaled = design * root[:, None]
    length = jnp.sqrt(jnp.sum(scaled**2, axis=0)) + 1e-12
    scaled = scaled / length[None, :]
    gram = scaled.T @ scaled
    return jnp.linalg.solve(gram + _RIDGE * jnp.eye(gram.shape[0]), scaled.T @ (target * root)) / length

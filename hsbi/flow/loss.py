"""The flow-matching loss, masked and weighted."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hsbi.flow.path import SIGMA_MIN, align, interpolate, target_velocity


class Loss(NamedTuple):
    """A loss per sample and over the batch.

    Attributes:
        per_sample: Weighted mean squared error over the real entries of each sample; 0 for a sample without any.
        mean: Weighted mean squared error over all real entries of the batch.
    """

    per_sample: jax.Array
    mean: jax.Array


def draw_times(key: jax.Array, num_times: int, *, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """Draw times that are each uniform on [0, 1) and together evenly spread.

    One uniform offset shifts a regular grid, modulo 1. The mean over the batch of a function of time has less variance
    than with independent times.

    Args:
        key: A random key.
        num_times: How many to draw.
        dtype: Their dtype.
    """
    offset = jax.random.uniform(key, (), dtype)
    return (offset + jnp.arange(num_times, dtype=dtype) / num_times) % 1.0


def masked_loss(
    predicted: jax.Array,
    target: jax.Array,
    *,
    mask: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    event_ndim: int = 1,
) -> Loss:
    """Average squared errors over real entries.

    With entries e, mask m and weights w, a mean is sum_e w_e m_e (predicted_e - target_e)^2 / sum_e w_e m_e, so a
    common factor in the weights changes nothing and masked entries count neither above nor below, whatever they hold.

    Args:
        predicted: Velocities of the model, [*samples, *event].
        target: Velocities to learn, of the same shape.
        mask: True where an entry is real; the leading axes of `target`, 1 where it broadcasts. None means all are.
        weights: Non-negative weights of entries, shaped as `mask` may be.
        event_ndim: How many trailing axes make up one sample.

    Raises:
        ValueError: If the two shapes differ, `event_ndim` exceeds their rank, or mask or weights do not align.
    """
    if predicted.shape != target.shape:
        raise ValueError(
            f"The velocity has shape {predicted.shape}, but its target has {target.shape}. "
            "A velocity callable must return an array shaped like its first argument."
        )
    if not 0 <= event_ndim <= target.ndim:
        raise ValueError(f"event_ndim is {event_ndim}, but values of shape {target.shape} have {target.ndim} axes.")
    scale = jnp.ones(target.shape, target.dtype)
    if weights is not None:
        scale = scale * align(weights, target).astype(target.dtype)
    error = predicted - target
    if mask is not None:
        real = jnp.broadcast_to(align(mask, target).astype(bool), target.shape)
        scale = jnp.where(real, scale, 0.0)
        # Before squaring, so that what padding holds cannot reach the gradient either.
        error = jnp.where(real, error, 0.0)
    axes = tuple(range(target.ndim - event_ndim, target.ndim))
    total = jnp.sum(scale * error**2, axis=axes)
    count = jnp.sum(scale, axis=axes)
    return Loss(per_sample=_divide(total, count), mean=_divide(jnp.sum(total), jnp.sum(count)))


def flow_matching_loss(
    key: jax.Array,
    velocity: Callable[[jax.Array, jax.Array], jax.Array],
    x1: jax.Array,
    *,
    mask: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    event_ndim: int = 1,
    sigma_min: float = SIGMA_MIN,
) -> Loss:
    """Estimate the conditional flow-matching loss E |velocity(x_t, t) - u_t|^2 with one time and base draw per sample.

    The first axis of `x1` runs over the batch; its members get a time each, shared by everything inside them. The same
    key gives the same times and noise, which makes a validation loss comparable between steps.

    Args:
        key: A random key.
        velocity: The field to fit, called once with `x_t` shaped like `x1` and times of shape `[batch]`.
        x1: Data, [batch, ..., *event].
        mask: True where an entry is real; the leading axes of `x1`. Masked entries enter `velocity` as 0.
        weights: Weights of entries, such as one per level; the leading axes of `x1`, 1 where it broadcasts.
        event_ndim: How many trailing axes make up one sample.
        sigma_min: Standard deviation of the path at time 1.

    Returns:
        The losses; `per_sample` has the axes of `x1` in front of the event.
    """
    key_time, key_noise = jax.random.split(key)
    t = draw_times(key_time, x1.shape[0], dtype=x1.dtype)
    x0 = jax.random.normal(key_noise, x1.shape, x1.dtype)
    if mask is not None:
        real = align(mask, x1).astype(bool)
        x0, x1 = jnp.where(real, x0, 0.0), jnp.where(real, x1, 0.0)
    predicted = velocity(interpolate(x0, x1, t, sigma_min=sigma_min), t)
    target = target_velocity(x0, x1, sigma_min=sigma_min)
    return masked_loss(predicted, target, mask=mask, weights=weights, event_ndim=event_ndim)


def _divide(total: jax.Array, count: jax.Array) -> jax.Array:
    # The inner `where` keeps 0/0 out of the gradient of a sample that has no real entry.
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1.0), 0.0)

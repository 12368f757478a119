"""The conditional optimal-transport path between a standard normal base and the data.

With s = sigma_min, base draw x0 and data x1, the path is Gaussian around t x1 with standard deviation 1 - (1 - s) t:

    x_t = (1 - (1 - s) t) x0 + t x1
    u_t = dx_t/dt = x1 - (1 - s) x0 = (x1 - (1 - s) x_t) / (1 - (1 - s) t)
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

# Width of the path's end around a data point, in units of standardized data: far below any posterior of interest,
# far above float32 rounding in the division of `conditional_velocity`.
SIGMA_MIN = 1e-4


def align(leading: ArrayLike, like: jax.Array) -> jax.Array:
    """Append axes to an array of leading axes until it broadcasts against another array without rank promotion.

    Args:
        leading: A scalar, or an array whose axes are the first axes of `like`; axes of size 1 broadcast.
        like: The array to align with.

    Returns:
        `leading` unchanged if it is a scalar, else with trailing axes of size 1 up to the rank of `like`.

    Raises:
        ValueError: If the shape of `leading` is not the beginning of the shape of `like`.
    """
    leading = jnp.asarray(leading)
    head = like.shape[: leading.ndim]
    if len(head) < leading.ndim or any(size not in (1, want) for size, want in zip(leading.shape, head, strict=True)):
        raise ValueError(
            f"An array of shape {leading.shape} does not match the leading axes of values of shape {like.shape}. "
            f"Pass a scalar or a shape that is the beginning of {like.shape}, with 1 where it should broadcast."
        )
    if leading.ndim == 0:
        return leading
    return leading.reshape(leading.shape + (1,) * (like.ndim - leading.ndim))


def interpolate(x0: jax.Array, x1: jax.Array, t: ArrayLike, *, sigma_min: float = SIGMA_MIN) -> jax.Array:
    """Return the point of the path, x_t = (1 - (1 - sigma_min) t) x0 + t x1.

    Args:
        x0: Base draws, shaped like `x1`.
        x1: Data.
        t: Time, a scalar or the leading axes of `x1`.
        sigma_min: Standard deviation of the path at time 1.
    """
    t = align(t, x1)
    return (1.0 - (1.0 - sigma_min) * t) * x0 + t * x1


def target_velocity(x0: jax.Array, x1: jax.Array, *, sigma_min: float = SIGMA_MIN) -> jax.Array:
    """Return the velocity of the path through `x0` and `x1`, which is constant in time: x1 - (1 - sigma_min) x0."""
    return x1 - (1.0 - sigma_min) * x0


def conditional_velocity(x: jax.Array, x1: jax.Array, t: ArrayLike, *, sigma_min: float = SIGMA_MIN) -> jax.Array:
    """Return the conditional field u_t(x | x1) = (x1 - (1 - sigma_min) x) / (1 - (1 - sigma_min) t).

    It equals `target_velocity` along the path; training uses that form, which has no division.

    Args:
        x: Points, shaped like `x1`.
        x1: Data.
        t: Time, a scalar or the leading axes of `x1`.
        sigma_min: Standard deviation of the path at time 1; at 0 the field is singular at time 1.
    """
    t = align(t, x)
    return (x1 - (1.0 - sigma_min) * x) / (1.0 - (1.0 - sigma_min) * t)


def gaussian_velocity(x: jax.Array, t: ArrayLike, *, sigma_min: float = SIGMA_MIN) -> jax.Array:
    """Return the exact marginal velocity for standard normal data, an analytic skip for networks.

    With a = 1 - (1 - s) t, both x_t = a x0 + t x1 and u = x1 - (1 - s) x0 are Gaussian, so

        E[u | x_t = x] = cov(u, x_t) / var(x_t) x = (t - a (1 - s)) / (a^2 + t^2) x.

    The factor is half the time derivative of log(a^2 + t^2), hence the flow maps x0 to sqrt(a^2 + t^2) x0 and the base
    to N(0, 1 + s^2) at time 1. A network that is added to it only has to learn the departure from a Gaussian.

    Args:
        x: Points.
        t: Time, a scalar or the leading axes of `x`.
        sigma_min: Standard deviation of the path at time 1.
    """
    t = align(t, x)
    slope = 1.0 - sigma_min
    spread = 1.0 - slope * t
    return (t - spread * slope) / (spread**2 + t**2) * x

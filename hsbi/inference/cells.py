"""The standard normal within an interval, stable in single precision far out and for narrow intervals."""

import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr, ndtri

# Beyond this many scales the normal is cut off: float32 has no logarithms of its mass there that could be subtracted.
_FAR = 12.0
_SMALLEST = 1e-10
# Beyond this many scales the inverse distribution function has no precision left.
_FAR_INVERSE = 5.0


def log_mass(low: Array, high: Array) -> Array:
    """Give log(Phi(high) - Phi(low)), by the tail on whose side the interval lies."""
    left, right, _ = _nearer_tail(low, high)
    upper = log_ndtr(right)
    return upper + jnp.log(jnp.maximum(-jnp.expm1(log_ndtr(left) - upper), _SMALLEST))


def truncated_normal(uniform: Array, low: Array, high: Array) -> Array:
    """Map uniform numbers to a standard normal within an interval, by its inverse distribution function.

    Where the whole interval lies far out, draws are uniform in it.
    """
    left, right, flipped = _nearer_tail(low, high)
    upper = log_ndtr(right)
    share = jnp.exp(log_ndtr(left) - upper)
    mass = jnp.exp(upper) * (share + uniform * (1.0 - share))
    inside = ndtri(jnp.clip(mass, _SMALLEST, 1.0 - 1e-7))
    far = left + uniform * (right - left)
    value = jnp.clip(jnp.where(right < -_FAR_INVERSE, far, inside), left, right)
    return jnp.where(flipped, -value, value)


def _nearer_tail(low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Mirror intervals that lie to the right of zero, where the distribution function is too close to one."""
    low, high = jnp.clip(low, -_FAR, _FAR - 1e-3), jnp.clip(high, 1e-3 - _FAR, _FAR)
    flipped = low + high > 0
    return jnp.where(flipped, -high, low), jnp.where(flipped, -low, high), flipped

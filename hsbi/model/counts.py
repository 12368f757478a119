"""Counts that a simulator in JAX returns as floating-point numbers, and what stands for those that are none.

An integer can be neither NaN nor a fraction, and compiled code cannot raise. What is not finite or too large becomes
the smallest integer. A fraction becomes one of the next integers, which tell between which whole numbers it lies, so
that it can be refused by name. Both lie outside every count support.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

# Fractions are told apart up to this size; larger ones are told as this.
_LARGEST = 2**20


def encode_counts(value: Array, dtype: np.dtype) -> Array:
    """Cast floating-point numbers to integers, and mark those that are no whole numbers.

    Args:
        value: The numbers.
        dtype: A signed integer type.
    """
    info = jnp.iinfo(dtype)
    below = jnp.floor(value)
    usable = (value > info.min) & (value < info.max)
    place = jnp.clip(below, -_LARGEST, _LARGEST).astype(dtype) + jnp.asarray(_LARGEST, dtype)
    fraction = jnp.asarray(info.min + 1, dtype) + place
    whole = jnp.where(usable, below, 0.0).astype(dtype)
    return jnp.where(usable, jnp.where(value == below, whole, fraction), jnp.asarray(info.min, dtype))


def find_fractions(value: np.ndarray) -> np.ndarray:
    """Say which integers stand for fractions."""
    low = np.iinfo(value.dtype).min
    return (value > low) & (value <= low + 1 + 2 * _LARGEST)


def whole_below(value: np.signedinteger) -> int:
    """Give the largest whole number below the fraction that an integer stands for."""
    return int(value) - (int(np.iinfo(value.dtype).min) + 1) - _LARGEST

"""A residual multilayer perceptron, the workhorse of heads, fields and encoders."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

# Fixed frequencies of flow time; four octaves resolve the field's change near both ends.
_TIME_FREQUENCIES = 4


class ResidualMLP(nn.Module):
    """Apply dense layers with normalized residual steps between them.

    Attributes:
        width: Units of hidden layers.
        depth: Number of hidden layers.
        out: Units of the output.
        zero: Whether the output starts at zero, so that what it is added to starts unchanged.
        dtype: Type of the computation; parameters stay float32.
    """

    width: int
    depth: int
    out: int
    zero: bool = False
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map `[..., features]` to `[..., out]`."""
        dtype = jnp.dtype(self.dtype)
        hidden = nn.Dense(self.width, dtype=dtype)(x)
        for _ in range(self.depth - 1):
            normalized = nn.LayerNorm(dtype=dtype)(hidden)
            hidden = hidden + nn.Dense(self.width, dtype=dtype)(nn.silu(normalized))
        kernel_init = nn.initializers.zeros if self.zero else nn.initializers.lecun_normal()
        return nn.Dense(self.out, dtype=dtype, kernel_init=kernel_init)(nn.silu(hidden)).astype(jnp.float32)


def time_features(t: Array, like: Array) -> Array:
    """Give sinusoidal features of flow time for every leading index of `like`.

    Args:
        t: A scalar, or the leading axes of `like`.
        like: An array `[..., d]`.

    Returns:
        Features of shape `[..., 9]`.
    """
    lead = like.shape[:-1]
    t = jnp.asarray(t, jnp.float32)
    t = jnp.broadcast_to(t.reshape(t.shape + (1,) * (len(lead) - t.ndim)), lead)[..., None]
    angles = jnp.pi * jnp.concatenate([t * float(k) for k in range(1, _TIME_FREQUENCIES + 1)], axis=-1)
    return jnp.concatenate([t, jnp.sin(angles), jnp.cos(angles)], axis=-1)


def compress(x: Array) -> Array:
    """Compress tails: linear near zero, logarithmic far out."""
    return jnp.arcsinh(x)


def broadcast_features(parts: list[Array], lead: tuple[int, ...]) -> Array:
    """Concatenate features along the last axis after broadcasting their leading axes to `lead`.

    A part with fewer leading axes belongs to the first of them.
    """

    def fit(part: Array) -> Array:
        missing = len(lead) - (part.ndim - 1)
        part = part.reshape(part.shape[:-1] + (1,) * missing + part.shape[-1:])
        return jnp.broadcast_to(part, (*lead, part.shape[-1]))

    return jnp.concatenate([fit(part) for part in parts], axis=-1)


def apply(module: nn.Module, weights: Any, *args: Any, method: str | None = None) -> Any:
    """Run a module, or one of its methods, with the given weights; the only way networks are run."""
    return module.apply(weights, *args, method=method)

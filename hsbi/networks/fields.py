"""Velocity fields: departures from the Gaussian field, which the flow adds."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from hsbi.networks.attention import Block
from hsbi.networks.mlp import ResidualMLP, broadcast_features, compress, time_features


class MLPField(nn.Module):
    """The velocity of a vector given a context, by a residual network that starts at zero.

    Attributes:
        dim: Dimension of the vector.
        width: Units of hidden layers.
        depth: Hidden layers.
        dtype: Type of the computation.
    """

    dim: int
    width: int = 64
    depth: int = 3
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array, t: Array, context: Array) -> Array:
        """Map points `[..., d]`, times and contexts to velocities; a context may have fewer leading axes."""
        parts = [x, compress(x), time_features(t, x), context]
        features = broadcast_features(parts, x.shape[:-1])
        return ResidualMLP(self.width, self.depth, self.dim, zero=True, dtype=self.dtype)(features)


class PointField(nn.Module):
    """The velocity of several points of one function, which see each other by attention.

    Attributes:
        dim: Width of a point's value.
        width: Width of tokens.
        num_blocks: Transformer blocks.
        heads: Attention heads.
        dtype: Type of the computation.
    """

    dim: int
    width: int = 64
    num_blocks: int = 2
    heads: int = 4
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array, t: Array, context: Array, mask: Array | None = None) -> Array:
        """Map points `[..., P, d]`, times and contexts `[..., P, features]` to velocities.

        Args:
            x: Values on their way.
            t: Times, a scalar or leading axes of `x`.
            context: What each point is conditioned on, its functional input among it.
            mask: `[..., P]`, true where a point is real.
        """
        real = jnp.ones(x.shape[:-1], bool) if mask is None else mask
        features = broadcast_features([x, compress(x), time_features(t, x), context], x.shape[:-1])
        tokens = nn.Dense(self.width, dtype=jnp.dtype(self.dtype))(features)
        for _ in range(self.num_blocks):
            tokens = Block(self.width, self.heads, dtype=self.dtype)(tokens, real)
        return ResidualMLP(self.width, 2, self.dim, zero=True, dtype=self.dtype)(tokens)

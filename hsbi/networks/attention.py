"""A masked transformer block."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array


class Block(nn.Module):
    """Attend within a set of tokens, then transform each token, both as normalized residual steps.

    Attributes:
        width: Width of tokens.
        heads: Attention heads.
        expansion: Width of the feed-forward layer in multiples of `width`.
        dtype: Type of the computation.
    """

    width: int
    heads: int
    expansion: int = 2
    dtype: str = "float32"

    @nn.compact
    def __call__(self, tokens: Array, mask: Array) -> Array:
        """Map `[..., T, width]` to the same shape.

        Args:
            tokens: The tokens.
            mask: `[..., T]`, true where a token is real; masked tokens are attended to by none.
        """
        dtype = jnp.dtype(self.dtype)
        normalized = nn.LayerNorm(dtype=dtype)(tokens)
        allowed = jnp.broadcast_to(mask[..., None, None, :], (*mask.shape[:-1], 1, mask.shape[-1], mask.shape[-1]))
        attended = nn.MultiHeadDotProductAttention(num_heads=self.heads, qkv_features=self.width, dtype=dtype)(
            normalized, mask=allowed
        )
        tokens = tokens + attended
        normalized = nn.LayerNorm(dtype=dtype)(tokens)
        hidden = nn.silu(nn.Dense(self.expansion * self.width, dtype=dtype)(normalized))
        return tokens + nn.Dense(self.width, dtype=dtype)(hidden)


def masked_mean(tokens: Array, mask: Array, axis: int) -> Array:
    """Average tokens over an axis, counting only real ones; zero where there are none.

    Args:
        tokens: `[..., T, width]`.
        mask: `[..., T]`.
        axis: The axis of `T` in `tokens`.
    """
    weights = mask[..., None].astype(tokens.dtype)
    return jnp.sum(tokens * weights, axis=axis) / jnp.maximum(jnp.sum(weights, axis=axis), 1.0)

"""The embedding of tokens: value, variable, position, group, functional input and flow time."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.networks.attention import Block

# Fixed frequencies of functional inputs that are scaled to [0, 1].
_BANDWIDTH, _FREQUENCY_SEED = 1.5, 20240229


class TokenEmbedding(nn.Module):
    """Concatenate a token's value, the embeddings of its fields and the flow time, and project them.

    Attributes:
        width: Width of the embedding.
        num_variables: Entries in the table of variables.
        num_positions: Entries in the table of positions.
        num_groups: Entries in the table of groups; 0 leaves groups out.
        field_width: Width of the embedding of each field.
        num_frequencies: Frequencies of functional inputs.
        dtype: Type of the computation.
    """

    width: int
    num_variables: int
    num_positions: int
    num_groups: int
    field_width: int = 16
    num_frequencies: int = 16
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, values: Array, inputs: Array, t: Array, fields: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> Array:
        """Embed tokens.

        Args:
            values: `[..., T, d]`.
            inputs: `[..., T, d_inputs]`.
            t: Flow time, a scalar or leading axes of `values`.
            fields: Variable, position and group of each token, `[T]` each.
        """
        lead = values.shape[:-1]
        tables = [("variable", self.num_variables), ("position", self.num_positions), ("group", self.num_groups)]
        parts = [values]
        for (name, size), index in zip(tables, fields, strict=True):
            if size:
                embedded = nn.Embed(size, self.field_width, name=name)(jnp.asarray(index))
                parts.append(jnp.broadcast_to(_lead(embedded, len(lead) - 1), (*lead, self.field_width)))
        if inputs.shape[-1]:
            frequencies = _frequencies(inputs.shape[-1], self.num_frequencies)
            angles = 2 * jnp.pi * inputs @ jnp.asarray(frequencies)
            parts += [jnp.cos(angles), jnp.sin(angles)]
        t = jnp.asarray(t, values.dtype)
        parts.append(jnp.broadcast_to(t.reshape(t.shape + (1,) * (values.ndim - t.ndim)), (*lead, 1)))
        return nn.Dense(self.width, dtype=jnp.dtype(self.dtype))(jnp.concatenate(parts, axis=-1))


class JointField(nn.Module):
    """The velocity of all parameter tokens by one encoder-only transformer with full attention.

    Attributes:
        embedding: The token embedding.
        num_blocks: Transformer blocks.
        heads: Attention heads.
        out: Width of the velocity of a token.
        dtype: Type of the computation.
    """

    embedding: TokenEmbedding
    num_blocks: int
    heads: int
    out: int
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self,
        values: Array,
        inputs: Array,
        mask: Array,
        t: Array,
        fields: tuple[np.ndarray, np.ndarray, np.ndarray],
        num_parameters: int,
    ) -> Array:
        """Give the velocity of the first `num_parameters` tokens, `[..., num_parameters, out]`.

        Args:
            values: `[..., T, d]`.
            inputs: `[..., T, d_inputs]`.
            mask: `[..., T]`, true where a token is real.
            t: Flow time.
            fields: Variable, position and group of each token.
            num_parameters: Tokens that carry parameters.
        """
        tokens = self.embedding(values, inputs, t, fields)
        for _ in range(self.num_blocks):
            tokens = Block(self.embedding.width, self.heads, dtype=self.dtype)(tokens, mask)
        tokens = nn.LayerNorm()(tokens[..., :num_parameters, :])
        return nn.Dense(self.out, name="readout")(tokens).astype(jnp.float32)


def _lead(array: Array, number: int) -> Array:
    return array.reshape((1,) * number + array.shape)


def _frequencies(dim: int, number: int) -> np.ndarray:
    rng = np.random.default_rng(_FREQUENCY_SEED)
    return (_BANDWIDTH * rng.standard_normal((dim, number))).astype(np.float32)

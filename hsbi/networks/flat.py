"""The velocity of all parameters by one multilayer perceptron, for comparison with attention."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array


class FlatField(nn.Module):
    """Concatenate the values and functional inputs of all tokens, and map them to the velocity of all parameters.

    It takes the arguments of `JointField`. Variable, position and group of a token are given by its place.

    Attributes:
        width: Units of hidden layers.
        depth: Hidden layers.
        out: Width of the velocity of a token.
        dtype: Type of the computation.
    """

    width: int
    depth: int
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
            mask: `[..., T]`, true where a token is real; others enter as zeros.
            t: Flow time, a scalar or leading axes of `values`.
            fields: Not used.
            num_parameters: Tokens that carry parameters.
        """
        lead, dtype = values.shape[:-2], jnp.dtype(self.dtype)
        tokens = jnp.where(mask[..., None], jnp.concatenate([values, inputs], axis=-1), 0.0)
        t = jnp.asarray(t, values.dtype)
        t = jnp.broadcast_to(t.reshape(t.shape + (1,) * (len(lead) - t.ndim)), lead)
        hidden = jnp.concatenate([tokens.reshape(*lead, -1), t[..., None]], axis=-1)
        for _ in range(self.depth):
            hidden = nn.relu(nn.Dense(self.width, dtype=dtype)(hidden))
        out = nn.Dense(num_parameters * self.out, name="readout")(hidden)
        return out.reshape(*lead, num_parameters, self.out).astype(jnp.float32)

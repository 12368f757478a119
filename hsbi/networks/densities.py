"""Encoders joined to location-scale heads: the first stage of each conditional density."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from hsbi.networks.encoders import SetEncoder, SiteEncoder, SiteFeatures, add_moments
from hsbi.networks.heads import LINEAR, Gaussian, GaussianHead
from hsbi.networks.mlp import broadcast_features

# Correlations are predicted up to this dimension; their number grows with its square.
_MAX_FULL_DIM = 12
_HEAD = "head"


class GlobalNet(nn.Module):
    """Encode a data set and predict location and scale of the globals.

    Attributes:
        dim: Dimension of the globals.
        width: Units of layers.
        depth: Hidden layers.
        heads: Attention heads within a token set; 0 for none.
        dtype: Type of the computation.
    """

    dim: int
    width: int = 64
    depth: int = 2
    heads: int = 4
    dtype: str = "float32"

    @nn.compact
    def __call__(self, features: SiteFeatures) -> tuple[Array, Gaussian]:
        """Give the context `[..., context]` and the Gaussian of the globals."""
        context = SetEncoder(self.width, self.depth, self.heads, self.dtype)(features)
        full = self.dim <= _MAX_FULL_DIM
        return context, GaussianHead(self.dim, self.width, self.depth, full, self.dtype, name=_HEAD)(context)


def add_linear(weights: Any, change: Array) -> Any:
    """Add a linear map of the context to a `GlobalNet`'s locations.

    Args:
        weights: The weights of the network; they are not changed.
        change: Coefficients, the intercept in the last row, `[context + 1, dim]`.
    """
    changed = jax.tree.map(lambda array: array, weights)
    linear = changed["params"][_HEAD][LINEAR]
    change = jnp.pad(change, ((0, 0), (0, linear["bias"].shape[0] - change.shape[1])))
    linear["kernel"], linear["bias"] = linear["kernel"] + change[:-1], linear["bias"] + change[-1]
    return changed


class LocalNet(nn.Module):
    """Encode each site once, then predict its locals' location and scale given the globals.

    Attributes:
        dim: Dimension of a site's locals.
        width: Units of layers.
        depth: Hidden layers.
        heads: Attention heads within a token set; 0 for none.
        dtype: Type of the computation.
    """

    dim: int
    width: int = 64
    depth: int = 2
    heads: int = 4
    dtype: str = "float32"

    def setup(self) -> None:
        """Make the encoder, which does not see the globals, and the head, which does."""
        self.encoder = SiteEncoder(self.width, self.depth, self.heads, dtype=self.dtype)
        self.head = GaussianHead(self.dim, self.width, self.depth, self.dim <= _MAX_FULL_DIM, self.dtype)

    def encode(self, features: SiteFeatures) -> Array:
        """Encode sites, `[..., S, encoding]`."""
        static = add_moments(features)
        return jnp.concatenate([self.encoder(static, features.sets), static], axis=-1)

    def predict(self, encoding: Array, relative: Array) -> tuple[Array, Gaussian]:
        """Give the context and the Gaussian of the locals.

        Args:
            encoding: What `encode` gave, `[..., S, encoding]`.
            relative: What depends on the globals, `[..., S, features]`.
        """
        context = broadcast_features([encoding, relative], relative.shape[:-1])
        return context, self.head(context)

    def __call__(self, features: SiteFeatures, relative: Array) -> tuple[Array, Gaussian]:
        """Encode and predict."""
        return self.predict(self.encode(features), relative)

"""Encoders of one site's observations and of a set of sites."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from hsbi.networks.attention import Block, masked_mean
from hsbi.networks.mlp import ResidualMLP, broadcast_features

# Spread over sites or tokens is bounded from below by this, in units of standardized features.
_MIN_SPREAD = 1e-3
# Features come with tails compressed beyond this many scales; beyond 1,000 scales they stay compressed.
_KNEE = 3.0
_MAX_COMPRESSED = 19.5
# Attention pooling has this many queries, each over a slice of the encoding of this width.
_NUM_QUERIES, _QUERY_WIDTH = 4, 16


class TokenSet(NamedTuple):
    """Several observations of one variable at each site.

    Attributes:
        values: Values with the features of their functional inputs, `[..., S, T, features]`.
        mask: `[..., S, T]`, true where an observation is real.
    """

    values: Array
    mask: Array


class SiteFeatures(NamedTuple):
    """What networks see of the data.

    Attributes:
        static: Features that every site has: observations made once, covariates, `[..., S, features]`.
        sets: Observations made several times.
        site_mask: `[..., S]`, true where a site is real and tells something.
        known: `[..., S, features]`, true where a static feature is known, or None where all are.
    """

    static: Array
    sets: tuple[TokenSet, ...]
    site_mask: Array
    known: Array | None = None


def add_moments(features: SiteFeatures) -> Array:
    """Append mean and log spread of each token set to the static features."""
    parts = [features.static]
    for values, mask in features.sets:
        mean, spread = _moments(values, jnp.broadcast_to(mask[..., None], values.shape))
        count = jnp.log1p(jnp.sum(mask, axis=-1, dtype=jnp.float32))[..., None]
        parts += [mean, jnp.log(spread), count]
    return jnp.concatenate(parts, axis=-1)


def _known(features: SiteFeatures) -> Array:
    """Say which features that `add_moments` gives are known, at sites that are real, `[..., S, F]`."""
    static = jnp.ones(features.static.shape, bool) if features.known is None else features.known
    parts = [static]
    for values, mask in features.sets:
        real = jnp.any(mask, axis=-1, keepdims=True)
        parts.append(jnp.broadcast_to(real, (*real.shape[:-1], 2 * values.shape[-1])))
        parts.append(jnp.ones_like(real))
    return jnp.concatenate(parts, axis=-1) & features.site_mask[..., None]


def _moments(values: Array, mask: Array) -> tuple[Array, Array]:
    """Give mean and spread over the second last axis, by feature, counting only what the mask `[..., T, F]` keeps."""
    weights = mask.astype(values.dtype)
    number = jnp.maximum(jnp.sum(weights, axis=-2), 1.0)
    mean = jnp.sum(values * weights, axis=-2) / number
    deviation = (values - mean[..., None, :]) * weights
    return mean, jnp.sqrt(jnp.sum(deviation**2, axis=-2) / number + _MIN_SPREAD**2)


def _decompress(features: Array) -> Array:
    """Undo the compression of tails, within bounds: variances over sites are sufficient only without it."""
    return _KNEE * jnp.sinh(jnp.clip(features, -_MAX_COMPRESSED, _MAX_COMPRESSED) / _KNEE)


class SiteEncoder(nn.Module):
    """Encode each site from its own features alone.

    Attributes:
        width: Units of the encoding.
        depth: Hidden layers.
        heads: Attention heads within a token set; 0 averages what is learned of single tokens.
        num_blocks: Transformer blocks within a token set.
        dtype: Type of the computation.
    """

    width: int
    depth: int = 2
    heads: int = 4
    num_blocks: int = 1
    dtype: str = "float32"

    @nn.compact
    def __call__(self, static: Array, sets: tuple[TokenSet, ...]) -> Array:
        """Map features to encodings `[..., S, width]`."""
        parts = [static]
        for values, mask in sets:
            if self.heads == 0:
                learned = ResidualMLP(self.width // 2, 1, self.width // 2, dtype=self.dtype)(values)
                parts.append(masked_mean(learned, mask, -2))
                continue
            tokens = nn.Dense(self.width, dtype=jnp.dtype(self.dtype))(values)
            for _ in range(self.num_blocks):
                tokens = Block(self.width, self.heads, dtype=self.dtype)(tokens, mask)
            parts.append(masked_mean(tokens, mask, -2))
        features = jnp.concatenate(parts, axis=-1)
        return ResidualMLP(self.width, self.depth, self.width, dtype=self.dtype)(features)


class SetEncoder(nn.Module):
    """Encode a set of sites into one context; the order of sites does not matter, and padding does not either.

    Each site is seen as it is and relative to the others: centered and scaled by its features' mean and spread over
    sites. Encodings are pooled by their mean and by attention. Cost is linear in sites.

    Attributes:
        width: Units of encodings and of the context.
        depth: Hidden layers.
        heads: Attention heads within a token set; 0 averages what is learned of single tokens.
        dtype: Type of the computation.
    """

    width: int
    depth: int = 2
    heads: int = 4
    dtype: str = "float32"

    @nn.compact
    def __call__(self, features: SiteFeatures) -> Array:
        """Map features to contexts `[..., context]`."""
        static, mask, known = add_moments(features), features.site_mask, _known(features)
        center, spread = _moments(static, known)
        relative = jnp.where(known, (static - center[..., None, :]) / spread[..., None, :], 0.0)
        plain_center, plain_spread = _moments(_decompress(static), known)
        parts = [center, jnp.log(spread), jnp.arcsinh(plain_center), jnp.log(plain_spread)]
        summary = jnp.concatenate(parts, axis=-1)
        seen = broadcast_features([static, jnp.arcsinh(relative)], static.shape[:-1])
        around = jnp.broadcast_to(summary[..., None, :], (*static.shape[:-1], summary.shape[-1]))
        encoded = SiteEncoder(self.width, self.depth, self.heads, dtype=self.dtype)(
            jnp.concatenate([seen, around], axis=-1), features.sets
        )
        pooled = [masked_mean(encoded, mask, -2), self._attend(encoded, mask), summary]
        pooled.append(jnp.log1p(jnp.sum(mask, axis=-1, dtype=jnp.float32))[..., None])
        together = jnp.concatenate(pooled, axis=-1)
        context = ResidualMLP(self.width, self.depth, self.width, dtype=self.dtype)(together)
        return jnp.concatenate([context, summary], axis=-1)

    def _attend(self, encoded: Array, mask: Array) -> Array:
        scores = nn.Dense(_NUM_QUERIES)(encoded)
        weights = jax.nn.softmax(jnp.where(mask[..., None], scores, -1e9), axis=-2)
        values = nn.Dense(_QUERY_WIDTH)(encoded)
        pooled = jnp.einsum("...sq,...sw->...qw", weights, values)
        return pooled.reshape(*pooled.shape[:-2], _NUM_QUERIES * _QUERY_WIDTH)

"""The factorized posterior: globals given all sites, then each site's locals given the globals and its own data.

Both densities are built alike: location and scale from a network trained by likelihood, then a flow on the residual,
which starts as the identity. The locals' residual is taken relative to the surrogates' own linearization.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.flow import gaussian_velocity, integrate
from hsbi.flow import log_prob as flow_log_prob
from hsbi.inference.arrays import Coordinates, Latents
from hsbi.inference.batch import Batch, Observed, View, at_sites
from hsbi.inference.linearize import Linearized, linearize
from hsbi.inference.surrogate import Surrogate
from hsbi.model.program import Program
from hsbi.networks.densities import GlobalNet, LocalNet
from hsbi.networks.encoders import SiteFeatures
from hsbi.networks.fields import MLPField
from hsbi.networks.heads import Gaussian, color, whiten
from hsbi.networks.mlp import apply, compress
from hsbi.training import FitConfig

_HEAD = FitConfig(num_steps=3000, epoch_steps=250, patience=None)
_FLOW = FitConfig(num_steps=1500, epoch_steps=250, patience=None)
# Site rows, and observed values, held in memory at once while drawing locals.
_MAX_ROWS, _MAX_VALUES = 2**15, 2**18


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactorizedConfig:
    """Hyperparameters of the factorized posterior.

    Attributes:
        width: Units of layers.
        depth: Hidden layers of encoders and heads.
        flow_depth: Hidden layers of the flows.
        heads: Attention heads within a site.
        batch_size: Data sets in a batch at most; fewer where sites are many.
        batch_tokens: Tokens in a batch for the globals at most, before the number of data sets falls to a quarter. A
            site has one token, or as many as it has points or replicates.
        local_tokens: Tokens in a batch for the locals, about.
        attention: Whether values of a site attend to each other; their features are averaged otherwise, which is
            cheaper. By default not where data sets are so large that batches shrink, and draws are refined anyway.
        num_ode_steps: Midpoint steps of a draw.
        head: Training of locations and scales.
        flow: Training of flows.
        refine: Whether draws given a data set are moved to the posterior that the surrogates' densities imply, where
            they have no flow.
        dtype: Type of the networks' computation; `bfloat16` suits GPUs.
    """

    width: int = 64
    depth: int = 2
    flow_depth: int = 3
    heads: int = 4
    batch_size: int = 128
    batch_tokens: int = 12_800
    local_tokens: int = 1024
    attention: bool | None = None
    num_ode_steps: int = 12
    head: FitConfig = _HEAD
    flow: FitConfig = _FLOW
    refine: bool = True
    dtype: str = "float32"

    def num_sets(self, num_tokens: int, level: str) -> int:
        """Choose the data sets in a batch, given the tokens of a data set."""
        if level == "global":
            return max(self.batch_size // 4, min(self.batch_size, self.batch_tokens // num_tokens))
        return max(4, min(self.batch_size, self.local_tokens // num_tokens))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """The modules of one level, hashable and without weights."""

    level: str
    dim: int
    config: FactorizedConfig

    @property
    def net(self) -> GlobalNet | LocalNet:
        """The network of location and scale."""
        kind = GlobalNet if self.level == "global" else LocalNet
        config = self.config
        heads = 0 if config.attention is False else config.heads
        return kind(self.dim, config.width, config.depth, heads, config.dtype)

    @property
    def field(self) -> MLPField:
        """The network of the flow."""
        return MLPField(self.dim, self.config.width, self.config.flow_depth, self.config.dtype)

    def velocity(self, weights: Any, context: Array) -> Callable[[Array, Array], Array]:
        """Give the flow's velocity, which is that of a standard normal before training."""

        def velocity(x: Array, t: Array) -> Array:
            return gaussian_velocity(x, t) + apply(self.field, weights, x, t, context)

        return velocity


class Weights(NamedTuple):
    """Weights of one level's two stages."""

    head: Any
    flow: Any


class Task(NamedTuple):
    """What a batch asks of a level, data sets first.

    Attributes:
        features: The data.
        relative: For locals, what depends on the globals, `[B, S, F]`; None for globals.
        target: Coordinates to be predicted, `[B, d]` or `[B, S, d]`.
        mask: Which targets are real, `[B]` or `[B, S]`.
    """

    features: SiteFeatures
    relative: Array | None
    target: Array
    mask: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Posterior:
    """An amortized posterior of all latents given the data of any number of sites.

    Attributes:
        config: Hyperparameters.
        coordinates: The latents' coordinates.
        view: What networks see of observations.
        surrogates: The surrogates that locals are linearized by; empty without.
        global_weights: Weights for the globals, or None where there are none.
        local_weights: Weights for the locals, or None where there are none.
    """

    config: FactorizedConfig = dataclasses.field(metadata={"static": True})
    coordinates: Coordinates
    view: View
    surrogates: tuple[Surrogate, ...] = ()
    global_weights: Weights | None = None
    local_weights: Weights | None = None

    def level(self, level: str) -> Level:
        """Give the modules of a level."""
        return Level(level=level, dim=self.coordinates.dim(level), config=self.config)

    def sample(self, program: Program, observed: Observed, key: Array, num_draws: int) -> Latents:
        """Draw latents given one data set, `[num_draws, ...]`."""
        num_sites = observed.site_mask.shape[0]
        global_key, local_key = jax.random.split(key)
        noise = Latents(
            jax.random.normal(global_key, (num_draws, self.coordinates.dim("global"))),
            jax.random.normal(local_key, (num_draws, num_sites, self.coordinates.dim("local"))),
        )
        return self.transport(program, observed, noise)

    def transport(self, program: Program, observed: Observed, noise: Latents) -> Latents:
        """Map standard normal noise to draws given one data set, draw by draw and site by site.

        Permuting sites together with their noise permutes the draws.
        """
        features = self.view.features(observed)
        globals_ = self._transport_globals(features, noise.globals)
        if self.local_weights is None:
            return Latents(globals_, noise.locals)
        level, weights = self.level("local"), self.local_weights
        encoding = apply(level.net, weights.head, features, method="encode")
        num_draws, num_sites, _ = noise.locals.shape

        def transport_one(task: Latents) -> Array:
            base = self.linearized(program, task.globals, observed)
            relative = self.relative(program, task.globals, base, num_sites)
            context, gaussian = apply(level.net, weights.head, encoding, relative, method="predict")
            velocity = level.velocity(weights.flow, context)
            residual = integrate(velocity, task.locals, num_steps=self.config.num_ode_steps)
            return base.color(color(gaussian, residual))

        num_values = sum(value.size for value in observed.values.values())
        chunk = max(1, min(num_draws, _MAX_ROWS // num_sites, _MAX_VALUES // max(1, num_values)))
        locals_ = jax.lax.map(transport_one, Latents(globals_, noise.locals), batch_size=chunk)
        return Latents(globals_, locals_)

    def _transport_globals(self, features: SiteFeatures, noise: Array) -> Array:
        level, weights = self.level("global"), self.global_weights
        if weights is None:
            return noise

        def repeat(array: Array) -> Array:
            return jnp.broadcast_to(array[None], (noise.shape[0], *array.shape))

        context, gaussian = apply(level.net, weights.head, features)
        velocity = level.velocity(weights.flow, repeat(context))
        residual = integrate(velocity, noise, num_steps=self.config.num_ode_steps)
        return color(jax.tree.map(repeat, gaussian), residual)

    def log_prob(self, program: Program, observed: Observed, latents: Latents, *, num_steps: int = 32) -> Array:
        """Evaluate the log density of one draw in the standardized coordinates."""
        features = self.view.features(observed)
        total = jnp.zeros(())
        if self.global_weights is not None:
            level, weights = self.level("global"), self.global_weights
            context, gaussian = apply(level.net, weights.head, features)
            total += _log_density(level, weights, context[None], gaussian, latents.globals, num_steps)[0]
        if self.local_weights is not None:
            level, weights = self.level("local"), self.local_weights
            base = self.linearized(program, latents.globals, observed)
            relative = self.relative(program, latents.globals, base, observed.site_mask.shape[0])
            context, gaussian = apply(level.net, weights.head, features, relative)
            per_site = _log_density(level, weights, context, gaussian, base.whiten(latents.locals), num_steps)
            per_site += jnp.sum(jnp.log(jnp.diagonal(base.factor, axis1=-2, axis2=-1)), axis=-1)
            total += jnp.sum(per_site * observed.site_mask)
        return total

    def linearized(self, program: Program, globals_: Array, observed: Observed) -> Linearized:
        """Approximate each site's locals given the globals by the surrogates' linearization; the prior without any."""
        num_sites, dim = observed.site_mask.shape[0], self.coordinates.dim("local")
        if self.surrogates:
            return linearize(program, self.coordinates, self.surrogates, globals_, observed)
        return Linearized(jnp.zeros((num_sites, dim)), jnp.broadcast_to(jnp.eye(dim), (num_sites, dim, dim)))

    def relative(self, program: Program, globals_: Array, base: Linearized, num_sites: int) -> Array:
        """Give what the locals' networks see that depends on the globals, `[S, F]`."""
        locals_ = jnp.zeros((num_sites, self.coordinates.dim("local")))
        values = self.coordinates.decode(program, Latents(globals_, locals_))
        own = jnp.concatenate([compress(globals_), compress(self.coordinates.global_features(values))])
        return jnp.concatenate([jnp.broadcast_to(own[None], (num_sites, own.shape[0])), base.features()], axis=-1)

    def task(self, program: Program, batch: Batch, level: str) -> Task:
        """Turn a batch of data sets into what a level is trained on."""
        features = jax.vmap(self.view.features)(batch.observed)
        mask = batch.observed.site_mask
        if level == "global":
            return Task(features, None, batch.latents.globals, jnp.ones(mask.shape[0]))

        def one(index: Array, latents: Latents, observed: Observed) -> tuple[Array, Array]:
            own, _ = at_sites(program, observed.design, index)
            base = self.linearized(own, latents.globals, observed)
            return self.relative(own, latents.globals, base, mask.shape[1]), base.whiten(latents.locals)

        relative, target = jax.vmap(one)(batch.index, batch.latents, batch.observed)
        return Task(features, relative, target, mask.astype(jnp.float32))


def _log_density(
    level: Level, weights: Weights, context: Array, gaussian: Gaussian, target: Array, num_steps: int
) -> Array:
    residual = whiten(gaussian, target)
    rows = residual if residual.ndim == 2 else residual[None]
    density = flow_log_prob(level.velocity(weights.flow, context), rows, num_steps=num_steps)
    return density - jnp.sum(gaussian.log_scale, axis=-1).reshape(density.shape)

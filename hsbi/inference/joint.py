"""The joint posterior: all tokens of all sites in one transformer, in every step of the flow.

The cost of attention is quadratic in the number of sites. It is kept for comparison with the factorized posterior.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.flow import flow_matching_loss, integrate, integrate_adaptive
from hsbi.inference.arrays import Coordinates, Latents, join, split
from hsbi.inference.batch import Batch, Observed, Stored, Synthetic, View
from hsbi.model.program import Program
from hsbi.model.structure import Structure
from hsbi.networks.embedding import JointField, TokenEmbedding
from hsbi.networks.flat import FlatField
from hsbi.networks.mlp import apply, compress
from hsbi.tokens import Layout, Tokens, Variable, make_layout, pack, unpack
from hsbi.training import Checkpoint, FitConfig, Progress, fit, jit, no_progress

# Covariates make one more token per site, under a name that no NumPyro site has.
_COVARIATES = "(covariates)"
_FIT = FitConfig(num_steps=20_000, epoch_steps=100, learning_rate=1e-4, patience=20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointConfig:
    """Hyperparameters of the joint posterior; the defaults are the published ones.

    Attributes:
        width: Width of tokens.
        num_blocks: Transformer blocks; without attention, hidden layers.
        heads: Attention heads.
        grouping: Whether tokens carry a group embedding.
        attention: Whether tokens see each other by attention. If not, one multilayer perceptron takes them all, and the
            number of sites is fixed.
        shared: Whether the network also generates observations, so that `LF` needs no surrogates.
        batch_size: Data sets in a batch.
        num_ode_steps: Midpoint steps of a draw, or None for an adaptive solver.
        tolerance: Relative and absolute tolerance of the adaptive solver.
        chunk: Draws that are integrated at once.
        fit: Training.
        dtype: Type of the network's computation.
    """

    width: int = 256
    num_blocks: int = 2
    heads: int = 16
    grouping: bool = True
    attention: bool = True
    shared: bool = False
    batch_size: int = 100
    num_ode_steps: int | None = None
    tolerance: float = 1e-5
    chunk: int = 100
    fit: FitConfig = _FIT
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse what cannot be combined."""
        if self.shared and not self.attention:
            raise ValueError(
                "JointConfig has shared=True and attention=False, but the network of single sites and of many takes "
                "any number of tokens only with attention. Change one of them."
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class JointPosterior:
    """An amortized posterior of all latents by one transformer.

    Attributes:
        config: Hyperparameters.
        layout: The layout at the most sites trained for.
        coordinates: The latents' coordinates.
        view: What the network sees of observations.
        weights: The network's weights, or None before training.
    """

    config: JointConfig = dataclasses.field(metadata={"static": True})
    layout: Layout = dataclasses.field(metadata={"static": True})
    coordinates: Coordinates
    view: View
    weights: Any = None

    @classmethod
    def unfitted(
        cls, config: JointConfig, structure: Structure, coordinates: Coordinates, view: View, num_sites: int
    ) -> "JointPosterior":
        """Make a posterior without weights."""
        layout = dataclasses.replace(make_layout(structure), num_sites=num_sites)
        num_covariates = view.covariates.scaling.loc.shape[0]
        if num_covariates:
            own = Variable(
                name=_COVARIATES,
                level="observation",
                id=len(layout.variables),
                rows=1,
                size=num_covariates,
                width=layout.width,
            )
            layout = dataclasses.replace(layout, variables=(*layout.variables, own))
        return cls(config=config, layout=layout, coordinates=coordinates, view=view)

    @property
    def field(self) -> JointField | FlatField:
        """The network."""
        config, layout = self.config, self.layout
        if not config.attention:
            return FlatField(config.width, config.num_blocks, layout.width, config.dtype)
        embedding = TokenEmbedding(
            width=config.width,
            num_variables=len(layout.variables),
            num_positions=layout.num_positions,
            num_groups=layout.num_sites + 1 if config.grouping else 0,
            dtype=config.dtype,
        )
        return JointField(embedding, config.num_blocks, config.heads, layout.width, config.dtype)

    def sample(self, program: Program, observed: Observed, key: Array, num_draws: int) -> Latents:
        """Draw latents given one data set, `[num_draws, ...]`."""
        num_sites = observed.site_mask.shape[0]
        if num_sites > self.layout.num_sites:
            raise ValueError(
                f"The data have {num_sites} sites, but the joint posterior has group embeddings for "
                f"{self.layout.num_sites}. Train it with num_sites=(low, {num_sites}), or use FactorizedConfig."
            )
        if num_sites != self.layout.num_sites and not self.config.attention:
            raise ValueError(
                f"The data have {num_sites} sites, but without attention the joint posterior is for "
                f"{self.layout.num_sites} sites only. Pass data of as many, or use JointConfig(attention=True)."
            )
        layout = dataclasses.replace(self.layout, num_sites=num_sites)
        tokens = self._pack(layout, observed)
        shape = (layout.num_parameters, layout.width)

        def draw_some(keys: Array) -> Array:
            noise = jax.vmap(lambda own: jax.random.normal(own, shape))(keys)
            velocity = self._velocity(self.weights, layout, _repeat(tokens, keys.shape[0]), None)
            if self.config.num_ode_steps is not None:
                return integrate(velocity, noise, num_steps=self.config.num_ode_steps)
            tolerance = self.config.tolerance
            return integrate_adaptive(velocity, noise, rtol=tolerance, atol=tolerance)

        chunk = next(size for size in range(min(self.config.chunk, num_draws), 0, -1) if num_draws % size == 0)
        keys = jax.random.split(key, num_draws)
        drawn = jax.lax.map(draw_some, keys.reshape(num_draws // chunk, chunk))
        return jax.vmap(lambda values: self._latents(layout, values))(drawn.reshape(num_draws, *shape))

    def _latents(self, layout: Layout, values: Array) -> Latents:
        variables = unpack(layout, values)
        flat = {name: variables[name][0] for name in self.coordinates.names("global")}
        flat |= {name: variables[name][:, 0] for name in self.coordinates.names("local")}
        return join(self.coordinates.sizes, flat, layout.num_sites)

    def _pack(self, layout: Layout, observed: Observed, latents: Latents | None = None) -> Tokens:
        """Lay out one data set; parameters are zero where there are none."""
        num_sites = observed.site_mask.shape[0]
        if latents is None:
            dims = self.coordinates.dim("global"), self.coordinates.dim("local")
            latents = Latents(jnp.zeros(dims[0]), jnp.zeros((num_sites, dims[1])))
        values: dict[str, Array] = {}
        for name, own in split(self.coordinates.sizes, latents).items():
            values[name] = own[..., None, :]
        covariates = compress(self.view.covariates(observed.design.covariates))
        values[_COVARIATES] = covariates[:, None, :]
        known = {name: jnp.ones_like(value) for name, value in values.items()}
        inputs: dict[str, Array] = {}
        for shape in self.view.shapes:
            tokens = (num_sites, shape.num_tokens, shape.width)
            values[shape.name] = observed.values[shape.name].reshape(tokens)
            known[shape.name] = observed.known(shape.name).reshape(tokens).astype(float)
            if shape.name in observed.design.inputs:
                own = observed.design.inputs[shape.name]
                unit = self.view.inputs[shape.name].scale_inputs(own)
                inputs[shape.name] = unit.reshape(num_sites, shape.num_tokens, -1)
        packed = pack(layout, values, inputs)
        return packed._replace(mask=packed.mask & (pack(layout, known).values > 0))

    def _velocity(self, weights: Any, layout: Layout, tokens: Tokens, site_mask: Array | None):
        """Give the velocity of the parameters of many sequences, observations held fixed."""
        number = layout.num_parameters
        fields = layout.fields()
        real = jnp.any(tokens.mask, axis=-1)
        if site_mask is not None:
            everyone = jnp.concatenate([jnp.ones((*site_mask.shape[:-1], 1), bool), site_mask], axis=-1)
            real &= everyone[..., fields[2]]

        def velocity(x: Array, t: Array) -> Array:
            values = jnp.concatenate([x, tokens.values[..., number:, :]], axis=-2)
            masked = jnp.where(tokens.mask, values, 0.0)
            if self.config.shared:
                times = token_times(t, np.arange(layout.num_tokens) < number, real.shape)
                out = apply(self.field, weights, masked, tokens.inputs, real, times, fields, layout.num_tokens)
                return out[..., :number, :]
            return apply(self.field, weights, masked, tokens.inputs, real, t, fields, number)

        return velocity

    def batch_tokens(self, batch: Batch) -> Tokens:
        """Lay out a batch of data sets."""
        layout = self.layout_of(batch)
        return jax.vmap(lambda latents, observed: self._pack(layout, observed, latents))(batch.latents, batch.observed)

    def layout_of(self, batch: Batch) -> Layout:
        """Give the layout of a batch by its number of sites."""
        return dataclasses.replace(self.layout, num_sites=batch.index.shape[1])


def token_times(t: Array, target: np.ndarray, shape: tuple[int, ...]) -> Array:
    """Give every token its flow time, `[..., T]`: tokens that are given rather than generated have arrived."""
    t = jnp.asarray(t, jnp.float32)
    return jnp.where(target, jnp.broadcast_to(t.reshape(t.shape + (1,) * (len(shape) - t.ndim)), shape), 1.0)


def _repeat(tokens: Tokens, number: int) -> Tokens:
    return jax.tree.map(lambda array: jnp.broadcast_to(array[None], (number, *array.shape)), tokens)


class JointTraining(NamedTuple):
    """What training is given: the posterior, the source of batches, held-out data sets and the key of their noise."""

    posterior: JointPosterior
    source: Synthetic | Stored
    held_out: Batch
    key: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Match:
    """Flow matching on all parameter tokens, globals and locals weighted alike."""

    num_sets: int

    def loss(self, params: Any, key: Array, data: JointTraining) -> Array:
        draw_key, noise_key = jax.random.split(key)
        return self._of_batch(params, data.source.draw(draw_key, self.num_sets), data, noise_key)

    def validate(self, params: Any, data: JointTraining) -> Array:
        return self._of_batch(params, data.held_out, data, data.key)

    def _of_batch(self, params: Any, batch: Batch, data: JointTraining, key: Array) -> Array:
        posterior, layout = data.posterior, data.posterior.layout_of(batch)
        tokens = posterior.batch_tokens(batch)
        number = layout.num_parameters
        site_mask = batch.observed.site_mask
        velocity = posterior._velocity(params, layout, tokens, site_mask)
        groups = layout.fields()[2][:number]
        everyone = jnp.concatenate([jnp.ones((site_mask.shape[0], 1), bool), site_mask], axis=-1)
        mask = tokens.mask[:, :number] & everyone[:, groups][..., None]
        # Each level has the same say: without this, globals are lost among the locals of many sites.
        is_global = jnp.asarray(groups == 0)[None, :, None]
        share = jnp.where(is_global, mask, 0).sum(), jnp.where(is_global, 0, mask).sum()
        weights = jnp.where(is_global, 1.0 / jnp.maximum(share[0], 1), 1.0 / jnp.maximum(share[1], 1))
        weights = jnp.broadcast_to(weights, mask.shape)
        return flow_matching_loss(
            key, velocity, tokens.values[:, :number], mask=mask, weights=weights, event_ndim=2
        ).mean


def fit_joint(
    key: Array,
    posterior: JointPosterior,
    source: Synthetic | Stored,
    held_out: Batch,
    *,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> tuple[JointPosterior, dict[str, np.ndarray]]:
    """Train the joint posterior; returns it with weights, and the losses by epoch."""
    init_key, fit_key, noise_key = jax.random.split(key, 3)
    weights = _initialize(posterior, init_key, jax.tree.map(lambda array: array[:1], held_out))
    config = posterior.config
    data = JointTraining(posterior, source, held_out, noise_key)
    result = fit(
        fit_key,
        weights,
        _Match(num_sets=config.batch_size),
        data,
        config.fit,
        name="posterior",
        progress=progress,
        checkpoint=checkpoint,
    )
    return dataclasses.replace(posterior, weights=result.params), {"flow": result.losses}


@jit
def _initialize(posterior: JointPosterior, key: Array, batch: Batch) -> Any:
    tokens = posterior.batch_tokens(batch)
    layout = posterior.layout_of(batch)
    real = jnp.any(tokens.mask, axis=-1)
    t = jnp.zeros(())
    return posterior.field.init(key, tokens.values, tokens.inputs, real, t, layout.fields(), layout.num_parameters)

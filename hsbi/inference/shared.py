"""One network in place of surrogates and posterior: it generates observations given latents, or latents given data.

Which tokens are generated is told by their flow time: tokens that are given have time one, as if they had arrived. The
network learns both directions from single-site simulations, generates data sets of many sites itself, and goes on with
the posterior of those while it keeps the other direction. It is kept for comparison with separate estimators.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.flow import flow_matching_loss, integrate
from hsbi.inference.arrays import Coordinates, Design, Latents
from hsbi.inference.batch import Batch, Observed, Stored, Synthetic, View, at_sites, standardize
from hsbi.inference.direct import fit_view
from hsbi.inference.joint import JointConfig, JointPosterior, JointTraining, _initialize, _Match, token_times
from hsbi.model.program import Program
from hsbi.model.simulate import Simulations
from hsbi.networks.mlp import apply
from hsbi.tokens import Tokens, unpack
from hsbi.training import Checkpoint, Progress, fit, jit, no_progress

_HELD_OUT = 0.1
# Midpoint steps of generated observations where the configuration leaves the steps to an adaptive solver.
_NUM_ODE_STEPS = 16
# Sites that are generated at once, and standardized values that are not learned from, as those of far tails.
_MAX_ROWS, _MAX_VALUE = 2**13, 10.0


class Singles(NamedTuple):
    """Single-site simulations.

    Attributes:
        given: As data, which latents are generated from.
        wanted: As what is generated, counts with noise between them.
    """

    given: Batch
    wanted: Batch


class SharedTraining(NamedTuple):
    """What training is given: the posterior, single sites, data sets or None, the same held out, and a key."""

    posterior: JointPosterior
    singles: Singles
    sets: Batch | None
    held_singles: Singles
    held_sets: Batch | None
    key: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Both:
    """Flow matching in both directions; latents are those of data sets, or of single sites before there are any."""

    batch_size: int

    def loss(self, params: Any, key: Array, data: SharedTraining) -> Array:
        single_key, set_key, noise_key = jax.random.split(key, 3)
        singles = _take_some(single_key, data.singles, self.batch_size)
        sets = None if data.sets is None else _take_some(set_key, data.sets, self.batch_size)
        return self._of(params, data.posterior, singles, sets, noise_key)

    def validate(self, params: Any, data: SharedTraining) -> Array:
        return self._of(params, data.posterior, data.held_singles, data.held_sets, data.key)

    def _of(self, params: Any, posterior: JointPosterior, singles: Singles, sets: Batch | None, key: Array) -> Array:
        observation_key, latent_key = jax.random.split(key)
        tokens = posterior.batch_tokens(singles.wanted)
        velocity, target = generate_observations(posterior, params, tokens)
        mask = tokens.mask & target[:, None] & (jnp.abs(tokens.values) < _MAX_VALUE)
        loss = flow_matching_loss(observation_key, velocity, tokens.values, mask=mask, event_ndim=2).mean
        batch = singles.given if sets is None else sets
        data = JointTraining(posterior, Stored(batch=batch), batch, latent_key)
        return loss + _Match(num_sets=self.batch_size)._of_batch(params, batch, data, latent_key)


def generate_observations(
    posterior: JointPosterior, weights: Any, tokens: Tokens
) -> tuple[Callable[[Array, Array], Array], np.ndarray]:
    """Give the velocity of single-site sequences whose observations are generated, and which tokens those are."""
    layout = dataclasses.replace(posterior.layout, num_sites=1)
    fields = layout.fields()
    names = {shape.name for shape in posterior.view.shapes}
    target = np.isin(fields[0], [variable.id for variable in layout.variables if variable.name in names])
    real = jnp.any(tokens.mask, axis=-1)

    def velocity(x: Array, t: Array) -> Array:
        values = jnp.where(tokens.mask, jnp.where(target[:, None], x, tokens.values), 0.0)
        times = token_times(t, target, real.shape)
        out = apply(posterior.field, weights, values, tokens.inputs, real, times, fields, layout.num_tokens)
        return jnp.where(target[:, None], out, 0.0)

    return velocity, target


def fit_shared(
    key: Array,
    config: JointConfig,
    source: Synthetic,
    simulations: Simulations,
    *,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> tuple[JointPosterior, dict[str, np.ndarray]]:
    """Train one network on single-site simulations, then also on data sets that it generates, as many.

    Args:
        key: A random key.
        config: Hyperparameters, with `shared` set.
        source: Where latents of data sets come from; it needs no surrogates.
        simulations: Single-site simulations.
        progress: Called to show progress.
        checkpoint: Where the states of training are kept.

    Returns:
        The posterior with weights, and the losses by epoch of both stages.
    """
    if source.program.route != "resize":
        raise ValueError(
            f"JointConfig(shared=True) needs a program that can be run for one site alone: {source.program.reason} "
            "Use shared=False, which learns surrogates."
        )
    usable = np.flatnonzero(simulations.usable)
    simulations = jax.tree.map(lambda array: array[usable], simulations)
    view = fit_view(source.program, source.design, simulations.observations)
    posterior = JointPosterior.unfitted(config, source.program.structure, source.coordinates, view, source.num_sites[1])
    keys = jax.random.split(key, 6)
    singles = _read_singles(source.program, source.design, source.coordinates, view, simulations, keys[0])
    held_singles, singles = _hold_out(singles)
    weights = _initialize(posterior, keys[1], jax.tree.map(lambda array: array[:1], singles.given))
    data = SharedTraining(posterior, singles, None, held_singles, None, keys[5])
    stage = _Both(batch_size=config.batch_size)
    options: dict[str, Any] = {"progress": progress, "checkpoint": checkpoint}
    first = fit(keys[2], weights, stage, data, config.fit, name="single sites", **options)
    trained = dataclasses.replace(posterior, weights=first.params)
    held_sets, sets = _hold_out(_generate_sets(trained, source, keys[3], len(usable)))
    data = data._replace(sets=sets, held_sets=held_sets)
    second = fit(keys[4], first.params, stage, data, config.fit, name="posterior", **options)
    losses = {"single sites": first.losses, "both": second.losses}
    return dataclasses.replace(posterior, weights=second.params), losses


def _read_singles(
    program: Program, design: Design, coordinates: Coordinates, view: View, simulations: Simulations, key: Array
) -> Singles:
    def one(own: Simulations, key: Array) -> Singles:
        index = own.index[None]
        there, seen = at_sites(program, design, index)
        values = {
            name: value[None] if name in program.structure.locals else value for name, value in own.values.items()
        }
        data = {name: value[None] for name, value in own.observations.items()}
        given = Batch(index, coordinates.encode(there, values), view.observe(data, seen))
        encoded = {
            shape.name: view.transforms[shape.name].encode(
                jax.random.fold_in(key, number),
                data[shape.name].reshape(1, shape.replicates, shape.points, shape.width),
            )
            for number, shape in enumerate(view.shapes)
        }
        return Singles(given, given._replace(observed=given.observed._replace(values=encoded)))

    numbers = simulations.index.shape[0]
    return jit(jax.vmap(one))(simulations, jax.random.split(key, numbers))


def _generate_sets(posterior: JointPosterior, source: Synthetic, key: Array, num_sets: int) -> Batch:
    """Draw latents from the prior and the observations of each site from the network."""
    view, layout = posterior.view, dataclasses.replace(posterior.layout, num_sites=1)
    num_steps = posterior.config.num_ode_steps or _NUM_ODE_STEPS

    def one(key: Array) -> Batch:
        prior_key, noise_key = jax.random.split(key)
        index, mask, program, design, values = source._draw_sites(prior_key)
        latents = source.coordinates.encode(program, values)
        num_sites = mask.shape[0]
        empty = {
            shape.name: jnp.zeros((num_sites, 1, shape.replicates, shape.points, shape.width)) for shape in view.shapes
        }
        own = jax.tree.map(lambda array: array[:, None], design)
        each = Batch(
            index[:, None],
            Latents(jnp.broadcast_to(latents.globals, (num_sites, *latents.globals.shape)), latents.locals[:, None]),
            Observed(empty, own, jnp.ones((num_sites, 1), bool)),
        )
        tokens = posterior.batch_tokens(each)
        velocity, _ = generate_observations(posterior, posterior.weights, tokens)
        noise = jax.random.normal(noise_key, tokens.values.shape)
        drawn = unpack(layout, integrate(velocity, noise, num_steps=num_steps))
        values = {}
        for shape in view.shapes:
            transform = view.transforms[shape.name]
            value = drawn[shape.name].reshape(num_sites, shape.replicates, shape.points, shape.width)
            values[shape.name] = standardize(transform, transform.decode(value))
        return Batch(index, latents, Observed(values, design, mask))

    # Batches of lax.map cannot have arrays without entries, such as those of no covariates; a loop of its own can.
    chunk = min(num_sets, max(1, _MAX_ROWS // source.num_sites[1]))
    number = -(-num_sets // chunk)
    keys = jax.random.split(key, number * chunk).reshape(number, chunk)
    drawn = jit(lambda keys: jax.lax.map(jax.vmap(one), keys))(keys)
    return jax.tree.map(lambda array: array.reshape(number * chunk, *array.shape[2:])[:num_sets], drawn)


def _take_some(key: Array, batch: Any, number: int) -> Any:
    total = jax.tree.leaves(batch)[0].shape[0]
    rows = jax.random.randint(key, (number,), 0, total)
    return jax.tree.map(lambda array: array[rows], batch)


def _hold_out(batch: Any) -> tuple[Any, Any]:
    number = max(1, int(_HELD_OUT * jax.tree.leaves(batch)[0].shape[0]))
    return jax.tree.map(lambda array: array[:number], batch), jax.tree.map(lambda array: array[number:], batch)

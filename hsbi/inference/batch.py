"""Data sets for training a posterior: drawn from the prior and the surrogates, or stored."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.inference.arrays import Coordinates, Design, Latents, ObservationShape
from hsbi.inference.features import ParameterFeatures, flatten_parameters
from hsbi.inference.surrogate import Surrogate
from hsbi.inference.validity import Validity
from hsbi.model.draws import draw_latents, redraw_locals
from hsbi.model.program import Program, take_sites
from hsbi.model.transforms import ObservationTransform, compress_tails
from hsbi.networks.encoders import SiteFeatures, TokenSet
from hsbi.networks.mlp import compress

_MAX_STANDARDIZED = 1e6
# Data sets, and locals of a site, among which one is chosen by the probability that it is valid.
_CANDIDATE_SETS, _CANDIDATE_LOCALS = 8, 8


class Observed(NamedTuple):
    """The observations of a data set, or of many with leading axes.

    Attributes:
        values: Standardized by observation, `[..., S, replicates, points, width]`.
        design: Covariates and functional inputs of the sites.
        site_mask: `[..., S]`, true where a site is real.
    """

    values: dict[str, Array]
    design: Design
    site_mask: Array


class Batch(NamedTuple):
    """Data sets with the latents they came from, data sets first.

    Attributes:
        index: The program's site that each site of a data set stands for, `[B, S]`.
        latents: Standardized coordinates.
        observed: The observations.
    """

    index: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    latents: Latents
    observed: Observed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """What networks are shown of observations.

    Attributes:
        shapes: The layout of each observation.
        covariates: Features of the covariates.
        transforms: The transform of each observation.
        inputs: Features of the functional inputs of each observation.
    """

    shapes: tuple[ObservationShape, ...] = dataclasses.field(metadata={"static": True})
    covariates: ParameterFeatures
    transforms: dict[str, ObservationTransform]
    inputs: dict[str, ParameterFeatures]

    def observe(self, data: Mapping[str, Array], design: Design) -> Observed:
        """Standardize the observations of one data set, given in canonical layout."""
        num_sites = design.covariates.shape[0]
        values = {
            shape.name: standardize(
                self.transforms[shape.name],
                data[shape.name].reshape(num_sites, shape.replicates, shape.points, shape.width),
            )
            for shape in self.shapes
        }
        return Observed(values, design, jnp.ones(num_sites, bool))

    def features(self, observed: Observed) -> SiteFeatures:
        """Give the networks' features of one data set."""
        static, sets = [compress(self.covariates(observed.design.covariates))], []
        for shape in self.shapes:
            values = compress_tails(observed.values[shape.name])
            num_sites = values.shape[0]
            if shape.num_tokens == 1:
                static.append(values.reshape(num_sites, shape.width))
                static.append(_energy(observed.values[shape.name].reshape(num_sites, shape.width)))
                continue
            tokens = values.reshape(num_sites, shape.num_tokens, shape.width)
            if shape.name in observed.design.inputs:
                inputs = self.inputs[shape.name].of_inputs(observed.design.inputs[shape.name])
                tokens = jnp.concatenate([tokens, inputs.reshape(num_sites, shape.num_tokens, -1)], axis=-1)
            sets.append(TokenSet(tokens, jnp.ones(tokens.shape[:-1], bool)))
        return SiteFeatures(jnp.concatenate(static, axis=-1), tuple(sets), observed.site_mask)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic:
    """A source of fresh data sets: latents from the program's prior, observations from the surrogates.

    Attributes:
        num_sites: The fewest and the most sites of a data set; padding fills up to the most.
        program: The program.
        coordinates: Its latents' coordinates.
        surrogates: One surrogate for each observation.
        design: Covariates and functional inputs of the program's sites.
        validity: The probability that a site's simulation is valid, or None where it does not matter.
    """

    num_sites: tuple[int, int] = dataclasses.field(metadata={"static": True})
    program: Program
    coordinates: Coordinates
    surrogates: tuple[Surrogate, ...]
    design: Design
    validity: Validity | None = None

    def draw(self, key: Array, num_sets: int) -> Batch:
        """Draw data sets, all of them valid."""
        if self.validity is None:
            return jax.vmap(self._draw_one)(jax.random.split(key, num_sets))
        prior_key, pick_key, own_key = jax.random.split(key, 3)
        keys = jax.random.split(prior_key, num_sets * _CANDIDATE_SETS)
        picks = jax.random.categorical(pick_key, jax.vmap(self._log_valid)(keys), shape=(num_sets,))
        return jax.vmap(self._draw_one)(keys[picks], jax.random.split(own_key, num_sets))

    def _draw_sites(self, key: Array) -> tuple[Array, Array, Program, Design, dict[str, Array]]:
        """Draw everything but the observations; gives index, mask, program and design of the sites, and latents."""
        index_key, size_key, prior_key, _ = jax.random.split(key, 4)
        low, high = self.num_sites
        index = choose_sites(index_key, self.program.num_sites, high, low < high)
        program, design = at_sites(self.program, self.design, index)
        size = jax.random.randint(size_key, (), low, high + 1)
        values = {name: value[0] for name, value in draw_latents(program, prior_key, 1).items()}
        return index, jnp.arange(high) < size, program, design, values

    def _log_valid(self, key: Array) -> Array:
        """Give the log probability that all sites of a data set are valid, given its globals."""
        _, mask, program, design, values = self._draw_sites(key)
        assert self.validity is not None
        classifier = self.validity.given_globals
        if classifier is None:
            return jnp.zeros(())
        parameters = site_parameters(program, classifier.features.names, values, design.covariates)
        return jnp.sum(jnp.where(mask, classifier.log_valid(parameters), 0.0))

    def _choose_locals(
        self, key: Array, program: Program, design: Design, values: dict[str, Array]
    ) -> dict[str, Array]:
        """Draw each site's locals from their prior given the globals and given that the site is valid."""
        assert self.validity is not None
        classifier = self.validity.given_all
        if classifier is None:
            return values
        draw_key, pick_key = jax.random.split(key)

        def candidate(own: Array) -> tuple[dict[str, Array], Array]:
            locals_ = redraw_locals(program, own, values)
            names = classifier.features.names
            parameters = site_parameters(program, names, {**values, **locals_}, design.covariates)
            return locals_, classifier.log_valid(parameters)

        locals_, log_valid = jax.vmap(candidate)(jax.random.split(draw_key, _CANDIDATE_LOCALS))
        picks = jax.random.categorical(pick_key, log_valid, axis=0)
        return {**values, **{name: value[picks, jnp.arange(picks.size)] for name, value in locals_.items()}}

    def _draw_one(self, key: Array, own: Array | None = None) -> Batch:
        """Draw a data set; with a key of its own, locals and noise do not depend on the key of its globals."""
        index, mask, program, design, values = self._draw_sites(key)
        data_key = jax.random.split(key, 4)[3]
        if own is not None:
            local_key, data_key = jax.random.split(own)
            values = self._choose_locals(local_key, program, design, values)
        drawn = synthesize(program, self.surrogates, values, design, data_key)
        standardized = {
            surrogate.shape.name: standardize(
                surrogate.transform, surrogate.transform.decode(drawn[surrogate.shape.name])
            )
            for surrogate in self.surrogates
        }
        observed = Observed(standardized, design, mask)
        return Batch(index, self.coordinates.encode(program, values), observed)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """A source of data sets that were simulated beforehand; batches are drawn with replacement."""

    batch: Batch

    def draw(self, key: Array, num_sets: int) -> Batch:
        """Draw data sets."""
        rows = jax.random.randint(key, (num_sets,), 0, self.batch.index.shape[0])
        return jax.tree.map(lambda array: array[rows], self.batch)


def _energy(values: Array) -> Array:
    """Give the mean square of each site's values: its mean over sites is what pins a scale."""
    return compress_tails(jnp.mean(values**2, axis=-1, keepdims=True))


def standardize(transform: ObservationTransform, value: Array) -> Array:
    """Standardize observations, bounded so that squares of residuals stay finite in float32."""
    return jnp.clip(transform.center(value), -_MAX_STANDARDIZED, _MAX_STANDARDIZED)


def choose_sites(key: Array, available: int, number: int, vary: bool) -> Array:
    """Choose the program's sites for a data set: all in order, or a random choice where data sets vary in size."""
    if not vary and number == available:
        return jnp.arange(available)
    order = jax.random.permutation(key, -(-number // available) * available)
    return order[:number] % available


def at_sites(program: Program, design: Design, index: Array) -> tuple[Program, Design]:
    """Give program and design of the chosen sites."""
    if program.route != "resize":
        return program, design
    taken = jax.tree.map(lambda array: jnp.take(array, index, axis=0), design)
    return (take_sites(program, index) if program.structure.site_plate is not None else program), taken


def site_parameters(program: Program, names: tuple[str, ...], values: Mapping[str, Array], covariates: Array) -> Array:
    """Give the parameters that an observation depends on and the covariates, `[S, k]`, for one draw."""
    return flatten_parameters(names, values, covariates, shared=program.structure.globals)


def synthesize(
    program: Program, surrogates: tuple[Surrogate, ...], values: Mapping[str, Array], design: Design, key: Array
) -> dict[str, Array]:
    """Draw the standardized observations of one data set from the surrogates, by observation."""
    keys = jax.random.split(key, len(surrogates))
    return {
        surrogate.shape.name: surrogate.sample(own, site_features(program, surrogate, values, design))
        for own, surrogate in zip(keys, surrogates, strict=True)
    }


def site_features(program: Program, surrogate: Surrogate, values: Mapping[str, Array], design: Design) -> Array:
    """Give a surrogate's features of every site of one data set, `[S, replicates, points, F]`."""
    parameters = site_parameters(program, surrogate.features.names, values, design.covariates)
    return surrogate.prepare(parameters, design.inputs.get(surrogate.shape.name))

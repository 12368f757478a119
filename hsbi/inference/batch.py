"""Data sets for training a posterior: drawn from the prior and the surrogates, or stored."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.inference.arrays import Coordinates, Design, Latents, ObservationShape
from hsbi.inference.designs import Groups
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
# Sites are chosen with replacement where there are at least so many times as many.
_FEW = 32


class Observed(NamedTuple):
    """The observations of a data set, or of many with leading axes.

    Attributes:
        values: Standardized by observation, `[..., S, replicates, points, width]`; zero where missing.
        design: Covariates and functional inputs of the sites.
        site_mask: `[..., S]`, true where a site is real.
    """

    values: dict[str, Array]
    design: Design
    site_mask: Array

    def known(self, name: str) -> Array:
        """Say which entries of an observation are observed, in the shape of its values."""
        value = self.values[name]
        return self.design.masks[name] if name in self.design.masks else jnp.ones(value.shape, bool)

    @property
    def has_data(self) -> Array:
        """Say which sites have any observation, `[..., S]`."""
        found = [jnp.any(self.known(name), axis=(-3, -2, -1)) for name in self.values]
        return functools.reduce(jnp.logical_or, found)


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
        shapes: The layout of each observation at training.
        missing: The observations for which missing values were trained for.
        covariates: Features of the covariates.
        transforms: The transform of each observation.
        inputs: Features of the functional inputs of each observation.
    """

    shapes: tuple[ObservationShape, ...] = dataclasses.field(metadata={"static": True})
    missing: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})
    covariates: ParameterFeatures
    transforms: dict[str, ObservationTransform]
    inputs: dict[str, ParameterFeatures]

    def observe(self, data: Mapping[str, Array], design: Design) -> Observed:
        """Standardize the observations of one data set, given in canonical layout.

        Replicates and points may be more or fewer than at training, where there was more than one token.
        """
        num_sites = design.covariates.shape[0]
        values, masks = {}, dict(design.masks)
        for shape in self.shapes:
            # Functional inputs tell points from replicates where their numbers are not those of training.
            layout = design.inputs[shape.name].shape[1:3] if shape.name in design.inputs else (-1, shape.points)
            value = data[shape.name].reshape(num_sites, *layout, shape.width)
            standardized = standardize(self.transforms[shape.name], value)
            if shape.name in self.missing:
                # Complete data of such a posterior have a mask too, so that they share its compilation.
                masks.setdefault(shape.name, jnp.ones(standardized.shape, bool))
            known = masks.get(shape.name)
            values[shape.name] = standardized if known is None else jnp.where(known, standardized, 0.0)
        return Observed(values, design._replace(masks=masks), jnp.ones(num_sites, bool))

    def features(self, observed: Observed) -> SiteFeatures:
        """Give the networks' features of one data set."""
        covariates = compress(self.covariates(observed.design.covariates))
        static, seen, sets = [covariates], [jnp.ones(covariates.shape, bool)], []
        for shape in self.shapes:
            values, known = observed.values[shape.name], observed.known(shape.name)
            num_sites, width = values.shape[0], shape.width
            if shape.num_tokens == 1:
                flat, own = values.reshape(num_sites, width), known.reshape(num_sites, width)
                parts = [compress_tails(flat), _energy(flat, own)]
                real = [own, jnp.any(own, axis=-1, keepdims=True)]
                if shape.name in self.missing:
                    parts, real = [*parts, own.astype(flat.dtype)], [*real, jnp.ones_like(own)]
                static, seen = [*static, *parts], [*seen, *real]
                continue
            tokens, own = (array.reshape(num_sites, -1, width) for array in (compress_tails(values), known))
            if shape.name in self.missing and width > 1:
                tokens = jnp.concatenate([tokens, own.astype(tokens.dtype)], axis=-1)
            if shape.name in observed.design.inputs:
                inputs = observed.design.inputs[shape.name]
                parts = [self.inputs[shape.name].of_inputs(inputs), self._slopes(shape.name, values, inputs)]
                tokens = jnp.concatenate([tokens, *(p.reshape(*tokens.shape[:-1], -1) for p in parts)], axis=-1)
            sets.append(TokenSet(tokens, jnp.any(own, axis=-1)))
        mask = observed.site_mask & observed.has_data
        return SiteFeatures(jnp.concatenate(static, axis=-1), tuple(sets), mask, jnp.concatenate(seen, axis=-1))

    def _slopes(self, name: str, values: Array, inputs: Array) -> Array:
        """Multiply values by their scaled inputs: means of these over a site say how values change with inputs."""
        unit = 2 * self.inputs[name].scale_inputs(inputs) - 1
        products = compress_tails(values)[..., :, None] * unit[..., None, :]
        return products.reshape(*products.shape[:-2], -1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic:
    """A source of fresh data sets: latents from the program's prior, observations from the surrogates.

    Attributes:
        num_sites: The fewest and the most sites of a data set; padding fills up to the most.
        missing: The highest share of values that are missing at random, beyond those that the design lacks.
        program: The program.
        coordinates: Its latents' coordinates.
        surrogates: One surrogate for each observation.
        design: Covariates and functional inputs of the program's sites.
        validity: The probability that a site's simulation is valid, or None where it does not matter.
        groups: The designs that data sets are drawn from, or None to choose among all sites.
    """

    num_sites: tuple[int, int] = dataclasses.field(metadata={"static": True})
    missing: float = dataclasses.field(default=0.0, metadata={"static": True})
    program: Program
    coordinates: Coordinates
    surrogates: tuple[Surrogate, ...]
    design: Design
    validity: Validity | None = None
    groups: Groups | None = None

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
        if self.groups is None:
            index = choose_sites(index_key, self.program.num_sites, high, low < high)
            size = jax.random.randint(size_key, (), low, high + 1)
        else:
            chosen = jax.random.randint(index_key, (), 0, self.groups.size.shape[0])
            index, size = self.groups.index[chosen], self.groups.size[chosen]
        program, design = at_sites(self.program, self.design, index)
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
        if self.missing > 0:
            shapes = {name: value.shape for name, value in drawn.items()}
            design = hide(jax.random.fold_in(data_key, 1), design, shapes, self.missing)
        standardized = {}
        for surrogate in self.surrogates:
            name = surrogate.shape.name
            own = standardize(surrogate.transform, surrogate.transform.decode(drawn[name]))
            standardized[name] = jnp.where(design.masks[name], own, 0.0) if name in design.masks else own
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


def _energy(values: Array, known: Array) -> Array:
    """Give the mean square of each site's values: its mean over sites is what pins a scale."""
    number = jnp.maximum(jnp.sum(known, axis=-1, keepdims=True), 1)
    return compress_tails(jnp.sum(values**2, axis=-1, keepdims=True) / number)


def standardize(transform: ObservationTransform, value: Array) -> Array:
    """Standardize observations, bounded so that squares of residuals stay finite in float32."""
    return jnp.clip(transform.center(value), -_MAX_STANDARDIZED, _MAX_STANDARDIZED)


def hide(key: Array, design: Design, shapes: Mapping[str, tuple[int, ...]], most: float) -> Design:
    """Make values missing at random: single ones at a rate up to `most`, and in half of the data sets whole sites.

    Args:
        key: A random key.
        design: The design of one data set.
        shapes: The layouts of its observations, `[S, replicates, points, width]`.
        most: The highest rate.
    """
    rate_key, whole_key, site_key, *keys = jax.random.split(key, 3 + len(shapes))
    rate, site_rate = most * jax.random.uniform(rate_key, (2,))
    site_rate *= jax.random.bernoulli(whole_key)
    present = jax.random.uniform(site_key, (next(iter(shapes.values()))[0], 1, 1, 1)) >= site_rate
    masks = {}
    for own, (name, shape) in zip(keys, shapes.items(), strict=True):
        known = (jax.random.uniform(own, shape) >= rate) & present
        masks[name] = known & design.masks[name] if name in design.masks else known
    return design._replace(masks=masks)


def choose_sites(key: Array, available: int, number: int, vary: bool) -> Array:
    """Choose the program's sites for a data set: all in order, or a random choice where data sets vary in size."""
    if not vary and number == available:
        return jnp.arange(available)
    if _FEW * number <= available:
        # Without sorting; a site that comes twice is as good as two that are alike.
        return jax.random.randint(key, (number,), 0, available)
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
    name = surrogate.shape.name
    shape = program.structure[name].shape
    points = design.inputs[name].shape[2] if name in design.inputs else surrogate.shape.points
    replicates = math.prod(shape) // (program.num_sites * points * surrogate.shape.width)
    return surrogate.prepare(parameters, design.inputs.get(name), (replicates, points))

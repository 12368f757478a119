"""Data sets with known latents, draws of a trained posterior for each, and summaries of data, as plain arrays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.arrays import Latents
from hsbi.inference.batch import Batch, Observed, Synthetic, at_sites, site_features
from hsbi.inference.joint import JointPosterior
from hsbi.inference.posterior import Posterior
from hsbi.inference.surrogate import Surrogate
from hsbi.model.draws import draw_latents
from hsbi.model.program import Program
from hsbi.model.structure import Structure
from hsbi.model.transforms import compress_tails
from hsbi.training import jit

# Site rows drawn at once, and data sets per call, after which the progress bar moves.
_MAX_ROWS, _SETS_PER_CALL = 2**15, 10
# Numbers of locals' draws that are kept; beyond, draws of some sites only.
_MAX_KEPT = 2 * 10**7
# Directions in which sites' data are summarized.
_MAX_DIRECTIONS = 8
_PADDED = ("globals", "global_draws", "locals", "local_draws")


class Sets(NamedTuple):
    """Data sets with draws; data sets are first, and sites are those that were kept.

    Attributes:
        globals: True values, `[datasets, columns]`.
        global_draws: `[datasets, draws, columns]`.
        locals: `[datasets, sites, columns]`.
        local_draws: `[datasets, draws, sites, columns]`.
        fit: Gaussian log-likelihood of each site under the surrogates, `[datasets, sites]`; no sites without them.
        fit_draws: The same at the draws, `[datasets, draws, sites]`.
        mask: Which sites are real, `[datasets, sites]`.
        place: The place of each kept site among all, `[datasets, sites]`.
    """

    globals: np.ndarray
    global_draws: np.ndarray
    locals: np.ndarray
    local_draws: np.ndarray
    fit: np.ndarray
    fit_draws: np.ndarray
    mask: np.ndarray
    place: np.ndarray

    def take(self, rows: np.ndarray) -> "Sets":
        """Select data sets."""
        return Sets(*(part[rows] for part in self))

    def usable(self) -> np.ndarray:
        """Say which data sets have finite values only."""
        good = [np.isfinite(part).reshape(len(part), -1).all(1) for part in self[:4]]
        return np.logical_and.reduce(good)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """A map from the data of a site to a few features: directions of large variance, and mean squares.

    Attributes:
        points: The number of points of each observation.
        center: The mean of the entries.
        basis: Directions in units of their spread, `[entries, directions]`.
    """

    points: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    center: Array
    basis: Array

    def sites(self, observed: Observed) -> Array:
        """Give features of each site's data, `[sites, features]`."""
        energy = [
            _mean_known(compress_tails(value) ** 2, observed.known(name), (1, 2, 3))[:, None]
            for name, value in observed.values.items()
        ]
        return jnp.concatenate([(_raw(observed, self.points) - self.center) @ self.basis, *energy], axis=-1)


def summarize_sets(sites: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Give mean and spread over sites of each feature, and the number of sites where it varies, `[datasets, ...]`."""
    weight = mask[..., None] / mask.sum(1)[:, None, None]
    mean = np.sum(weight * sites, axis=1)
    spread = np.sqrt(np.sum(weight * (sites - mean[:, None]) ** 2, axis=1))
    parts = [mean] if sites.shape[1] == 1 else [mean, spread]
    if np.ptp(mask.sum(1)) > 0:
        parts.append(np.log(mask.sum(1))[:, None])
    return np.concatenate(parts, axis=1)


def column_names(structure: Structure, names: tuple[str, ...]) -> tuple[str, ...]:
    """Name every scalar of some latents, without the site axis."""
    found: list[str] = []
    for name in names:
        site = structure[name]
        shape = site.shape[1:] if site.level == "local" else site.shape
        found += [name if not shape else f"{name}[{','.join(map(str, i))}]" for i in np.ndindex(shape)]
    return tuple(found)


def fit_summary(observed: Observed) -> Summary:
    """Choose the directions from many data sets."""
    points = tuple(value.shape[-2] for value in observed.values.values())
    raw = jax.vmap(functools.partial(_raw, points=points))(observed)
    rows = np.asarray(raw, float)[np.asarray(observed.site_mask & observed.has_data)]
    center = rows.mean(0)
    _, _, directions = np.linalg.svd(rows - center, full_matrices=False)
    scale = ((rows - center) @ directions[:_MAX_DIRECTIONS].T).std(0)
    basis = directions[:_MAX_DIRECTIONS].T / np.where(scale > 0, scale, 1.0)
    return Summary(points=points, center=jnp.asarray(center, jnp.float32), basis=jnp.asarray(basis, jnp.float32))


def _raw(observed: Observed, points: tuple[int, ...]) -> Array:
    """Average each site's known replicates, tails compressed, at the first of its points, `[sites, entries]`.

    Entries without a known value, and points that a data set does not have, are at the center, which is zero.
    """
    parts = []
    for (name, value), wanted in zip(observed.values.items(), points, strict=True):
        mean = _mean_known(compress_tails(value), observed.known(name), 1)[:, :wanted]
        mean = jnp.pad(mean, ((0, 0), (0, wanted - mean.shape[1]), (0, 0)))
        parts.append(mean.reshape(mean.shape[0], -1))
    return jnp.concatenate(parts, axis=-1)


def _mean_known(value: Array, known: Array, axis: int | tuple[int, ...]) -> Array:
    """Average what is known; zero where nothing is."""
    total = jnp.sum(jnp.where(known, value, 0.0), axis=axis)
    return total / jnp.maximum(jnp.sum(known, axis=axis), 1)


@functools.partial(jit, static_argnames="num_sets")
def draw_batch(source: Synthetic, key: Array, num_sets: int) -> Batch:
    """Draw synthetic data sets."""
    return source.draw(key, num_sets)


@jit
def site_summaries(summary: Summary, observed: Observed) -> Array:
    """Give features of every site of many data sets, `[datasets, sites, features]`."""
    return jax.vmap(summary.sites)(observed)


def in_chunks(function: Callable[[Batch, Array], Any], batch: Batch, key: Array, update: Callable[[int], None]) -> Any:
    """Call a compiled function for some data sets at a time, all chunks alike, and join what it gives as NumPy arrays.

    The last chunk is filled up with the first data sets, so that one size is compiled.
    """
    total = batch.index.shape[0]
    size = min(_SETS_PER_CALL, total)
    parts = []
    for start in range(0, total, size):
        rows = np.arange(start, start + size) % total
        part = function(jax.tree.map(lambda array: array[rows], batch), jax.random.fold_in(key, start))  # noqa: B023
        parts.append(jax.tree.map(np.asarray, part))
        update(min(start + size, total))
    return jax.tree.map(lambda *pieces: np.concatenate(pieces)[:total], *parts)


def draw_posteriors(
    posterior: Posterior | JointPosterior,
    surrogates: tuple[Surrogate, ...],
    program: Program,
    batch: Batch,
    key: Array,
    num_draws: int,
    update: Callable[[int], None] = lambda done: None,
) -> Sets:
    """Draw from the posterior given each data set, compiled once and some data sets at a time.

    Args:
        posterior: The trained posterior.
        surrogates: The surrogates; none leaves the log-likelihood out.
        program: The program that it was trained for.
        batch: The data sets.
        key: A random key.
        num_draws: Draws for each data set.
        update: Called with the number of data sets that are done.
    """
    num_sites = batch.index.shape[1]
    columns = max(1, posterior.coordinates.dim("local"))
    most = max(1, _MAX_KEPT // (batch.index.shape[0] * num_draws * columns))
    kept = np.unique(np.linspace(0, num_sites - 1, min(num_sites, most)).round().astype(int))

    def draw(part: Batch, own: Array) -> tuple[Array, ...]:
        return _draw_chunk(posterior, surrogates, program, part, own, jnp.asarray(kept), num_draws)

    sets = Sets(*in_chunks(draw, batch, key, update))
    return sets._replace(**{name: getattr(sets, name)[..., 1:] for name in _PADDED})


@functools.partial(jit, static_argnames="num_draws")
def _draw_chunk(
    posterior: Posterior | JointPosterior,
    surrogates: tuple[Surrogate, ...],
    program: Program,
    batch: Batch,
    key: Array,
    kept: Array,
    num_draws: int,
) -> tuple[Array, ...]:
    coordinates, structure = posterior.coordinates, program.structure
    num_sets, num_sites = batch.index.shape

    def one(task: tuple[Batch, Array]) -> tuple[Array, ...]:
        (index, latents, observed), own_key = task
        own = at_sites(program, observed.design, index)[0]

        def finish(latent: Latents) -> tuple[Array, Array, Array]:
            values = coordinates.decode(own, latent)
            locals_ = flatten(structure.locals, values, num_sites)[kept]
            fit = gaussian_fit(own, surrogates, values, observed)[kept]
            # A map in parts cannot give arrays without entries, so a column is added in front, and taken away again.
            return _pad(flatten(structure.globals, values, None)), _pad(locals_), fit

        truth = finish(latents)
        drawn = jax.vmap(finish)(posterior.sample(own, observed, own_key, num_draws))
        return (truth[0], drawn[0], truth[1], drawn[1], truth[2], drawn[2], observed.site_mask[kept], kept)

    size = max(1, min(num_sets, _MAX_ROWS // (num_draws * num_sites)))
    return jax.lax.map(one, (batch, jax.random.split(key, num_sets)), batch_size=size)


def _pad(array: Array) -> Array:
    return jnp.concatenate([jnp.zeros((*array.shape[:-1], 1)), array], axis=-1)


@functools.partial(jit, static_argnames="num_draws")
def draw_prior(program: Program, key: Array, num_draws: int) -> tuple[Array, Array]:
    """Draw globals, `[draws, columns]`, and locals of all sites, `[draws * sites, columns]`, from the prior."""
    structure = program.structure

    def one(values: dict[str, Array]) -> tuple[Array, Array]:
        return flatten(structure.globals, values, None), flatten(structure.locals, values, program.num_sites)

    globals_, locals_ = jax.vmap(one)(draw_latents(program, key, num_draws))
    return globals_, locals_.reshape(num_draws * program.num_sites, locals_.shape[-1])


def flatten(names: tuple[str, ...], values: Mapping[str, Array], num_sites: int | None) -> Array:
    """Put the scalars of some latents side by side, `[columns]`, or `[sites, columns]` for locals."""
    lead = () if num_sites is None else (num_sites,)
    return jnp.concatenate([jnp.zeros((*lead, 0)), *(values[name].reshape(*lead, -1) for name in names)], axis=-1)


def gaussian_fit(
    program: Program, surrogates: tuple[Surrogate, ...], values: Mapping[str, Array], observed: Observed
) -> Array:
    """Give each site's log-likelihood under the surrogates' location and scale, `[sites]`, whatever their flows."""
    total = jnp.zeros(observed.site_mask.shape[0])
    for surrogate in surrogates:
        location, log_scale = surrogate.predict(site_features(program, surrogate, values, observed.design))
        name = surrogate.shape.name
        residual = (observed.values[name] - location) * jnp.exp(-log_scale)
        terms = jnp.where(observed.known(name), -0.5 * residual**2 - log_scale, 0.0)
        total += jnp.sum(terms, axis=(1, 2, 3))
    return total

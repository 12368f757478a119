r"""Proposals for the locals of sites whose surrogates are mixtures of Gaussians.

If location is straight in the locals and their prior is normal, a site's posterior under a mixture of K Gaussians is
itself a mixture of K normals: each part of the noise has its own Gauss-Newton solution. A location that bends or folds
may have several solutions, so there are several places to start from.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.inference.arrays import Latents
from hsbi.inference.batch import Observed, site_features
from hsbi.inference.law import Mixture, restrict
from hsbi.inference.linearize import MAX_MEAN, Linearized, bound_scaled
from hsbi.inference.posterior import Posterior
from hsbi.inference.surrogate import Surrogate
from hsbi.model.program import Program
from hsbi.networks.heads import Gaussian
from hsbi.networks.triangular import cholesky, solve_lower, solve_upper

# Fractions of a round's way that are tried.
_FRACTIONS = (1.0, 0.4, 0.1, 0.0)
# Shares of the candidates that come from wider parts, and from the prior, and the factors by which both are wider.
_WIDE, _WIDER, _PRIOR, _WIDER_PRIOR = 0.25, 2.5, 0.1, 1.5
_LOG_2PI = math.log(2 * math.pi)


class Normals(NamedTuple):
    """A mixture of normals for each site.

    Attributes:
        log_shares: `[M, S]`; a site's sum to one after taking exponentials.
        parts: Means `[M, S, d]` and factors of precisions `[M, S, d, d]`.
    """

    log_shares: Array
    parts: Linearized

    def draw(self, noise: Array, levels: Array) -> Array:
        """Draw locals `[n, S, d]` from normal noise of that shape; levels in (0, 1), `[n, S]`, choose the parts."""
        ends = jnp.cumsum(jnp.exp(self.log_shares), axis=0)
        last = ends.shape[0] - 1
        chosen = jnp.minimum(jnp.sum(levels[:, None, :] > ends[None], axis=1), last)
        sites = jnp.arange(ends.shape[1])[None, :]
        own = Linearized(self.parts.mean[chosen, sites], self.parts.factor[chosen, sites])
        return own.mean + solve_upper(own.factor, noise)

    def log_prob(self, locals_: Array) -> Array:
        """Evaluate the log density of locals `[n, S, d]`, `[n, S]`."""
        gap = locals_[:, None] - self.parts.mean[None]
        # XLA compiles a sum of products in place of `einsum` wrongly here, fused with the sums that follow.
        squares = jnp.sum(jnp.einsum("msij,nmsi->nmsj", self.parts.factor, gap) ** 2, axis=-1)
        volume = _log_volume(self.parts.factor) - 0.5 * gap.shape[-1] * _LOG_2PI + self.log_shares
        return jax.scipy.special.logsumexp(volume[None] - 0.5 * squares, axis=1)


def count_parts(surrogates: tuple[Surrogate, ...], observed: Observed) -> tuple[tuple[bool, ...], int]:
    """Say which surrogates are taken part by part, and count the parts.

    With n events of K parts a site's posterior would have K^n, so a mixture of several parts is taken by its moments
    unless it is the only one and the site has one event of it.
    """
    by_part, most = [], 1
    for surrogate in surrogates:
        number = 0 if surrogate.law is None else surrogate.law.loc.shape[0]
        events = math.prod(observed.values[surrogate.shape.name].shape[1:3])
        single = number == 1 or (number > 1 and events == 1 and most == 1)
        by_part.append(single)
        most = max(most, number if single else 1)
    return tuple(by_part), most


def solve_moments(
    posterior: Posterior, program: Program, observed: Observed, globals_: Array, start: Array, num_rounds: int
) -> Linearized:
    """Find each site's locals by rounds of Gauss-Newton from a start `[S, d]`, with the noise taken by its moments."""
    by_part, _ = count_parts(posterior.surrogates, observed)
    problem = _Problem(posterior, program, observed, globals_, by_part)
    identity = jnp.broadcast_to(jnp.eye(start.shape[-1]), (*start.shape, start.shape[-1]))
    none = jnp.full((), -1)
    return jax.lax.fori_loop(
        0, num_rounds, lambda _, state: problem.step(state.mean, none), Linearized(start, identity)
    )


def solve_parts(
    posterior: Posterior,
    program: Program,
    observed: Observed,
    globals_: Array,
    starts: Array,
    parts: Array,
    num_rounds: int = 1,
) -> tuple[Linearized, Array]:
    """Find each site's locals for parts of the noise by Gauss-Newton.

    Args:
        posterior: The posterior, for coordinates and surrogates.
        program: The program at the data set's sites.
        observed: The data.
        globals_: `[d_g]`.
        starts: Where the locals start, `[P, S, d]`.
        parts: The part of the noise that each is for, `[P, S]`.
        num_rounds: Rounds.

    Returns:
        Normals `[P, S, ...]`, and the log mass that each stands for, `[P, S]`.
    """
    by_part, _ = count_parts(posterior.surrogates, observed)
    problem = _Problem(posterior, program, observed, globals_, by_part)

    def own(start: Array, part: Array) -> tuple[Linearized, Array]:
        def improve(state: tuple[Linearized, Array], _: None) -> tuple[tuple[Linearized, Array], None]:
            found = problem.step(state[0].mean, part)
            return problem.go(state[0].mean, found, part), None

        nowhere = Linearized(start, jnp.broadcast_to(jnp.eye(start.shape[-1]), (*start.shape, start.shape[-1])))
        (found, value), _ = jax.lax.scan(improve, (nowhere, jnp.zeros(start.shape[0])), None, length=num_rounds)
        return found, value - _log_volume(found.factor)

    return jax.vmap(own)(starts, parts)


def mix(parts: Linearized, log_masses: Array) -> Normals:
    """Mix normals `[P, S, ...]` by their masses `[P, S]`, with a wide normal of the prior."""
    num_sites, dim = parts.mean.shape[1:]
    shares = jax.nn.softmax(log_masses, axis=0)
    # Every part has some share, as masses are those of straight lines.
    even = jax.nn.softmax(jnp.where(jnp.isfinite(log_masses), 0.0, -jnp.inf), axis=0)
    shares = (1 - _PRIOR) * (0.9 * shares + 0.1 * even)
    wide = Linearized(parts.mean, parts.factor / _WIDER)
    prior = Linearized(
        jnp.zeros((1, num_sites, dim)), jnp.broadcast_to(jnp.eye(dim) / _WIDER_PRIOR, (1, num_sites, dim, dim))
    )
    every = [(1 - _WIDE) * shares, _WIDE * shares, jnp.full((1, num_sites), _PRIOR)]
    joined = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), parts, wide, prior)
    return Normals(jnp.log(jnp.concatenate(every)), joined)


class _Problem(NamedTuple):
    posterior: Posterior
    program: Program
    observed: Observed
    globals_: Array
    by_part: tuple[bool, ...]

    def step(self, mean: Array, part: Array) -> Linearized:
        """Make one round of Gauss-Newton for a part, or one for each site; negative: the noise by its moments."""
        num_sites, dim = mean.shape
        tangents = jnp.broadcast_to(jnp.eye(dim)[:, None, :], (dim, num_sites, dim))

        def differentiate(tangent: Array) -> tuple[list[Array], list[Array], list[Gaussian]]:
            return jax.jvp(lambda z: self.predict(z, part), (mean,), (tangent,), has_aux=True)

        # What does not depend on the tangent is computed once.
        location, slopes, noises = jax.vmap(differentiate, out_axes=(None, 0, None))(tangents)
        precision = jnp.broadcast_to(jnp.eye(dim), (num_sites, dim, dim))
        pull = jnp.zeros((num_sites, dim))
        for surrogate, own, noise, slope in zip(self.posterior.surrogates, location, noises, slopes, strict=True):
            name = surrogate.shape.name
            known = self.observed.design.masks.get(name)
            residual = _scale(noise, self.observed.values[name] - own, known).reshape(num_sites, -1)
            scaled = jax.vmap(lambda gap, n=noise, k=known: _scale(n, gap, k))(slope).reshape(dim, num_sites, -1)
            precision += jnp.einsum("ism,jsm->sij", scaled, scaled)
            pull += jnp.einsum("ism,sm->si", scaled, residual + jnp.einsum("jsm,sj->sm", scaled, mean))
        factor = cholesky(precision, min_eigenvalue=1.0)
        return Linearized(jnp.clip(solve_upper(factor, solve_lower(factor, pull)), -MAX_MEAN, MAX_MEAN), factor)

    def go(self, start: Array, found: Linearized, part: Array) -> tuple[Linearized, Array]:
        """Go as far towards what a round has found as is best at each site; gives the log density there too, `[S]`.

        Next to a bound of the locals' support the location hardly changes with their coordinates, so that whole rounds
        would jump to and fro.
        """
        tried = start[None] + jnp.asarray(_FRACTIONS)[:, None, None] * (found.mean - start)[None]
        values = jax.lax.map(lambda own: self.log_joint(own, part), tried)
        values = jnp.nan_to_num(values, nan=-jnp.inf)
        best, sites = jnp.argmax(values, axis=0), jnp.arange(start.shape[0])
        return Linearized(tried[best, sites], found.factor), values[best, sites]

    def predict(self, locals_: Array, part: Array) -> tuple[list[Array], list[Gaussian]]:
        """Give the location of every observation, and the Gaussian of its noise."""
        values = self.posterior.coordinates.decode(self.program, Latents(self.globals_, locals_))
        noises = []
        for surrogate, single in zip(self.posterior.surrogates, self.by_part, strict=True):
            features = site_features(self.program, surrogate, values, self.observed.design)
            moments = Gaussian(*surrogate.predict(features))
            if not single:
                noises.append(moments)
                continue
            own = _take_part(surrogate.mixture(features), part)
            noises.append(jax.tree.map(functools.partial(_where, part < 0), _with_lower(moments, own), own))
        return [noise.loc for noise in noises], noises

    def log_joint(self, locals_: Array, part: Array) -> Array:
        """Give the log density of locals and data by site, with one part of the noise alone, `[S]`."""
        latents = Latents(self.globals_, locals_)
        values, _, of_sites = self.posterior.coordinates.decode_with_prior(self.program, latents)
        for surrogate, single in zip(self.posterior.surrogates, self.by_part, strict=True):
            name = surrogate.shape.name
            features = site_features(self.program, surrogate, values, self.observed.design)
            data, known = self.observed.values[name], self.observed.design.masks.get(name)
            if single:
                terms = surrogate.mixture(features).log_parts(data, known)
                terms = _choose(terms, part)
            else:
                terms = surrogate.log_density(features, data, known)
            of_sites += jnp.sum(terms, axis=(1, 2))
        return of_sites


def _take_part(mixture: Mixture, part: Array) -> Gaussian:
    """Take one part of a mixture `[S, ..., K, d]`, by a number or one for each site; the last if there are fewer."""
    loc, log_scale, lower = mixture.parts
    shape = loc.shape[:3]
    return Gaussian(
        _choose(jnp.moveaxis(loc, -2, -1), part),
        _choose(jnp.moveaxis(log_scale, -2, -1), part),
        None
        if lower is None
        else _choose(jnp.broadcast_to(jnp.moveaxis(lower, -3, -1), (*shape, *lower.shape[-2:], loc.shape[-2])), part),
    )


def _choose(array: Array, part: Array) -> Array:
    """Choose along the last axis of an array `[S, ..., K]`, by a number or one for each site."""
    index = jnp.broadcast_to(jnp.clip(part, 0, array.shape[-1] - 1), array.shape[:1])
    chosen = jax.nn.one_hot(index, array.shape[-1], dtype=bool)
    chosen = chosen.reshape(array.shape[0], *(1,) * (array.ndim - 2), array.shape[-1])
    return jnp.sum(jnp.where(chosen, array, 0.0), axis=-1)


def _where(condition: Array, first: Array, second: Array) -> Array:
    """Choose for each site."""
    condition = jnp.broadcast_to(condition, second.shape[:1]).reshape(-1, *(1,) * (second.ndim - 1))
    return jnp.where(condition, first, second)


def _with_lower(gaussian: Gaussian, like: Gaussian) -> Gaussian:
    return gaussian if like.lower is None else gaussian._replace(lower=jnp.zeros_like(like.lower))


def _scale(noise: Gaussian, gap: Array, known: Array | None) -> Array:
    """Whiten a difference from the noise's location, `[S, replicates, points, width]`; zero where nothing is known."""
    if known is not None and noise.lower is not None:
        _, factor = restrict(noise, known)
        return bound_scaled(jnp.where(known, solve_lower(factor, jnp.where(known, gap, 0.0)), 0.0))
    scaled = gap * jnp.exp(-noise.log_scale)
    if noise.lower is not None:
        scaled = scaled + jnp.sum(noise.lower * scaled[..., None, :], axis=-1)
    return bound_scaled(scaled if known is None else jnp.where(known, scaled, 0.0))


def _log_volume(factor: Array) -> Array:
    return jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)

r"""The posterior of one data set that the surrogates' densities imply, up to a constant.

.. math::

    p(\theta \mid y) \propto p(\theta) \prod_s \int p(y_s \mid \theta, z_s)\, p(z_s \mid \theta)\, dz_s

The integrals are importance sampling from a mixture of two normals for each site: the network's, which has learned what
is skew, and that of Gauss-Newton on the surrogates, which finds peaks that are too narrow for a network.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.arrays import Latents
from hsbi.inference.batch import Observed, site_features
from hsbi.inference.linearize import MAX_MEAN, Linearized, linearize
from hsbi.inference.posterior import Posterior
from hsbi.inference.proposals import Normals, count_parts, mix, solve_moments, solve_parts
from hsbi.model.program import Program
from hsbi.networks.mlp import apply
from hsbi.networks.triangular import cholesky

# One candidate in so many is from a proposal that is wider by a factor. It bounds the weights.
WIDE_SHARE, _WIDER = 8, 2.0
# Rounds of Gauss-Newton for the locals, and the starts among which the best is found once for a data set.
_LOCAL_ROUNDS, _NUM_STARTS = 3, 48
# Where surrogates are mixtures: places that Gauss-Newton ends at, how far apart they are in standard deviations, and
# the most normals that are proposed from at a site, one for a part of the noise at a place.
_NUM_PLACES, _APART, _MAX_PARTS = 4, 1.5, 20
# Rounds that each part has to itself when places are found.
_PART_ROUNDS = 6
# Observed values evaluated at once.
_MAX_ROWS = 2**17
# What stands for the log density of something impossible.
_IMPOSSIBLE = -1e30
_LOG_2PI = math.log(2 * math.pi)


class Target(NamedTuple):
    """One data set with what the integrals over its locals need.

    Attributes:
        posterior: The amortized posterior.
        program: The program at the data set's sites.
        observed: The data.
        encoding: The sites as the network of the locals encodes them, or None without locals.
        anchors: Where Gauss-Newton starts, `[S, d]`.
        places: Where surrogates are mixtures: values of the locals from which Gauss-Newton starts, by name with an axis
            of places in front, the part of the noise that each is for, and which of them a site has, `[P, S]`; None
            otherwise.
    """

    posterior: Posterior
    program: Program
    observed: Observed
    encoding: Array | None
    anchors: Array
    places: tuple[dict[str, Array], Array, Array] | None = None

    def evaluate(self, globals_: Array, keys: Array, num_candidates: int) -> tuple[Array, Array, Array]:
        """Integrate the locals out of many draws of the globals.

        Args:
            globals_: `[M, d_g]`.
            keys: A key for the candidates of each, `[M]`.
            num_candidates: How many locals are tried at each site.

        Returns:
            Log densities `[M]`, one draw of all locals for each, `[M, S, d]`, and the mean efficiency of candidates.
        """
        size = sum(math.prod(value.shape) for value in self.observed.values.values())
        chunk = max(1, min(globals_.shape[0], _MAX_ROWS // (size * num_candidates)))
        if self.encoding is None:

            def without_locals(own: Array) -> Array:
                of_globals, of_sites = self.log_joint(own, self.anchors)
                return of_globals + jnp.sum(jnp.where(self.observed.site_mask, of_sites, 0.0))

            totals = jax.lax.map(without_locals, globals_, batch_size=chunk)
            return totals, jnp.broadcast_to(self.anchors, (*totals.shape, *self.anchors.shape)), jnp.ones(())
        totals, locals_, shares = jax.lax.map(
            lambda task: self._integrate(task[0], task[1], num_candidates), (globals_, keys), batch_size=chunk
        )
        return totals, locals_, jnp.mean(shares)

    def log_joint(self, globals_: Array, locals_: Array) -> tuple[Array, Array]:
        """Give the log prior of one draw's globals, and the log density of data and locals by site, `[S]`."""
        latents = Latents(globals_, locals_)
        values, of_globals, of_sites = self.posterior.coordinates.decode_with_prior(self.program, latents)
        for surrogate in self.posterior.surrogates:
            name = surrogate.shape.name
            features = site_features(self.program, surrogate, values, self.observed.design)
            known = self.observed.design.masks.get(name)
            of_sites += jnp.sum(surrogate.log_density(features, self.observed.values[name], known), axis=(1, 2))
        return of_globals, jnp.nan_to_num(of_sites, nan=_IMPOSSIBLE, neginf=_IMPOSSIBLE)

    def _integrate(self, globals_: Array, key: Array, num_candidates: int) -> tuple[Array, Array, Array]:
        """Integrate the locals of one draw's globals; gives log density, a draw of the locals, and the efficiency."""
        noise_key, pick_key = jax.random.split(key)
        propose = self._propose if self.places is None else self._propose_parts
        candidates, log_proposal = propose(globals_, noise_key, num_candidates)
        of_globals, of_sites = jax.vmap(lambda own: self.log_joint(globals_, own))(candidates)
        log_weights = of_sites - log_proposal
        marginal = jax.scipy.special.logsumexp(log_weights, axis=0) - math.log(num_candidates)
        picks = jax.random.categorical(pick_key, log_weights, axis=0)
        real = self.observed.site_mask
        efficiency = jnp.sum(jnp.where(real, effective_share(log_weights.T), 0.0)) / jnp.maximum(jnp.sum(real), 1)
        total = of_globals[0] + jnp.sum(jnp.where(real, marginal, 0.0))
        return total, candidates[picks, jnp.arange(real.shape[0])], efficiency

    def _propose(self, globals_: Array, key: Array, num_candidates: int) -> tuple[Array, Array]:
        """Propose locals `[n, S, d]` from the network's normal and that of Gauss-Newton; gives log densities too."""
        proposals = self.learned(globals_), self.polish(globals_, self.anchors)
        num_sites, dim = self.anchors.shape
        # Pairs of opposite signs: what is odd in the noise cancels from the integral.
        half = jax.random.normal(key, (num_candidates // 2, num_sites, dim))
        number = np.arange(num_candidates // 2)
        # Wide candidates are all of the first proposal.
        is_wide, is_first = number % WIDE_SHARE == 0, number % 2 == 0
        half *= np.where(is_wide, _WIDER, 1.0)[:, None, None]
        noise = jnp.concatenate([half, -half])
        first, second = (jax.vmap(proposal.color)(noise) for proposal in proposals)
        candidates = jnp.where(np.tile(is_first, 2)[:, None, None], first, second)
        shares = (np.mean(is_first & ~is_wide), np.mean(is_wide), np.mean(~is_first))
        return candidates, jax.vmap(lambda own: _log_mixture(proposals, shares, own))(candidates)

    def _propose_parts(self, globals_: Array, key: Array, num_candidates: int) -> tuple[Array, Array]:
        """Propose locals from one normal for every part of the noise and every place, and from a wide one."""
        normals = self._normals(globals_)
        noise_key, level_key = jax.random.split(key)
        num_sites, dim = self.anchors.shape
        noise = jax.random.normal(noise_key, (num_candidates, num_sites, dim))
        # One level in each of so many equal steps: parts are drawn as often as their shares say.
        shift = jax.random.uniform(level_key, (1, num_sites))
        levels = (jnp.arange(num_candidates)[:, None] + shift) / num_candidates
        candidates = normals.draw(noise, levels)
        return candidates, normals.log_prob(candidates)

    def _normals(self, globals_: Array) -> Normals:
        """Give a mixture of normals for each site's locals."""
        assert self.places is not None
        values, parts, has_place = self.places
        coordinates = self.posterior.coordinates
        own = coordinates.decode(self.program, Latents(globals_, self.anchors))

        def encode(place: dict[str, Array]) -> Array:
            start = jnp.nan_to_num(coordinates.encode(self.program, {**own, **place}).locals)
            return jnp.clip(start, -MAX_MEAN, MAX_MEAN)

        found, log_masses = solve_parts(
            self.posterior, self.program, self.observed, globals_, jax.vmap(encode)(values), parts
        )
        return mix(found, jnp.where(has_place, jnp.nan_to_num(log_masses, nan=_IMPOSSIBLE), -jnp.inf))

    def learned(self, globals_: Array) -> Linearized:
        """Give the network's normal approximation of each site's locals.

        Its residuals are U e^-b (L^T (z - m) - a), U unit lower triangular and L the factor of the linearization, so
        that the precision is that of their squares.
        """
        posterior = self.posterior
        base = posterior.linearized(self.program, globals_, self.observed)
        relative = posterior.relative(self.program, globals_, base, self.anchors.shape[0])
        level, weights = posterior.level("local"), posterior.local_weights
        assert weights is not None
        _, gaussian = apply(level.net, weights.head, self.encoding, relative, method="predict")
        unit = jnp.broadcast_to(jnp.eye(level.dim), base.factor.shape)
        unit = unit if gaussian.lower is None else unit + gaussian.lower
        whitening = jnp.einsum("sij,sj,skj->sik", unit, jnp.exp(-gaussian.log_scale), base.factor)
        precision = jnp.einsum("ski,skj->sij", whitening, whitening)
        return Linearized(base.color(gaussian.loc), cholesky(precision, min_eigenvalue=1e-6))

    def polish(self, globals_: Array, start: Array) -> Linearized:
        """Approximate each site's locals by Gauss-Newton from a start `[S, d]`."""
        coordinates, surrogates = self.posterior.coordinates, self.posterior.surrogates
        return linearize(
            self.program, coordinates, surrogates, globals_, self.observed, start=start, num_rounds=_LOCAL_ROUNDS
        )


def make_target(posterior: Posterior, program: Program, observed: Observed, globals_: Array) -> Target:
    """Prepare a data set.

    A site's posterior may have several peaks of which the network knows one, or be so narrow that it misses it. So
    Gauss-Newton starts from the network's mean and from many points of the prior, and the likeliest end is kept.

    Args:
        posterior: The amortized posterior.
        program: The program at the data set's sites.
        observed: The data.
        globals_: Globals near the posterior, `[d_g]`, at which the locals are searched.
    """
    num_sites, dim = observed.site_mask.shape[0], posterior.coordinates.dim("local")
    target = Target(posterior, program, observed, None, jnp.zeros((num_sites, dim)))
    if posterior.local_weights is None:
        return target
    net = posterior.level("local").net
    encoding = apply(net, posterior.local_weights.head, posterior.view.features(observed), method="encode")
    target = target._replace(encoding=encoding)
    learned = target.learned(globals_).mean
    spread = jax.random.normal(jax.random.key(0), (_NUM_STARTS, 1, dim))
    starts = jnp.concatenate([learned[None], jnp.broadcast_to(spread, (_NUM_STARTS, num_sites, dim))])

    def search(start: Array) -> tuple[Array, Array]:
        mean = target.polish(globals_, start).mean
        return mean, target.log_joint(globals_, mean)[1]

    if any(surrogate.law is not None for surrogate in posterior.surrogates):
        return target._replace(places=_find_places(target, globals_, starts))
    means, values = jax.lax.map(search, starts, batch_size=8)
    return target._replace(anchors=means[jnp.argmax(values, axis=0), jnp.arange(num_sites)])


def _find_places(target: Target, globals_: Array, starts: Array) -> tuple[dict[str, Array], Array, Array]:
    """Find where the parts of the noise put a site's locals, from starts `[n, S, d]`.

    Ends of Gauss-Newton that are apart from each other are chosen first, the most massive first. From each of them
    every part goes on by itself, and the most massive results are kept.

    Returns:
        Values of the locals there, the part of each, and which of them a site has.
    """
    problem = (target.posterior, target.program, target.observed, globals_)
    num_sites, dim = target.anchors.shape
    _, number = count_parts(target.posterior.surrogates, target.observed)
    parts = jnp.broadcast_to(jnp.arange(number)[:, None], (number, num_sites))
    sites = jnp.arange(num_sites)

    def search(start: Array) -> tuple[Linearized, Linearized, Array]:
        base = solve_moments(*problem, start, _LOCAL_ROUNDS)
        repeated = jnp.broadcast_to(base.mean, (number, num_sites, dim))
        found, masses = solve_parts(*problem, repeated, parts, num_rounds=_PART_ROUNDS)
        return base, found, jnp.nan_to_num(masses, nan=-jnp.inf, posinf=-jnp.inf, neginf=-jnp.inf)

    bases, found, masses = jax.lax.map(search, starts, batch_size=8)
    total = jax.scipy.special.logsumexp(masses, axis=1)

    def choose(left: Array, _: None) -> tuple[Array, tuple[Linearized, Array]]:
        best = jnp.argmax(left, axis=0)
        own = Linearized(bases.mean[best, sites], bases.factor[best, sites])
        near = jnp.sum(jax.vmap(own.whiten)(bases.mean) ** 2, axis=-1) < _APART**2
        masses_there = jnp.where(jnp.isfinite(jnp.max(left, axis=0))[None], masses[best, :, sites].T, -jnp.inf)
        there = jax.tree.map(lambda array: jnp.moveaxis(array[best, :, sites], 0, 1), found)
        return jnp.where(near, -jnp.inf, left), (there, masses_there)

    _, (there, masses) = jax.lax.scan(choose, total, None, length=_NUM_PLACES)
    means = there.mean.reshape(-1, num_sites, dim)
    masses = _drop_repeated(there, masses).reshape(-1, num_sites)
    most = min(_MAX_PARTS, masses.shape[0])
    log_masses, picks = jax.lax.top_k(masses.T, most)
    chosen = means[picks.T, sites[None]]
    decode = target.posterior.coordinates.decode
    values = jax.vmap(lambda mean: decode(target.program, Latents(globals_, mean)))(chosen)
    # A site without any finite mass keeps one place all the same.
    has_place = jnp.isfinite(log_masses.T).at[0].set(True)
    names = target.posterior.coordinates.names("local")
    return {name: values[name] for name in names}, picks.T % number, has_place


def _drop_repeated(found: Linearized, masses: Array) -> Array:
    """Leave out what a part of the noise found from an earlier place already; all have axes `[A, K, S]` in front."""
    gap = found.mean[None] - found.mean[:, None]
    distance = jnp.sum(jnp.einsum("aksij,abksi->abksj", found.factor, gap) ** 2, axis=-1)
    number = masses.shape[0]
    earlier = jnp.arange(number)[:, None] < jnp.arange(number)[None, :]
    repeated = (distance < 1.0) & earlier[:, :, None, None] & jnp.isfinite(masses)[:, None]
    return jnp.where(jnp.any(repeated, axis=0), -jnp.inf, masses)


def effective_share(log_weights: Array) -> Array:
    """Give the effective number of draws with such weights along the last axis, as a share of all."""
    weights = jax.nn.softmax(log_weights, axis=-1)
    return 1.0 / (jnp.sum(weights**2, axis=-1) * log_weights.shape[-1])


def _log_mixture(proposals: tuple[Linearized, Linearized], shares: tuple[float, ...], locals_: Array) -> Array:
    """Give the log density of locals `[S, d]` under the first proposal, narrow and wide, and the second, `[S]`."""
    dim = locals_.shape[-1]
    squares = [jnp.sum(proposal.whiten(locals_) ** 2, axis=-1) for proposal in proposals]
    volumes = [jnp.sum(jnp.log(jnp.diagonal(p.factor, axis1=-2, axis2=-1)), axis=-1) for p in proposals]
    terms = [
        volumes[0] - 0.5 * squares[0] + math.log(shares[0]),
        volumes[0] - 0.5 * squares[0] / _WIDER**2 - dim * math.log(_WIDER) + math.log(shares[1]),
        volumes[1] - 0.5 * squares[1] + math.log(shares[2]),
    ]
    return jax.scipy.special.logsumexp(jnp.stack(terms), axis=0) - 0.5 * dim * _LOG_2PI

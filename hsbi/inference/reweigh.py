"""Move draws to the posterior that the surrogates themselves imply, by importance weights.

An amortized network sees thousands of data sets and is right on average, but where a posterior is a thousandth of its
prior it is off by much of its width. Where surrogates have densities without a flow, they say what the posterior of a
data set is, and the network's draws say where to look: a population of globals moves there in rounds of population
Monte Carlo. Each round proposes from a mixture of kernels around the last population and draws anew by weight, with the
locals integrated out. At the end each draw's locals are chosen among fresh candidates by theirs.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.inference.arrays import Latents
from hsbi.inference.batch import Observed
from hsbi.inference.posterior import Posterior
from hsbi.inference.target import WIDE_SHARE, Target, effective_share, make_target
from hsbi.model.program import Program
from hsbi.networks.triangular import cholesky, solve_lower

# Widths of the kernels in units of the population's spread: while it moves, and at last.
_WIDTHS, _LAST_WIDTH = (1.5, 0.8, 0.5), 0.5
# Rounds go on while less than this share of the population counts. In d dimensions kernels of width w make a population
# (1 + w^2)^(d / 2) times larger before weights make it smaller, so further rounds have narrow ones.
_ENOUGH, _LEAST_ROUNDS, _MAX_ROUNDS = 0.1, 2, 12
# A population has a gap where a split explains this share of a coordinate's variance, with so many on each side.
_LEAST_EXPLAINED, _LEAST_SIDE = 0.85, 0.02
# Evaluations of a surrogate at one point that a round may cost, about. Few data leave more for a larger population and
# for more candidates of each site's locals: one site whose posterior is far from normal is noise in all weights.
_MAX_EVALUATIONS = 2**22
# Bounds on the members of a population, and on the candidates while it moves, for the last weights, and for the draws.
_POPULATION, _LAST_POPULATION = (256, 512), (512, 2048)
_MOVING, _WEIGHING, _DRAWING = 16, (32, 256), (8, 32)
# Weights are flattened in all but the last round until at least this share of the population counts.
_LEAST_SHARE = 0.1
# The last population is smoothed by kernels of this width, shrunk so that mean and covariance stay as they are.
_SMOOTHING = 0.25
# Below these shares the proposals did not find the posterior, and the network's globals, or all of its draws, stay.
_LEAST_GLOBALS, _LEAST_LOCALS = 0.02, 0.1


class Efficiency(NamedTuple):
    """How well proposals met the posterior: effective shares of the draws tried, from 0 to 1.

    Attributes:
        globals: Of the last population.
        locals: Of the candidates of a site, the mean over sites and draws.
    """

    globals: Array
    locals: Array


def can_reweigh(posterior: Posterior) -> bool:
    """Say whether all surrogates have densities that cost no more than one evaluation."""
    known = bool(posterior.surrogates) and all(surrogate.flow is None for surrogate in posterior.surrogates)
    return known and posterior.config.refine


def reweigh(
    posterior: Posterior, program: Program, observed: Observed, draws: Latents, key: Array
) -> tuple[Latents, Efficiency]:
    """Draw from the surrogates' posterior of one data set.

    Where proposals hardly meet it, as the efficiency says, the draws are given back as they are.

    Args:
        posterior: The amortized posterior.
        program: The program at the data set's sites.
        observed: The data set.
        draws: Draws of the amortized posterior; as many are given back.
        key: A random key.
    """
    num_draws, dim = draws.globals.shape
    pick_key, round_key, last_key, smooth_key, local_key = jax.random.split(key, 5)
    globals_, share = draws.globals, jnp.ones(())
    target = make_target(posterior, program, observed, jnp.mean(globals_, axis=0))
    points = sum(math.prod(value.shape[:-1]) for value in observed.values.values())
    if dim:
        size = _choose(_POPULATION, points * _MOVING)
        picks = jax.random.randint(pick_key, (size,), 0, num_draws)

        keys, widths = jax.random.split(round_key, _MAX_ROUNDS), jnp.asarray(_WIDTHS)

        def is_moving(state: tuple[Array, Array, Array]) -> Array:
            turn, _, found = state
            return (turn < _LEAST_ROUNDS) | ((turn < _MAX_ROUNDS) & (found < _ENOUGH))

        def move(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            turn, population, _ = state
            width = widths[jnp.minimum(turn, len(_WIDTHS) - 1)]
            proposed, log_weights = _advance(target, keys[turn], population, width, size, _MOVING)
            chosen = jax.random.categorical(keys[turn], _flatten(log_weights), shape=(size,))
            return turn + 1, proposed[chosen], effective_share(log_weights)

        _, population, _ = jax.lax.while_loop(is_moving, move, (jnp.zeros((), int), globals_[picks], jnp.zeros(())))
        number = _choose(_WEIGHING, points * _POPULATION[1], 2 * WIDE_SHARE)
        size = _choose(_LAST_POPULATION, points * number)
        proposed, log_weights = _advance(target, last_key, population, jnp.asarray(_LAST_WIDTH), size, number)
        share = effective_share(log_weights)
        moved = _smooth(smooth_key, proposed, log_weights, num_draws)
        # Locals can be drawn given any globals, those of the network as well.
        globals_ = jnp.where(share > _LEAST_GLOBALS, moved, globals_)
    number = _choose(_DRAWING, points * num_draws // 4, 4)
    _, locals_, local_share = target.evaluate(globals_, jax.random.split(local_key, num_draws), number)
    found = local_share > _LEAST_LOCALS
    moved = jax.tree.map(lambda new, old: jnp.where(found, new, old), Latents(globals_, locals_), draws)
    return moved, Efficiency(share, local_share)


def _choose(bounds: tuple[int, int], cost: int, multiple: int = 1) -> int:
    """Choose how many may be evaluated at a cost each, within bounds that are multiples of a number."""
    number = max(bounds[0], min(bounds[1], _MAX_EVALUATIONS // max(cost, 1)))
    return number - number % multiple


def _advance(
    target: Target, key: Array, population: Array, width: Array, number: int, num_candidates: int
) -> tuple[Array, Array]:
    """Propose a number of globals around a population; gives them and their log weights."""
    pick_key, noise_key, local_key = jax.random.split(key, 3)
    size, dim = population.shape
    _, factors = _neighborhoods(population)
    picks = jax.random.randint(pick_key, (number,), 0, size)
    noise = jax.random.normal(noise_key, (number, dim))
    proposed = population[picks] + width * jnp.einsum("nij,nj->ni", factors[picks], noise)

    log_proposal = _log_kernels(proposed, population, width * factors)
    # All members of a population share the candidates' noise, so that they are compared on equal terms.
    keys = jnp.broadcast_to(local_key, (number, *local_key.shape))
    log_target, _, _ = target.evaluate(proposed, keys, num_candidates)
    return proposed, jnp.nan_to_num(log_target - log_proposal, nan=-jnp.inf)


def _log_kernels(points: Array, centers: Array, factors: Array) -> Array:
    """Evaluate the log density of points `[n, d]` under normals around centers, up to a constant, `[n]`."""
    identity = jnp.broadcast_to(jnp.eye(centers.shape[1]), factors.shape)
    columns = [solve_lower(factors, identity[..., place]) for place in range(centers.shape[1])]
    inverse = jnp.stack(columns, axis=-1)
    distance = jnp.einsum("sij,nsj->nsi", inverse, points[:, None] - centers[None])
    log_volume = jnp.sum(jnp.log(jnp.diagonal(factors, axis1=-2, axis2=-1)), axis=-1)
    return jax.scipy.special.logsumexp(-0.5 * jnp.sum(distance**2, axis=-1) - log_volume[None], axis=1)


def _neighborhoods(population: Array) -> tuple[Array, Array]:
    """Give the mean and the lower Cholesky factor of the covariance around each member, `[n, d]` and `[n, d, d]`.

    They are those of the members on the same side of every gap: where a population falls apart into modes, kernels as
    wide as all of it would propose what lies between.
    """
    center, scale = jnp.mean(population, axis=0), jnp.std(population, axis=0) + 1e-9
    unit = (population - center) / scale
    ends, has_gap = jax.vmap(_find_gap)(unit.T)
    upper = (unit > ends[None]) & has_gap[None]
    together = jnp.all(upper[:, None] == upper[None], axis=-1).astype(unit.dtype)
    number = jnp.sum(together, axis=1, keepdims=True)
    mean = together @ unit / number
    products = (unit[:, :, None] * unit[:, None, :]).reshape(unit.shape[0], -1)
    square = (together @ products / number).reshape(*unit.shape, -1)
    covariance = square - mean[:, :, None] * mean[:, None, :]
    own = jnp.sqrt(jnp.maximum(jnp.diagonal(covariance, axis1=-2, axis2=-1), 1e-12))
    correlation = covariance / (own[:, :, None] * own[:, None, :])
    factor = cholesky(correlation + 1e-4 * jnp.eye(scale.size)[None], min_eigenvalue=1e-4)
    return center + scale * mean, scale[None, :, None] * own[:, :, None] * factor


def _find_gap(values: Array) -> tuple[Array, Array]:
    """Split values at the point that leaves the least variance within both sides; gives it, and whether it is a gap.

    A split of a normal explains 64 % of its variance, and one of a uniform 75 %.
    """
    ordered = jnp.sort(values)
    number = ordered.size
    below = jnp.arange(1, number)
    total = jnp.sum(ordered)
    first = jnp.cumsum(ordered)[:-1]
    difference = first / below - (total - first) / (number - below)
    explained = below * (number - below) / number**2 * difference**2 / jnp.maximum(jnp.var(ordered), 1e-12)
    explained = jnp.where(jnp.minimum(below, number - below) >= _LEAST_SIDE * number, explained, 0.0)
    best = jnp.argmax(explained)
    return 0.5 * (ordered[best] + ordered[best + 1]), explained[best] > _LEAST_EXPLAINED


def _smooth(key: Array, population: Array, log_weights: Array, number: int) -> Array:
    """Draw by weight, and spread copies of a member by kernels that leave mean and covariance as they are."""
    pick_key, noise_key = jax.random.split(key)
    chosen = population[jax.random.categorical(pick_key, log_weights, shape=(number,))]
    means, factors = _neighborhoods(chosen)
    noise = jnp.einsum("nij,nj->ni", factors, jax.random.normal(noise_key, chosen.shape))
    return means + math.sqrt(1.0 - _SMOOTHING**2) * (chosen - means) + _SMOOTHING * noise


def _flatten(log_weights: Array) -> Array:
    """Raise weights to the largest power, by halves, at which enough of them count."""
    powers = 0.5 ** jnp.arange(12)
    enough = effective_share(powers[:, None] * log_weights[None]) >= _LEAST_SHARE
    return powers[jnp.argmax(enough)] * log_weights

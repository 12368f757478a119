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

# Widths of the kernels in units of the population's spread: while it moves, and at last.
_WIDTHS, _LAST_WIDTH = (1.5, 0.8, 0.5), 0.5
# Rounds go on while less than this share of the population counts. In d dimensions kernels of width w make a population
# (1 + w^2)^(d / 2) times larger before weights make it smaller, so further rounds have narrow ones.
_ENOUGH, _LEAST_ROUNDS, _MAX_ROUNDS = 0.1, 2, 12
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
# Below these shares the proposals did not find the posterior, and the network's draws stay as they are.
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
        globals_ = _smooth(smooth_key, proposed, log_weights, num_draws)
    number = _choose(_DRAWING, points * num_draws // 4, 4)
    _, locals_, local_share = target.evaluate(globals_, jax.random.split(local_key, num_draws), number)
    found = (share > _LEAST_GLOBALS) & (local_share > _LEAST_LOCALS)
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
    factor = width * _spread(population)
    centers = population[jax.random.randint(pick_key, (number,), 0, size)]
    proposed = centers + jax.random.normal(noise_key, (number, dim)) @ factor.T
    distance = jnp.linalg.solve(factor, (proposed[:, None] - population[None]).reshape(-1, dim).T)
    log_kernel = -0.5 * jnp.sum(distance**2, axis=0).reshape(number, size)
    log_proposal = jax.scipy.special.logsumexp(log_kernel, axis=1)
    # All members of a population share the candidates' noise, so that they are compared on equal terms.
    keys = jnp.broadcast_to(local_key, (number, *local_key.shape))
    log_target, _, _ = target.evaluate(proposed, keys, num_candidates)
    return proposed, jnp.nan_to_num(log_target - log_proposal, nan=-jnp.inf)


def _spread(population: Array) -> Array:
    """Give the lower Cholesky factor of a population's covariance."""
    centered = population - jnp.mean(population, axis=0)
    covariance = centered.T @ centered / population.shape[0]
    scale = jnp.sqrt(jnp.diagonal(covariance)) + 1e-9
    correlation = covariance / (scale[:, None] * scale[None, :])
    return scale[:, None] * jnp.linalg.cholesky(correlation + 1e-4 * jnp.eye(scale.size))


def _smooth(key: Array, population: Array, log_weights: Array, number: int) -> Array:
    """Draw by weight, and spread copies of a member by kernels that leave mean and covariance as they are."""
    pick_key, noise_key = jax.random.split(key)
    chosen = population[jax.random.categorical(pick_key, log_weights, shape=(number,))]
    mean = jnp.mean(chosen, axis=0)
    noise = jax.random.normal(noise_key, chosen.shape) @ _spread(chosen).T
    return mean + math.sqrt(1.0 - _SMOOTHING**2) * (chosen - mean) + _SMOOTHING * noise


def _flatten(log_weights: Array) -> Array:
    """Raise weights to the largest power, by halves, at which enough of them count."""
    powers = 0.5 ** jnp.arange(12)
    enough = effective_share(powers[:, None] * log_weights[None]) >= _LEAST_SHARE
    return powers[jnp.argmax(enough)] * log_weights

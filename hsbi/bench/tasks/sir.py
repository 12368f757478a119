r"""SIR: epidemics with a common recovery rate and a contact rate per site.

.. math::

    \gamma \sim \mathrm{LogNormal}(\log 0.125, 0.2), \quad \beta_s \sim \mathrm{LogNormal}(\log 0.4, 0.5), \quad
    y_{st} \sim \mathrm{Binomial}(1000, I_s(t) / N)

with one of N = 10^6 infected on day 0 and counts on days 0, 17, ..., 153. Given :math:`\gamma` sites are integrals over
one contact rate each, and all sites share the trajectories of one grid, so the posterior is a quadrature over
:math:`\log \gamma` and :math:`\log \beta`. Contact rates near the recovery rate give all-zero data; such sites are
kept.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from hsbi.bench.tasks.quadrature import Axes, sample_cells, zoom
from hsbi.bench.tasks.task import Task, as_data, draw_from, generator

_POPULATION = 1e6
_NUM_TESTED = 1000
_INTERVAL = 17
_NUM_TIMES = 10
_GAMMA_PRIOR = (np.log(0.125), 0.2)
_BETA_PRIOR = (np.log(0.4), 0.5)
_PRIOR_RANGE = 5.0
# Contact rates are known to about 0.25 % at best. The midpoint rule is exact to 1e-5 for cells of that width, while
# draws are spread over cells, which at half of it widens them by 1 %.
_NUM_BETA, _NUM_BETA_DRAWS = 2_000, 4_000


def log_infected(beta: ArrayLike, gamma: ArrayLike) -> Array:
    """Give the log share of infected on the days of observation, `[..., 10]`.

    Log shares are integrated rather than shares, so that exponential growth is exact and none gets negative.
    """
    beta, gamma = jnp.asarray(beta), jnp.asarray(gamma)
    state = (jnp.full(jnp.shape(beta), jnp.log1p(-1 / _POPULATION)), jnp.full(jnp.shape(beta), -jnp.log(_POPULATION)))

    def slope(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return -beta * jnp.exp(state[1]), beta * jnp.exp(state[0]) - gamma

    def day(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        def move(step: float, by: tuple[Array, Array]) -> tuple[Array, Array]:
            return state[0] + step * by[0], state[1] + step * by[1]

        k1 = slope(state)
        k2 = slope(move(0.5, k1))
        k3 = slope(move(0.5, k2))
        k4 = slope(move(1.0, k3))
        return (
            state[0] + (k1[0] + 2 * k2[0] + 2 * k3[0] + k4[0]) / 6,
            state[1] + (k1[1] + 2 * k2[1] + 2 * k3[1] + k4[1]) / 6,
        ), None

    def interval(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        return jax.lax.scan(day, state, None, length=_INTERVAL)[0], state[1]

    _, values = jax.lax.scan(interval, state, None, length=_NUM_TIMES)
    return jnp.moveaxis(values, 0, -1)


def model(num_sites: int, y: Array | None = None) -> None:
    """Write the task as a NumPyro program."""
    gamma = numpyro.sample("gamma", dist.LogNormal(*_GAMMA_PRIOR))
    with numpyro.plate("site", num_sites):
        beta = numpyro.sample("beta", dist.LogNormal(*_BETA_PRIOR))
        infected = jnp.exp(log_infected(beta, gamma))
        numpyro.sample("y", dist.Binomial(_NUM_TESTED, infected).to_event(1), obs=y)


def draw(key: Array, num_sites: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw latents from the prior and a data set."""
    return draw_from(model, key, num_sites)


def reference(key: Array, y: ArrayLike, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the exact posterior."""
    y = as_data("sir", y, (_NUM_TIMES,))

    def evaluate(axes: Axes) -> np.ndarray:
        return np.asarray(_log_marginals(jnp.asarray(y), jnp.asarray(axes[0])), float)

    ends = [_GAMMA_PRIOR[0] + sign * _PRIOR_RANGE * _GAMMA_PRIOR[1] for sign in (-1, 1)]
    axes, values = zoom(evaluate, ends[:1], ends[1:], coarse=24, final=48)
    rng = generator(key)
    log_gamma = sample_cells(rng, axes, values, num_draws)[:, 0]
    nearest = np.argmin(np.abs(log_gamma[:, None] - axes[0]), axis=1)
    log_beta = np.empty((num_draws, len(y)))
    grid, width = _beta_grid(_NUM_BETA_DRAWS)
    for cell in np.unique(nearest):
        rows = np.flatnonzero(nearest == cell)
        weights = np.asarray(_log_sites(jnp.asarray(y), jnp.asarray(axes[0][cell]), _NUM_BETA_DRAWS), float)
        cumulative = np.cumsum(np.exp(weights - weights.max(1, keepdims=True)), axis=1)
        for site, total in enumerate(cumulative):
            chosen = np.searchsorted(total, rng.random(len(rows)) * total[-1], side="right")
            log_beta[rows, site] = grid[np.minimum(chosen, _NUM_BETA_DRAWS - 1)]
    log_beta += width * (rng.random(log_beta.shape) - 0.5)
    return {"gamma": np.exp(log_gamma), "beta": np.exp(log_beta)}


def _beta_grid(count: int) -> tuple[np.ndarray, float]:
    width = 2 * _PRIOR_RANGE * _BETA_PRIOR[1] / count
    return _BETA_PRIOR[0] - _PRIOR_RANGE * _BETA_PRIOR[1] + width * (np.arange(count) + 0.5), width


@functools.partial(jax.jit, static_argnames="count")
def _log_sites(y: Array, log_gamma: Array, count: int) -> Array:
    """Give the log of prior times likelihood for every site and contact rate, `[sites, rates]`."""
    log_beta = jnp.asarray(_beta_grid(count)[0], dtype=jnp.result_type(float))
    log_share = log_infected(jnp.exp(log_beta), jnp.exp(log_gamma))
    log_rest = jnp.log1p(-jnp.exp(log_share))
    prior = -0.5 * ((log_beta - _BETA_PRIOR[0]) / _BETA_PRIOR[1]) ** 2
    return y @ log_share.T + (_NUM_TESTED - y) @ log_rest.T + prior


@jax.jit
def _log_marginals(y: Array, log_gamma: Array) -> Array:
    """Give the log posterior of the recovery rate at every value, up to a constant."""

    def one(value: Array) -> Array:
        prior = -0.5 * ((value - _GAMMA_PRIOR[0]) / _GAMMA_PRIOR[1]) ** 2
        return prior + jax.scipy.special.logsumexp(_log_sites(y, value, _NUM_BETA), axis=1).sum()

    return jax.lax.map(one, log_gamma)


TASK = Task(
    name="sir",
    model=model,
    draw=draw,
    reference=reference,
    global_names=("gamma",),
    local_names=("beta",),
)

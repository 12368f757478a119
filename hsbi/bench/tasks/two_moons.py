r"""Two Moons: partial pooling of sites that are seen through a crescent and a fold.

.. math::

    \mu_g \sim \mathrm{Uniform}(-1, 1)^2, \quad \sigma_g \sim \mathrm{Uniform}(0.1, 3)^2, \quad
    \eta_s \sim N(\mu_g, \sigma_g^2) \text{ on } [-1, 1]^2

.. math::

    y_s = \begin{pmatrix} r \cos a + 0.25 - |\eta_1 + \eta_2| / \sqrt2 \\ r \sin a + (\eta_2 - \eta_1) / \sqrt2
    \end{pmatrix}, \quad a \sim \mathrm{Uniform}(-\pi/2, \pi/2), \quad r \sim N(0.1, 0.01^2)

For given (a, r) two values of :math:`\eta_s` give :math:`y_s`, and the map keeps areas, so a site's marginal is the
mean over (a, r) of the prior density at both. On a fixed rule of nodes that is a sum of products of a function of
:math:`(\mu_1, \sigma_1)` and one of :math:`(\mu_2, \sigma_2)`: a matrix product gives it on a grid in four
dimensions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from scipy.special import ndtr, ndtri

from hsbi.bench.tasks.quadrature import Axes, sample_density, zoom
from hsbi.bench.tasks.task import Task, as_data, draw_from, generator
from hsbi.model.simulator import Simulator

_RADIUS, _SPREAD = 0.1, 0.01
_OFFSET = 0.25
_LOW_SCALE, _HIGH_SCALE = 0.1, 3.0
_NUM_ANGLES, _NUM_RADII = 48, 4
_NUM_CANDIDATES = 12
# The prior density changes by less than this factor between a node and a point of its cell, but in the far tail.
_MAX_RATIO = 2.0


def crescent(key: Array, eta: Array) -> Array:
    """Simulate one site."""
    key_angle, key_radius = jax.random.split(key)
    angle = jax.random.uniform(key_angle, minval=-jnp.pi / 2, maxval=jnp.pi / 2)
    radius = _RADIUS + _SPREAD * jax.random.normal(key_radius)
    point = jnp.stack([radius * jnp.cos(angle) + _OFFSET, radius * jnp.sin(angle)])
    return point + jnp.stack([-jnp.abs(eta[0] + eta[1]), eta[1] - eta[0]]) / jnp.sqrt(2.0)


def log_crescent(y: Array, eta: Array) -> Array:
    """Give the log density of one site; a negative radius, ten standard deviations away, is left out."""
    shift = jnp.stack([-jnp.abs(eta[0] + eta[1]), eta[1] - eta[0]]) / jnp.sqrt(2.0)
    u, v = y[0] - shift[0] - _OFFSET, y[1] - shift[1]
    radius = jnp.sqrt(u**2 + v**2)
    value = dist.Normal(_RADIUS, _SPREAD).log_prob(radius) - jnp.log(jnp.pi * radius)
    return jnp.where(u > 0, value, -jnp.inf)


def model(num_sites: int, y: Array | None = None) -> None:
    """Write the task as a NumPyro program."""
    mu = numpyro.sample("mu_g", dist.Uniform(jnp.full(2, -1.0), 1.0).to_event(1))
    sigma = numpyro.sample("sigma_g", dist.Uniform(jnp.full(2, _LOW_SCALE), _HIGH_SCALE).to_event(1))
    with numpyro.plate("site", num_sites):
        eta = numpyro.sample("eta", dist.TruncatedNormal(mu, sigma, low=-1.0, high=1.0).to_event(1))
        numpyro.sample("y", Simulator(crescent, eta, param_event_dims=(1,), log_prob=log_crescent), obs=y)


def draw(key: Array, num_sites: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw latents from the prior and a data set."""
    return draw_from(model, key, num_sites)


def reference(key: Array, y: ArrayLike, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the exact posterior."""
    y = as_data("two_moons", y, (2,))
    nodes = np.stack([_solutions(row, *_rule()) for row in y])
    inside = [eta[np.all(np.abs(eta) <= 1, axis=1)] for eta in nodes]

    def evaluate(axes: Axes) -> np.ndarray:
        shape = [len(axis) for axis in axes]
        points = [np.stack(np.meshgrid(axes[k], np.exp(axes[k + 2]), indexing="ij")).reshape(2, -1, 1) for k in (0, 1)]
        total = np.zeros((points[0].shape[1], points[1].shape[1]))
        for eta in inside:
            first, second = (_scaled_density(eta[:, k], *points[k]) for k in (0, 1))
            total += np.log(np.maximum(first @ second.T, 1e-300))
        total = np.transpose(total.reshape(shape[0], shape[2], shape[1], shape[3]), (0, 2, 1, 3))
        return total + axes[2][:, None] + axes[3]

    def log_density(mu_1: np.ndarray, mu_2: np.ndarray, log_1: np.ndarray, log_2: np.ndarray) -> np.ndarray:
        mu, sigma = np.stack([mu_1, mu_2], axis=-1), np.exp(np.stack([log_1, log_2], axis=-1))
        constant = log_1 + log_2 - len(y) * np.log(_mass(mu, sigma)).sum(1)
        return constant + np.asarray(_log_sums(jnp.asarray(nodes), jnp.asarray(mu), jnp.asarray(sigma)), float)

    rng = generator(key)
    scales = np.log([_LOW_SCALE, _HIGH_SCALE])
    low, high = [-1.0, -1.0, scales[0], scales[0]], [1.0, 1.0, scales[1], scales[1]]
    axes, values = zoom(evaluate, low, high, coarse=10, final=24)
    draws = sample_density(rng, axes, values, log_density, num_draws)
    mu, sigma = draws[:, :2], np.exp(draws[:, 2:])
    eta = np.stack([_sample_site(rng, row, eta, mu, sigma) for row, eta in zip(y, nodes, strict=True)], axis=1)
    return {"mu_g": mu, "sigma_g": sigma, "eta": eta}


def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Give equally likely angles and radii, every pair of them."""
    angle, radius = np.meshgrid(np.arange(_NUM_ANGLES), np.arange(_NUM_RADII), indexing="ij")
    return _noise_at((angle.ravel() + 0.5) / _NUM_ANGLES, (radius.ravel() + 0.5) / _NUM_RADII)


def _noise_at(angle_level: np.ndarray, radius_level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the angle and the radius at levels of their distribution functions."""
    return np.pi * (angle_level - 0.5), _RADIUS + _SPREAD * ndtri(radius_level)


def _solutions(y: np.ndarray, angle: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Give both latents that lead to y for each noise, `[2 noises, 2]`; what has no solution lies out of the box."""
    total = -np.sqrt(2.0) * (y[0] - radius * np.cos(angle) - _OFFSET)
    gap = np.sqrt(2.0) * (y[1] - radius * np.sin(angle))
    total = np.where(total >= 0, total, np.inf)
    both = np.concatenate([total, -total])
    gap = np.concatenate([gap, gap])
    return np.stack([(both - gap) / 2, (both + gap) / 2], axis=-1)


def _mass(mu: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Give the integral of the unnormalized prior over the box's side, up to a constant."""
    return sigma * (ndtr((1 - mu) / sigma) - ndtr((-1 - mu) / sigma))


def _scaled_density(eta: np.ndarray, mu: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Give the truncated normal density along one axis, up to a constant."""
    return np.exp(-0.5 * ((eta - mu) / sigma) ** 2) / _mass(mu, sigma)


@jax.jit
def _log_sums(nodes: Array, mu: Array, sigma: Array) -> Array:
    """Give the log product over sites of the sums of the unnormalized prior over nodes, for every row of globals."""

    def add(total: Array, eta: Array) -> tuple[Array, None]:
        inside = jnp.all(jnp.abs(eta) <= 1, axis=-1)
        eta = jnp.where(inside[:, None], eta, 0.0)
        exponent = -0.5 * jnp.sum(((eta - mu[:, None]) / sigma[:, None]) ** 2, axis=-1)
        return total + jax.scipy.special.logsumexp(jnp.where(inside, exponent, -jnp.inf), axis=1), None

    return jax.lax.scan(add, jnp.zeros(len(mu)), nodes)[0]


def _sample_site(
    rng: np.random.Generator, y: np.ndarray, nodes: np.ndarray, mu: np.ndarray, sigma: np.ndarray
) -> np.ndarray:
    """Draw one site's latents for each draw of the globals, `[draws, 2]`.

    A node is drawn by its weight, then noise anew in the node's cell, accepted by the ratio of prior densities.
    """
    inside = np.flatnonzero(np.all(np.abs(nodes) <= 1, axis=1))
    mu, sigma = mu[:, None], sigma[:, None]
    exponent = -0.5 * np.sum(((nodes[inside] - mu) / sigma) ** 2, axis=-1)
    cumulative = np.cumsum(np.exp(exponent - exponent.max(1, keepdims=True)), axis=1)
    # Rows are laid end to end, each on an interval of its own, so that one search serves all of them.
    row = np.arange(len(cumulative))[:, None]
    levels = row + rng.random((len(cumulative), _NUM_CANDIDATES))
    found = np.searchsorted((cumulative / cumulative[:, -1:] + row).ravel(), levels.ravel()).reshape(levels.shape)
    found = np.clip(found - row * len(inside), 0, len(inside) - 1)
    chosen = inside[found]
    first_branch, (angle, radius) = chosen < len(nodes) // 2, np.divmod(chosen % (len(nodes) // 2), _NUM_RADII)
    noise = rng.random((2, *chosen.shape))
    both = _solutions(y, *_noise_at((angle + noise[0]) / _NUM_ANGLES, (radius + noise[1]) / _NUM_RADII))
    eta = np.where(first_branch[..., None], both[: len(row)], both[len(row) :])
    within = np.all(np.abs(eta) <= 1, axis=-1)
    moved = -0.5 * np.sum(((np.where(within[..., None], eta, 0.0) - mu) / sigma) ** 2, axis=-1)
    ratio = np.where(within, np.exp(np.minimum(moved - np.take_along_axis(exponent, found, axis=1), 50.0)), 0.0)
    accepted = rng.random(ratio.shape) * _MAX_RATIO < ratio
    best = np.where(accepted.any(1), accepted.argmax(1), ratio.argmax(1))
    return eta[row[:, 0], best]


TASK = Task(
    name="two_moons",
    model=model,
    draw=draw,
    reference=reference,
    global_names=("mu_g", "sigma_g"),
    local_names=("eta",),
)

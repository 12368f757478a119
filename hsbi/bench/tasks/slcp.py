r"""SLCP (simple likelihood, complex posterior): a common covariance and the means of sites.

.. math::

    \sigma_1, \sigma_2, \rho \sim \mathrm{Uniform}(-3, 3), \quad m_s \sim \mathrm{Uniform}(-3, 3)^2, \quad
    y_{sj} \sim N(m_s, \Sigma), \; j = 1, \dots, 4, \quad
    \Sigma = \begin{pmatrix} \sigma_1^4 & \tanh(\rho) \sigma_1^2 \sigma_2^2 \\ \cdot & \sigma_2^4 \end{pmatrix}

The signs of both scales are free, so the posterior has four modes. With the means integrated out a site gives its
scatter's likelihood times the mass of the box under :math:`N(\bar y_s, \Sigma / 4)`; the posterior of
:math:`(\log |\sigma_1|, \log |\sigma_2|, \rho)` is a quadrature, and :math:`m_s` is that normal truncated to the box.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from scipy.special import ndtr

from hsbi.bench.tasks.quadrature import on_points, sample_density, zoom
from hsbi.bench.tasks.task import Task, as_data, draw_from, generator

_BOUND = 3.0
_NUM_REPEATS = 4
# Bounds this many standard deviations away hold all mass.
_FAR = 6.0
# Log masses above 1e-4 are right to 3e-5 up to the largest correlation, 0.995.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_NUM_CANDIDATES = 8
_CHUNK = 1_000


def model(num_sites: int, y: Array | None = None) -> None:
    """Write the task as a NumPyro program."""
    wide = dist.Uniform(-_BOUND, _BOUND)
    sigma_1, sigma_2, rho = (numpyro.sample(name, wide) for name in ("sigma_1", "sigma_2", "rho"))
    # The Cholesky factor in closed form keeps covariances of tiny scales positive in single precision.
    rows = [[sigma_1**2, jnp.zeros(())], [jnp.tanh(rho) * sigma_2**2, sigma_2**2 / jnp.cosh(rho)]]
    factor = jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)
    with numpyro.plate("site", num_sites):
        m = numpyro.sample("m", dist.Uniform(jnp.full(2, -_BOUND), _BOUND).to_event(1))
        repeated = dist.MultivariateNormal(jnp.expand_dims(m, -2), scale_tril=factor)
        numpyro.sample("y", repeated.expand((*jnp.shape(m)[:-1], _NUM_REPEATS)).to_event(1), obs=y)


def draw(key: Array, num_sites: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw latents from the prior and a data set."""
    return draw_from(model, key, num_sites)


def reference(key: Array, y: ArrayLike, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the exact posterior."""
    y = as_data("slcp", y, (_NUM_REPEATS, 2))
    center = y.mean(1)
    scatter = np.einsum("sji,sjk->ik", y - center[:, None], y - center[:, None])

    def log_density(log_1: np.ndarray, log_2: np.ndarray, rho: np.ndarray) -> np.ndarray:
        sd_1, sd_2, r = np.exp(2 * log_1), np.exp(2 * log_2), np.tanh(rho)
        # log(1 - tanh(rho)^2) without cancellation.
        log_rest = -2 * np.log(np.cosh(rho))
        quadratic = scatter[0, 0] / sd_1**2 - 2 * r * scatter[0, 1] / (sd_1 * sd_2) + scatter[1, 1] / sd_2**2
        count = (_NUM_REPEATS - 1) * len(y)
        log_det = 4 * log_1 + 4 * log_2 + log_rest
        value = log_1 + log_2 - 0.5 * quadratic / np.exp(log_rest) - 0.5 * count * log_det
        for start in range(0, len(value), _CHUNK):
            part = slice(start, start + _CHUNK)
            value[part] += _log_box(center, sd_1[part, None] / 2, sd_2[part, None] / 2, r[part, None]).sum(1)
        return value

    rng = generator(key)
    low, high = [-7.0, -7.0, -_BOUND], [np.log(_BOUND), np.log(_BOUND), _BOUND]
    axes, values = zoom(on_points(log_density), low, high, coarse=14, final=20)
    log_1, log_2, rho = sample_density(rng, axes, values, log_density, num_draws).T
    m = _sample_means(rng, center, np.exp(2 * log_1) / 2, np.exp(2 * log_2) / 2, np.tanh(rho))
    signs = rng.choice([-1.0, 1.0], size=(2, num_draws))
    return {"sigma_1": signs[0] * np.exp(log_1), "sigma_2": signs[1] * np.exp(log_2), "rho": rho, "m": m}


def _log_box(center: np.ndarray, sd_1: np.ndarray, sd_2: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Give the log mass of the box under a correlated normal around each center, `[points, sites]`."""
    low = [(-_BOUND - center[:, 0]) / sd_1, (-_BOUND - center[:, 1]) / sd_2]
    high = [(_BOUND - center[:, 0]) / sd_1, (_BOUND - center[:, 1]) / sd_2]
    result = np.zeros(low[0].shape)
    some = (low[0] > -_FAR) | (low[1] > -_FAR) | (high[0] < _FAR) | (high[1] < _FAR)
    corner_low, corner_high = [values[some] for values in low], [values[some] for values in high]
    mass = box_mass(corner_low, corner_high, np.broadcast_to(r, result.shape)[some])
    result[some] = np.log(np.maximum(mass, 1e-300))
    return result


def box_mass(low: Sequence[np.ndarray], high: Sequence[np.ndarray], r: np.ndarray) -> np.ndarray:
    r"""Give the probability of a rectangle under a standard bivariate normal with correlation r.

    With the correlation written as a sine (Plackett), the distribution function is

    .. math::

        \Phi_2(h, k; r) = \Phi(h) \Phi(k) + \frac{1}{2 \pi} \int_0^{\arcsin r}
        \exp\left( - \frac{h^2 + k^2 - 2 h k \sin t}{2 \cos^2 t} \right) dt .
    """
    angle = np.arcsin(r)
    integral = np.zeros_like(r)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        t = angle * (node + 1) / 2
        sine, scale = np.sin(t), -0.5 / np.cos(t) ** 2
        corners = 0.0
        for h, h_sign in ((low[0], -1), (high[0], 1)):
            for k, k_sign in ((low[1], -1), (high[1], 1)):
                corners = corners + h_sign * k_sign * np.exp(scale * (h**2 + k**2 - 2 * h * k * sine))
        integral += weight / 2 * corners
    independent = (ndtr(high[0]) - ndtr(low[0])) * (ndtr(high[1]) - ndtr(low[1]))
    return independent + angle * integral / (2 * np.pi)


def _sample_means(
    rng: np.random.Generator, center: np.ndarray, sd_1: np.ndarray, sd_2: np.ndarray, r: np.ndarray
) -> np.ndarray:
    """Draw each site's mean in the box, `[draws, sites, 2]`, by rejection."""
    result = np.empty((len(sd_1), len(center), 2))
    draw, site = (index.ravel() for index in np.indices(result.shape[:2]))
    while len(draw):
        noise = rng.normal(size=(2, len(draw), _NUM_CANDIDATES))
        first = center[site, 0, None] + sd_1[draw, None] * noise[0]
        tilted = r[draw, None] * noise[0] + np.sqrt(1 - r[draw, None] ** 2) * noise[1]
        values = np.stack([first, center[site, 1, None] + sd_2[draw, None] * tilted], axis=-1)
        inside = np.all(np.abs(values) < _BOUND, axis=-1)
        found = inside.any(1)
        best = inside.argmax(1)
        result[draw[found], site[found]] = values[found, best[found]]
        draw, site = draw[~found], site[~found]
    return result


TASK = Task(
    name="slcp",
    model=model,
    draw=draw,
    reference=reference,
    global_names=("sigma_1", "sigma_2", "rho"),
    local_names=("m",),
)

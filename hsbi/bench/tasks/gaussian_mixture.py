r"""Gaussian Mixture: partial pooling of sites that are seen through narrow or wide noise.

.. math::

    \mu_g \sim \mathrm{Uniform}(-10, 10), \quad \sigma_g \sim \mathrm{HalfNormal}(1), \quad
    \eta_s \sim N(\mu_g, \sigma_g^2) \text{ on } [-10, 10], \quad
    y_s \sim \tfrac12 N(\eta_s, 1) + \tfrac12 N(\eta_s, 0.01)

With noise variance v the site's marginal is :math:`N(y; \mu_g, \sigma_g^2 + v) Z_v / Z`, where Z and :math:`Z_v` are
the masses of the box under the prior and the untruncated posterior of :math:`\eta_s`. The posterior of the two globals
is a quadrature, and given them :math:`\eta_s` is a mixture of two truncated normals.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from scipy.special import expit

from hsbi.bench.tasks.quadrature import log_box_mass, on_points, sample_density, sample_truncated, zoom
from hsbi.bench.tasks.task import Task, as_data, draw_from, generator

_BOUND = 10.0
_VARIANCES = np.array([1.0, 0.01])


def model(num_sites: int, y: Array | None = None) -> None:
    """Write the task as a NumPyro program."""
    mu = numpyro.sample("mu_g", dist.Uniform(-_BOUND, _BOUND))
    sigma = numpyro.sample("sigma_g", dist.HalfNormal(1.0))
    with numpyro.plate("site", num_sites):
        eta = numpyro.sample("eta", dist.TruncatedNormal(mu, sigma, low=-_BOUND, high=_BOUND))
        parts = dist.Normal(jnp.expand_dims(eta, -1), jnp.asarray(np.sqrt(_VARIANCES)))
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), parts), obs=y)


def draw(key: Array, num_sites: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw latents from the prior and a data set."""
    return draw_from(model, key, num_sites)


def reference(key: Array, y: ArrayLike, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the exact posterior."""
    y = as_data("gaussian_mixture", y, ())

    def log_density(mu: np.ndarray, log_sigma: np.ndarray) -> np.ndarray:
        parts = _log_parts(mu[:, None], np.exp(log_sigma)[:, None], y)[0]
        return log_sigma - 0.5 * np.exp(2 * log_sigma) + np.logaddexp(*parts).sum(1)

    rng = generator(key)
    # Below exp(-9) the scale is too small to matter and holds about 1e-4 of the prior's mass.
    axes, values = zoom(on_points(log_density), [-_BOUND, -9.0], [_BOUND, 1.7], coarse=32, final=80)
    mu, log_sigma = sample_density(rng, axes, values, log_density, num_draws).T
    parts, location, scale = _log_parts(mu[:, None], np.exp(log_sigma)[:, None], y)
    chosen = (rng.random(parts[0].shape) < expit(parts[1] - parts[0])).astype(int)[None]
    location, scale = (np.take_along_axis(values, chosen, axis=0)[0] for values in (location, scale))
    eta = sample_truncated(rng, location, scale, -_BOUND, _BOUND)
    return {"mu_g": mu, "sigma_g": np.exp(log_sigma), "eta": eta}


def _log_parts(mu: np.ndarray, sigma: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give each noise component's share of a site's marginal, and its normal posterior, `[components, ...]`."""
    noise = _VARIANCES[:, None, None]
    total = sigma**2 + noise
    location = (mu * noise + y * sigma**2) / total
    scale = np.broadcast_to(np.sqrt(sigma**2 * noise / total), location.shape)
    log_normal = -0.5 * ((y - mu) ** 2 / total + np.log(total))
    inside = log_box_mass((-_BOUND - location) / scale, (_BOUND - location) / scale)
    return log_normal + inside - log_box_mass((-_BOUND - mu) / sigma, (_BOUND - mu) / sigma), location, scale


TASK = Task(
    name="gaussian_mixture",
    model=model,
    draw=draw,
    reference=reference,
    global_names=("mu_g", "sigma_g"),
    local_names=("eta",),
)

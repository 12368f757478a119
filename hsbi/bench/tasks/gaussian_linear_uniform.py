r"""Gaussian Linear Uniform: a common noise scale and uniform sites.

.. math::

    \sigma \sim \mathrm{HalfNormal}(1), \quad \mu_s \sim \mathrm{Uniform}(-10, 10)^5, \quad
    y_s \sim N(\mu_s, \sigma^2 I_5)

With :math:`\mu` integrated out, each number of a site has density :math:`P(-10 < N(y, \sigma^2) < 10) / 20`, and given
:math:`\sigma` each :math:`\mu` is normal around y, truncated to the box.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from hsbi.bench.tasks.quadrature import log_box_mass, on_points, sample_density, sample_truncated, zoom
from hsbi.bench.tasks.task import Task, as_data, draw_from, generator

_DIM = 5
_BOUND = 10.0


def model(num_sites: int, dim: int = _DIM, y: Array | None = None) -> None:
    """Write the task as a NumPyro program."""
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("site", num_sites):
        mu = numpyro.sample("mu", dist.Uniform(jnp.full(dim, -_BOUND), _BOUND).to_event(1))
        numpyro.sample("y", dist.Normal(mu, sigma).to_event(1), obs=y)


def draw(key: Array, num_sites: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw latents from the prior and a data set."""
    return draw_from(model, key, num_sites)


def reference(key: Array, y: ArrayLike, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the exact posterior."""
    y = as_data("gaussian_linear_uniform", y, (_DIM,))

    def log_density(log_sigma: np.ndarray) -> np.ndarray:
        sigma = np.exp(log_sigma)[:, None]
        flat = y.ravel()
        mass = log_box_mass((-_BOUND - flat) / sigma, (_BOUND - flat) / sigma).sum(1)
        return log_sigma - 0.5 * sigma[:, 0] ** 2 + mass

    rng = generator(key)
    axes, values = zoom(on_points(log_density), [-12.0], [2.0], coarse=200, final=400)
    sigma = np.exp(sample_density(rng, axes, values, log_density, num_draws)[:, 0])
    location = np.broadcast_to(y, (num_draws, *y.shape))
    return {"sigma": sigma, "mu": sample_truncated(rng, location, sigma[:, None, None], -_BOUND, _BOUND)}


TASK = Task(
    name="gaussian_linear_uniform",
    model=model,
    draw=draw,
    reference=reference,
    global_names=("sigma",),
    local_names=("mu",),
)

r"""Gaussian Linear: a common noise scale and Gaussian sites.

.. math:: \sigma \sim \mathrm{HalfNormal}(1), \quad \mu_s \sim N(0, I_5), \quad y_s \sim N(\mu_s, \sigma^2 I_5)

With :math:`\mu` integrated out, :math:`y_s \sim N(0, (1 + \sigma^2) I)`, so the posterior of :math:`\sigma` is a
quadrature in one dimension, and :math:`\mu_s \mid \sigma \sim N(y_s / (1 + \sigma^2), \sigma^2 / (1 + \sigma^2) I)`.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from hsbi.bench.tasks.quadrature import on_points, sample_density, zoom
from hsbi.bench.tasks.task import Task, as_data, draw_from, generator

_DIM = 5


def model(num_sites: int, dim: int = _DIM, y: Array | None = None) -> None:
    """Write the task as a NumPyro program."""
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("site", num_sites):
        mu = numpyro.sample("mu", dist.Normal(jnp.zeros(dim), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(mu, sigma).to_event(1), obs=y)


def draw(key: Array, num_sites: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw latents from the prior and a data set."""
    return draw_from(model, key, num_sites)


def reference(key: Array, y: ArrayLike, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the exact posterior."""
    y = as_data("gaussian_linear", y, (_DIM,))
    squares = np.sum(y**2)

    def log_density(log_sigma: np.ndarray) -> np.ndarray:
        variance = np.exp(2 * log_sigma)
        total = 1 + variance
        return log_sigma - 0.5 * (variance + squares / total + y.size * np.log(total))

    rng = generator(key)
    axes, values = zoom(on_points(log_density), [-12.0], [2.0], coarse=200, final=400)
    sigma = np.exp(sample_density(rng, axes, values, log_density, num_draws)[:, 0])
    shrink = (1 / (1 + sigma**2))[:, None, None]
    mu = shrink * y + np.sqrt(1 - shrink) * rng.normal(size=(num_draws, *y.shape))
    return {"sigma": sigma, "mu": mu}


TASK = Task(
    name="gaussian_linear",
    model=model,
    draw=draw,
    reference=reference,
    global_names=("sigma",),
    local_names=("mu",),
)

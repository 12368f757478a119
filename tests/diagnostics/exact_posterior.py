"""An estimator whose posterior is exact in closed form, and wrong in known ways where asked.

mu ~ N(0, 1), theta_s ~ N(mu, 1), y_s ~ N(theta_s, 1)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

NUM_SITES = 6


def model(num_sites, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("clinic", num_sites):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact:
    """Draw mu given all data, then theta given mu and each site's data.

    Attributes:
        coordinates: Of the estimator.
        view: Of the estimator.
        use: 1 to use the data, 0 to draw from the prior.
        shift: What mu is too high by, in posterior standard deviations.
        scale: What the standard deviation of theta given mu is multiplied by.
    """

    coordinates: Any
    view: Any
    use: Any = 1.0
    shift: Any = 0.0
    scale: Any = 1.0

    def sample(self, program, observed, key, num_draws):
        transform = self.view.transforms["y"]
        y = transform.decode(observed.values["y"]).reshape(-1)
        mask = observed.site_mask
        first, second = jax.random.split(key)
        use = jnp.asarray(self.use)
        # y_s ~ N(mu, 2), so each site adds 1/2 to the precision of mu.
        precision = 1.0 + use * jnp.sum(mask) / 2
        sd = 1 / jnp.sqrt(precision)
        mean = use * jnp.sum(jnp.where(mask, y, 0.0)) / 2 / precision
        mu = mean + sd * (self.shift + jax.random.normal(first, (num_draws,)))
        noise = self.scale * jax.random.normal(second, (num_draws, y.shape[0]))
        theta = mu[:, None] * (1 - use / 2) + use * y / 2 + noise * jnp.sqrt(1 - use / 2)
        return jax.vmap(lambda m, t: self.coordinates.encode(program, {"mu": m, "theta": t}))(mu, theta)

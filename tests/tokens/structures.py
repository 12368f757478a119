"""Programs whose layouts the tests check, with the layout each must have."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import hsbi
from hsbi.model.structure import Structure


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def correlated(y=None):
    """Have a global on the Cholesky factors of 3 x 3 correlations: 3 coordinates, 9 values."""
    factor = numpyro.sample("factor", dist.LKJCholesky(3))
    with numpyro.plate("site", 5):
        eta = numpyro.sample("eta", dist.MultivariateNormal(jnp.zeros(3), scale_tril=factor))
        numpyro.sample("y", dist.Normal(eta, 1.0).to_event(1), obs=y)


def mixture(y=None):
    """Have a local on the simplex of four weights: 3 coordinates."""
    total = numpyro.sample("total", dist.HalfNormal(2.0))
    with numpyro.plate("site", 6):
        weight = numpyro.sample("weight", dist.Dirichlet(total * jnp.ones(4) + 0.5))
        numpyro.sample("y", dist.Normal(weight, 0.1).to_event(1), obs=y)


def replicated(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 4, dim=-2):
        eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
        with numpyro.plate("replicate", 3, dim=-1):
            numpyro.sample("y", dist.Normal(eta, 1.0), obs=y)


def functional(times, y=None):
    """Have five points with inputs of their own at each site."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 4):
        slope = numpyro.sample("slope", dist.Normal(mu, 1.0))
        line = slope[:, None] * jnp.reshape(times[..., 0] if times.shape[-1] == 2 else times, (-1, 5))
        numpyro.sample("y", dist.Normal(line, 1.0).to_event(1), obs=y, infer={"inputs": times})


def long_events(y=None):
    """Have an event of 20 numbers, more than a token holds, and 18 globals."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([18]).to_event(1))
    with numpyro.plate("site", 3):
        eta = numpyro.sample("eta", dist.Normal(mu[0], 1.0))
        numpyro.sample("y", dist.Normal(eta[:, None] * jnp.ones(20) + mu[1], 1.0).to_event(1), obs=y)


def two_observations(x=None, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 4):
        eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
        numpyro.sample("x", dist.Normal(eta, 1.0), obs=x)
        numpyro.sample("y", dist.Normal(eta[:, None] * jnp.ones(2), 1.0).to_event(1), obs=y)


class Case(NamedTuple):
    """A program and, by variable, the rows, numbers in a row and input dimensions that its layout must have."""

    model: Any
    args: tuple[Any, ...]
    num_sites: int
    width: int
    variables: dict[str, tuple[str, int, int, int]]


POINTS = np.linspace(0.0, 1.0, 5)
CASES = {
    "eight schools": Case(
        eight_schools,
        (np.linspace(1.0, 2.0, 8), np.zeros(8)),
        8,
        1,
        {
            "mu": ("global", 1, 1, 0),
            "tau": ("global", 1, 1, 0),
            "theta": ("local", 1, 1, 0),
            "y": ("observation", 1, 1, 0),
        },
    ),
    "correlations": Case(
        correlated,
        (np.zeros((5, 3)),),
        5,
        3,
        {"factor": ("global", 1, 3, 0), "eta": ("local", 1, 3, 0), "y": ("observation", 1, 3, 0)},
    ),
    "simplex": Case(
        mixture,
        (np.zeros((6, 4)),),
        6,
        4,
        {"total": ("global", 1, 1, 0), "weight": ("local", 1, 3, 0), "y": ("observation", 1, 4, 0)},
    ),
    "replicates": Case(
        replicated,
        (np.zeros((4, 3)),),
        4,
        1,
        {"mu": ("global", 1, 1, 0), "eta": ("local", 1, 1, 0), "y": ("observation", 3, 1, 0)},
    ),
    "inputs": Case(
        functional,
        (np.broadcast_to(POINTS, (4, 5)), np.zeros((4, 5))),
        4,
        1,
        {"mu": ("global", 1, 1, 0), "slope": ("local", 1, 1, 0), "y": ("observation", 5, 1, 1)},
    ),
    "shared plane inputs": Case(
        functional,
        (np.stack([POINTS, POINTS**2], axis=-1), np.zeros((4, 5))),
        4,
        1,
        {"mu": ("global", 1, 1, 0), "slope": ("local", 1, 1, 0), "y": ("observation", 5, 1, 2)},
    ),
    "own plane inputs": Case(
        functional,
        (np.broadcast_to(np.stack([POINTS, POINTS**2], axis=-1), (4, 5, 2)), np.zeros((4, 5))),
        4,
        1,
        {"mu": ("global", 1, 1, 0), "slope": ("local", 1, 1, 0), "y": ("observation", 5, 1, 2)},
    ),
    "long events": Case(
        long_events,
        (np.zeros((3, 20)),),
        3,
        16,
        {"mu": ("global", 1, 18, 0), "eta": ("local", 1, 1, 0), "y": ("observation", 1, 20, 0)},
    ),
    "two observations": Case(
        two_observations,
        (np.zeros(4), np.zeros((4, 2))),
        4,
        2,
        {
            "mu": ("global", 1, 1, 0),
            "eta": ("local", 1, 1, 0),
            "x": ("observation", 1, 1, 0),
            "y": ("observation", 1, 2, 0),
        },
    ),
}


@functools.cache
def structure_of(name: str) -> Structure:
    """Inspect a case once for all tests."""
    case = CASES[name]
    # NumPyro's own distributions promote ranks.
    with jax.numpy_rank_promotion("allow"):
        return hsbi.inspect(case.model, *case.args)

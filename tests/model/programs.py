"""Models that the tests of programs share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import hsbi
from hsbi.model.program import Program
from hsbi.model.structure import Covariate, Plate, Site, Structure

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
NUM_SCHOOLS = 8


def eight_schools(sigma: Any, y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def schools_program() -> Program:
    """Bind eight schools by hand, without the cost of inspection."""
    return Program(
        model=eight_schools,
        structure=Structure(
            sites=(
                Site(name="mu", level="global"),
                Site(name="tau", level="global"),
                per_site("theta", "local", NUM_SCHOOLS, plate="school"),
                per_site("y", "observation", NUM_SCHOOLS, plate="school"),
            ),
            plates=(Plate(name="school", size=NUM_SCHOOLS, dim=-1, role="site"),),
            covariates=(
                Covariate(path="sigma", axis=0, shape=(NUM_SCHOOLS,)),
                Covariate(path="y", axis=0, shape=(NUM_SCHOOLS,), data="y"),
            ),
        ),
        arguments={"sigma": ERRORS, "y": EFFECTS},
        route="resize",
    )


def per_site(name: str, level: Any, num_sites: int, event_shape: tuple[int, ...] = (), plate: str = "site") -> Site:
    """Describe a site in one plate at dim -1."""
    shape = (num_sites, *event_shape)
    return Site(
        name=name,
        level=level,
        plates=(plate,),
        shape=shape,
        event_shape=event_shape,
        program_shape=shape,
        plate_axes=(-len(shape),),
    )


def captured_schools(y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("school", NUM_SCHOOLS):
        theta = numpyro.sample("theta", dist.Normal(mu, 2.0))
        numpyro.sample("y", dist.Normal(theta, ERRORS), obs=y)


class CountingSimulator:
    """A host simulator that returns its parameters, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rng: np.random.Generator, *params: float) -> np.ndarray:
        self.calls += 1
        return np.array([*params, rng.uniform()])


def host_model(simulator: Callable[..., Any], *, padding: int = 0) -> Callable[..., None]:
    """Give a model with one host call per site; `padding` hard-codes its number of sites into an array."""

    def model(x: Any, y: Any = None) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", len(x)):
            eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
            offset = jnp.zeros(padding) if padding else 0.0
            numpyro.sample("y", hsbi.Simulator(simulator, eta + offset, x, host=True, event_shape=(3,)), obs=y)

    return model


def replicated(x: Any, group: Any, y: Any = None) -> None:
    """Have a plate at dim -2, replicates, vector locals, and observations that say which covariates they used."""
    center = numpyro.sample("center", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2))
    with numpyro.plate("site", len(group), dim=-2):
        eta = numpyro.sample("eta", dist.MultivariateNormal(center, scale_tril=factor))
        numpyro.deterministic("square", eta**2)
        with numpyro.plate("replicate", x.shape[1], dim=-1):
            simulator = hsbi.Simulator(report, eta, x, group[:, None], param_event_dims=(1, 0, 0))
            numpyro.sample("y", simulator, obs=y)


def report(key: jax.Array, eta: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
    return jnp.stack([x, group.astype(float), eta[0], jax.random.normal(key)])

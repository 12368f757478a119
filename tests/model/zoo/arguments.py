"""Ways to hand over data and covariates."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from .case import Case, Expected, PlateFacts, covariate, data, glob, local, obs

SITE = (PlateFacts(name="site", size=6),)
Y = np.linspace(-2.0, 3.0, 6)
SIGMA = np.linspace(0.5, 1.5, 6)


def positional(sigma, offset, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta + offset, sigma), obs=y)


def counted(num_sites, y=None):
    """The number of sites itself is the argument."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", num_sites):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def nested_tree(trial, *, y=None):
    """Covariates within dictionaries and tuples, next to arrays that all sites share."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", trial["noise"]["sigma"].shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        dose, times = trial["design"]
        mean = (theta * dose)[:, None] + times
        numpyro.sample("y", dist.Normal(mean, trial["noise"]["sigma"][:, None]).to_event(1), obs=y)


class Batch(NamedTuple):
    """Data and covariates in one tuple."""

    sigma: np.ndarray
    y: np.ndarray | None


def named_tuple(batch):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", batch.sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, batch.sigma), obs=batch.y)


def trailing_axis(x, y=None):
    """Covariates whose site axis is the last one."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("site", x.shape[1]):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(theta + beta @ x, 0.5), obs=y)


def closed_over(y=None):
    """Per-site numbers that are no argument of the model."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, jnp.asarray(SIGMA)), obs=y)


def worked_on(sigma, raw=None):
    """The program takes the logarithm of its data before it observes them."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=None if raw is None else jnp.log(raw))


def labeled(names, sigma, y=None):
    """Names of sites next to their numbers."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", len(names)):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def structure(y_facts, *covariates):
    return Expected(
        sites=(glob("mu"), local("theta", (6,), parents=("mu",)), y_facts), plates=SITE, covariates=covariates
    )


Y_OF_THETA = obs("y", (6,), parents=("theta",))
Y_UNSEEN = obs("y", (6,), parents=("theta",), missing=None)
SERIES = obs("y", (6, 4), "real_vector", event=(4,), parents=("theta",))

CASES = (
    Case(
        name="positional",
        model=positional,
        args=(SIGMA, 0.3, Y),
        expected=structure(Y_OF_THETA, covariate("sigma", 6), data("y", 6)),
    ),
    Case(
        name="all_keywords",
        model=positional,
        kwargs={"y": Y, "offset": 0.3, "sigma": jnp.asarray(SIGMA)},
        expected=structure(Y_OF_THETA, covariate("sigma", 6), data("y", 6)),
    ),
    Case(name="counted", model=counted, args=(6,), kwargs={"y": Y}, expected=structure(Y_OF_THETA, data("y", 6))),
    Case(
        name="nested_tree",
        model=nested_tree,
        args=(
            {
                "noise": {"sigma": SIGMA, "floor": 0.1},
                "design": (np.linspace(1.0, 2.0, 6), np.linspace(0.0, 1.0, 24).reshape(6, 4)),
                "knots": np.arange(5.0),
            },
        ),
        kwargs={"y": np.arange(24.0).reshape(6, 4)},
        expected=structure(
            SERIES,
            covariate("trial['noise']['sigma']", 6),
            covariate("trial['design'][0]", 6),
            covariate("trial['design'][1]", 6, 4),
            data("y", 6, 4),
        ),
    ),
    Case(
        name="named_tuple",
        model=named_tuple,
        args=(Batch(SIGMA, Y),),
        expected=structure(Y_OF_THETA, covariate("batch.sigma", 6), data("batch.y", 6, of="y")),
    ),
    Case(
        name="trailing_axis",
        model=trailing_axis,
        args=(np.linspace(-1.0, 1.0, 18).reshape(3, 6),),
        kwargs={"y": Y},
        expected=Expected(
            sites=(
                glob("beta", "real_vector", shape=(3,), event=(3,)),
                local("theta", (6,)),
                obs("y", (6,), parents=("beta", "theta")),
            ),
            plates=SITE,
            covariates=(covariate("x", 3, 6, axis=1), data("y", 6)),
        ),
    ),
    Case(
        name="closed_over",
        model=closed_over,
        kwargs={"y": Y},
        route="whole",
        expected=dataclasses.replace(structure(Y_OF_THETA, data("y", 6)), warns=r"'site' differ.*argument"),
    ),
    Case(
        name="unseen_but_named",
        model=positional,
        args=(SIGMA, 0.3),
        observed=("y",),
        expected=structure(Y_UNSEEN, covariate("sigma", 6)),
    ),
    Case(
        name="worked_on",
        model=worked_on,
        args=(SIGMA,),
        kwargs={"raw": np.exp(Y)},
        expected=structure(Y_OF_THETA, covariate("sigma", 6), data("raw", 6, of="y")),
    ),
    Case(
        name="labeled",
        model=labeled,
        args=(np.array(list("abcdef")), SIGMA),
        kwargs={"y": Y},
        expected=structure(Y_OF_THETA, covariate("sigma", 6), data("y", 6)),
    ),
    Case(
        name="seen_and_named",
        model=positional,
        args=(SIGMA, 0.3, Y),
        observed=("y",),
        expected=structure(Y_OF_THETA, covariate("sigma", 6), data("y", 6)),
    ),
)

"""Models whose observations come from black boxes."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

import hsbi

from .case import Case, Expected, PlateFacts, covariate, data, glob, local, obs

SITE = (PlateFacts(name="site", size=6),)
TIMES = np.sort(np.random.default_rng(3).uniform(0.0, 40.0, (6, 4)), axis=1)


class Counted:
    """A host function that counts its calls."""

    def __init__(self, fn):
        self.fn = fn
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, rng, *params):
        with self._lock:
            self.count += 1
        return self.fn(rng, *params)


def seirs(key, beta0, amplitude, times):
    """Seasonal epidemic with waning immunity, case counts at `times`, in whole days of Euler steps."""
    incubation, recovery, waning, size, burn_in, window = 1 / 5, 1 / 7, 1 / 180, 1e4, 60, 41

    def day(state, t):
        s, e, i, r = state
        force = beta0 * (1.0 + amplitude * jnp.sin(2 * jnp.pi * t / 365 - jnp.pi / 2)) * i / size
        flows = force * s, incubation * e, recovery * i, waning * r
        state = (s - flows[0] + flows[3], e + flows[0] - flows[1], i + flows[1] - flows[2], r + flows[2] - flows[3])
        return state, flows[1]

    start = (size - 10.0, 0.0, 10.0, 0.0)
    _, incidence = jax.lax.scan(day, tuple(jnp.asarray(v) for v in start), jnp.arange(burn_in + window, dtype=float))
    rate = jnp.interp(times, jnp.arange(window, dtype=float), incidence[burn_in:])
    return jax.random.poisson(key, jnp.maximum(rate, 0.1))


def seasonal_seirs(times, y=None):
    beta0 = numpyro.sample("beta0", dist.Uniform(0.2, 1.2))
    with numpyro.plate("site", times.shape[0]):
        amp = numpyro.sample("amp", dist.Uniform(0.2, 0.5))
        counts = hsbi.Simulator(
            seirs, beta0, amp, times, param_event_dims=(0, 0, 1), support=constraints.nonnegative_integer
        )
        numpyro.sample("y", counts, obs=y, infer={"inputs": times})


def noisy(key, theta, sigma):
    return theta + sigma * jax.random.normal(key)


def noisy_log_prob(value, theta, sigma):
    return dist.Normal(theta, sigma).log_prob(value)


def scalar_simulator(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", hsbi.Simulator(noisy, theta, sigma, log_prob=noisy_log_prob), obs=y)


def replicated_simulator(y=None):
    """A simulator within a replicate plate, called once per replicate."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("site", 6, dim=-2):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        with numpyro.plate("visit", 3, dim=-1):
            numpyro.sample("y", hsbi.Simulator(noisy, theta, scale), obs=y)


def bivariate(key, mean, factor):
    return mean + factor @ jax.random.normal(key, (2,))


def vector_parameters(y=None):
    """A vector local and a matrix global as parameters of one call."""
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with numpyro.plate("site", 5):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", hsbi.Simulator(bivariate, mean, factor, param_event_dims=(1, 2)), obs=y)


def plateless_simulator(y=None):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", hsbi.Simulator(lambda key, r, s: r + s * jax.random.normal(key, (5,)), rate, noise), obs=y)


@Counted
def walk(rng, drift, times):
    """A random walk in plain NumPy."""
    return np.cumsum(drift + rng.normal(size=times.shape))


def host_walk(times, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", times.shape[0]):
        drift = numpyro.sample("drift", dist.Normal(mu, 1.0))
        path = hsbi.Simulator(walk, drift, times, param_event_dims=(0, 1), event_shape=(4,), host=True)
        numpyro.sample("y", path, obs=y, infer={"inputs": times})


@Counted
def birth(rng, rate):
    """A count by the simplest loop there is."""
    total, clock = 0, rng.exponential()
    while clock < rate and total < 50:
        total, clock = total + 1, clock + rng.exponential()
    return total


def host_counts(num_sites, y=None):
    shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    with numpyro.plate("site", num_sites):
        rate = numpyro.sample("rate", dist.Gamma(shape, 1.0))
        count = hsbi.Simulator(birth, rate, event_shape=(), host=True, support=constraints.nonnegative_integer)
        numpyro.sample("y", count, obs=y)


@Counted
def host_noise(rng, theta, sigma):
    return rng.normal(theta, sigma)


OFFSETS = np.linspace(-1.0, 1.0, 5)


def host_closed_over(y=None):
    """A host simulator whose per-site numbers are no argument of the model."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 5):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        draw = hsbi.Simulator(host_noise, theta + OFFSETS, 0.5, event_shape=(), host=True)
        numpyro.sample("y", draw, obs=y)


@Counted
def host_pair(rng, theta):
    return rng.normal(theta, 1.0)


def host_beside_density(y=None, z=None):
    """A black box beside a distribution with per-site numbers that are no argument: only the whole program will do."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 5):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", hsbi.Simulator(host_pair, theta, event_shape=(), host=True), obs=y)
        numpyro.sample("z", dist.Normal(theta + OFFSETS, 1.0), obs=z)


def images(key, level, slope):
    """A picture of two rows and three columns."""
    return level + slope * jnp.arange(6.0).reshape(2, 3) + jax.random.normal(key, (2, 3))


def matrix_events(y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 5):
        level = numpyro.sample("level", dist.Normal(slope, 1.0))
        numpyro.sample("y", hsbi.Simulator(images, level, slope), obs=y)


SEIRS_SITES = (
    glob("beta0", "interval(0.2, 1.2)", distribution="Uniform"),
    local("amp", (6,), "interval(0.2, 0.5)", distribution="Uniform"),
)


def seirs_structure(missing, *arguments):
    y = obs(
        "y",
        (6, 4),
        "nonnegative_integer",
        event=(4,),
        parents=("beta0", "amp"),
        inputs=(6, 4),
        missing=missing,
        discrete=True,
        distribution="Simulator",
    )
    return Expected(sites=(*SEIRS_SITES, y), plates=SITE, covariates=(covariate("times", 6, 4), *arguments))


def hierarchy(name, y_facts, size, *covariates):
    return Expected(
        sites=(glob("mu"), local(name, (size,), parents=("mu",)), y_facts),
        plates=(PlateFacts(name="site", size=size),),
        covariates=covariates,
    )


CASES = (
    Case(
        name="seasonal_seirs",
        model=seasonal_seirs,
        args=(TIMES,),
        kwargs={"y": np.arange(24).reshape(6, 4)},
        expected=seirs_structure(0, data("y", 6, 4)),
    ),
    Case(name="seasonal_seirs_unseen", model=seasonal_seirs, args=(TIMES,), expected=seirs_structure(None)),
    Case(
        name="scalar_simulator",
        model=scalar_simulator,
        args=(np.linspace(0.5, 1.0, 7),),
        kwargs={"y": np.linspace(0.0, 1.0, 7)},
        expected=hierarchy(
            "theta",
            obs("y", (7,), parents=("theta",), distribution="Simulator"),
            7,
            covariate("sigma", 7),
            data("y", 7),
        ),
    ),
    Case(
        name="replicated_simulator",
        model=replicated_simulator,
        calls=3,
        expected=Expected(
            sites=(
                glob("mu"),
                glob("scale", "positive"),
                local("theta", (6,), parents=("mu",), program=(6, 1)),
                obs("y", (6, 3), plates=("site", "visit"), parents=("theta", "scale"), missing=None),
            ),
            plates=(
                PlateFacts(name="site", size=6, dim=-2),
                PlateFacts(name="visit", size=3, dim=-1, role="replicate"),
            ),
        ),
    ),
    Case(
        name="vector_parameters",
        model=vector_parameters,
        kwargs={"y": np.arange(10.0).reshape(5, 2)},
        expected=Expected(
            sites=(
                glob("factor", "corr_cholesky", shape=(2, 2), event=(2, 2)),
                local("mean", (5, 2), "real_vector", event=(2,)),
                obs("y", (5, 2), "real_vector", event=(2,), parents=("factor", "mean"), distribution="Simulator"),
            ),
            plates=(PlateFacts(name="site", size=5),),
            covariates=(data("y", 5, 2),),
        ),
    ),
    Case(
        name="plateless_simulator",
        model=plateless_simulator,
        expected=Expected(
            sites=(
                glob("rate", "positive"),
                glob("noise", "positive"),
                obs("y", (5,), "real_vector", plates=(), event=(5,), parents=("rate", "noise"), missing=None),
            ),
        ),
    ),
    Case(
        name="host_walk",
        model=host_walk,
        args=(TIMES,),
        kwargs={"y": np.arange(24.0).reshape(6, 4)},
        counter=walk,
        expected=hierarchy(
            "drift",
            obs("y", (6, 4), "real_vector", event=(4,), parents=("drift",), inputs=(6, 4), distribution="Simulator"),
            6,
            covariate("times", 6, 4),
            data("y", 6, 4),
        ),
    ),
    Case(
        name="host_counts_unseen",
        model=host_counts,
        args=(5,),
        counter=birth,
        expected=Expected(
            sites=(
                glob("shape", "positive"),
                local("rate", (5,), "positive", parents=("shape",)),
                obs("y", (5,), "nonnegative_integer", parents=("rate",), missing=None, discrete=True),
            ),
            plates=(PlateFacts(name="site", size=5),),
        ),
    ),
    Case(
        name="host_closed_over",
        model=host_closed_over,
        kwargs={"y": np.linspace(0.0, 1.0, 5)},
        counter=host_noise,
        route="pick",
        expected=dataclasses.replace(
            hierarchy("theta", obs("y", (5,), parents=("theta",), distribution="Simulator"), 5, data("y", 5)),
            warns=r"'site' differ.*argument",
        ),
    ),
    Case(
        name="host_beside_density",
        model=host_beside_density,
        kwargs={"z": np.linspace(0.0, 1.0, 5)},
        counter=host_pair,
        route="whole",
        expected=Expected(
            sites=(
                glob("mu"),
                local("theta", (5,), parents=("mu",)),
                obs("y", (5,), parents=("theta",), missing=None, distribution="Simulator"),
                obs("z", (5,), parents=("theta",)),
            ),
            plates=(PlateFacts(name="site", size=5),),
            covariates=(data("z", 5),),
            warns=r"'site' differ.*argument",
        ),
    ),
    Case(
        name="matrix_events",
        model=matrix_events,
        kwargs={"y": np.arange(30.0).reshape(5, 2, 3)},
        expected=Expected(
            sites=(
                glob("slope"),
                local("level", (5,), parents=("slope",)),
                obs("y", (5, 2, 3), event=(2, 3), parents=("slope", "level"), distribution="Simulator"),
            ),
            plates=(PlateFacts(name="site", size=5),),
            covariates=(data("y", 5, 2, 3),),
        ),
    ),
)

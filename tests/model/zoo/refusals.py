"""Models that hsbi must refuse, with what the message must say."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan

import hsbi

from .case import Case, Refusal

Y = np.linspace(-2.0, 3.0, 6)
SIGMA = np.linspace(0.5, 1.5, 6)
COUNTY = np.array([0, 0, 1, 2, 2, 2, 3, 3, 0, 1, 3])


def simple(num_sites, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", num_sites):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def with_factor(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -(mu**2))
    with numpyro.plate("site", 6):
        numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)


def discrete_global(y=None):
    regime = numpyro.sample("regime", dist.Bernoulli(0.3))
    with numpyro.plate("site", 6):
        numpyro.sample("y", dist.Normal(1.0 * regime, 0.5), obs=y)


def discrete_local(y=None):
    """A two-part mixture with the assignment as a latent."""
    weight = numpyro.sample("weight", dist.Beta(1.0, 1.0))
    with numpyro.plate("site", 6):
        component = numpyro.sample("component", dist.Bernoulli(weight))
        numpyro.sample("y", dist.Normal(jnp.where(component == 1, 2.0, -2.0), 0.5), obs=y)


def improper(y=None):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("site", 6):
        numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)


def latent_scan(y):
    """A local-level time series: the latents live within `scan`."""
    step = numpyro.sample("step", dist.HalfNormal(1.0))

    def move(level, value):
        level = numpyro.sample("level", dist.Normal(level, step))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=value)
        return level, None

    scan(move, jnp.zeros(()), y)


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6, subsample_size=2) as index:
        numpyro.sample("y", dist.Normal(mu, 0.5), obs=jnp.asarray(y)[index])


def two_sizes(y=None):
    with numpyro.plate("site", 4):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6):
        numpyro.sample("y", dist.Normal(theta.sum(), 0.5), obs=y)


def centered(y=None):
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(theta - theta.mean(), 0.5), obs=y)


def permuted(y=None):
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(theta[jnp.array([1, 0, 2, 3, 5, 4])], 0.5), obs=y)


def random_walk(y=None):
    """Each site adds to the one before."""
    with numpyro.plate("site", 6):
        step = numpyro.sample("step", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.cumsum(step), 0.5), obs=y)


def centered_simulator(y=None):
    """The same break inside the parameters of a black box."""
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        draw = hsbi.Simulator(lambda key, mean: mean + jax.random.normal(key), theta - theta.mean())
        numpyro.sample("y", draw, obs=y)


def mixed_locals(y=None):
    """A local drawn around the mean of all sites' other local."""
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        phi = numpyro.sample("phi", dist.Normal(theta.mean(), 1.0))
        numpyro.sample("y", dist.Normal(phi, 0.5), obs=y)


def global_after_locals(y=None):
    """A latent outside the plate that depends on all locals."""
    site = numpyro.plate("site", 6)
    with site:
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    total = numpyro.sample("total", dist.Normal(theta.sum(), 1.0))
    with site:
        numpyro.sample("y", dist.Normal(total, 0.5), obs=y)


def radon_ragged(county, y=None):
    """Varying intercepts, picked by a county index per house."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("county", 4):
        alpha = numpyro.sample("alpha", dist.Normal(mu, 1.0))
    with numpyro.plate("house", county.shape[0]):
        numpyro.sample("y", dist.Normal(alpha[county], 0.5), obs=y)


def ucb_ragged(department, male, applications, admitted=None):
    base = numpyro.sample("base", dist.Normal(0.0, 1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with numpyro.plate("department", 3):
        effect = numpyro.sample("effect", dist.Normal(base, 1.0))
    with numpyro.plate("row", department.shape[0]):
        logits = effect[department] + beta * male
        numpyro.sample("admitted", dist.Binomial(applications, logits=logits), obs=admitted)


def item_response(answers=None):
    with numpyro.plate("student", 6, dim=-2):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    with numpyro.plate("item", 4, dim=-1):
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0))
    with numpyro.plate("student", 6, dim=-2), numpyro.plate("item", 4, dim=-1):
        numpyro.sample("answers", dist.Bernoulli(logits=ability - difficulty[None, :]), obs=answers)


def two_levels(y=None):
    """Visits with effects of their own within each site."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6, dim=-2):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        with numpyro.plate("visit", 3, dim=-1):
            effect = numpyro.sample("effect", dist.Normal(theta, 1.0))
            numpyro.sample("y", dist.Normal(effect, 0.5), obs=y)


def shared_dim(y=None):
    """Two plates built before either is entered both get dim -1."""
    site, visit = numpyro.plate("site", 6), numpyro.plate("visit", 6)
    with site:
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with visit:
            numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def wrong_simulator(y=None):
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        draw = hsbi.Simulator(lambda key, mean: mean + jax.random.normal(key, (2,)), theta, event_shape=(3,))
        numpyro.sample("y", draw, obs=y)


def pair_simulator(y=None):
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("y", hsbi.Simulator(lambda key, mean: mean + jax.random.normal(key, (2,)), theta), obs=y)


def refuse(name, model, *args, names, says, observed=(), **kwargs):
    refusal = Refusal(names=names, says=says)
    return Case(name=name, model=model, args=args, kwargs=kwargs, observed=observed, expected=refusal)


OTHER_SITE = r"(?i)another|other|across|own"

CASES = (
    refuse("factor", with_factor, y=Y, names=("penalty",), says="factor"),
    refuse("discrete_global", discrete_global, y=Y, names=("regime",), says="discrete"),
    refuse("discrete_local", discrete_local, y=Y, names=("component",), says="discrete"),
    refuse("improper", improper, y=Y, names=("mu",), says="(?i)improper"),
    refuse("latent_scan", latent_scan, Y, names=("level",), says="scan"),
    refuse("subsampled", subsampled, Y, names=("site",), says="subsampl"),
    refuse("two_sizes", two_sizes, y=Y, names=("site", "4", "6"), says="size"),
    refuse("one_row_of_data", simple, 6, Y[:1], names=("y", "site", "1", "6"), says=r"plate"),
    refuse("scalar_data", simple, 6, 0.5, names=("y", "site", "6"), says=r"plate"),
    refuse("too_few_rows", simple, 6, Y[:5], names=("y", "site", "5", "6"), says=r"plate"),
    refuse("too_many_rows", simple, 6, np.linspace(0, 1, 7), names=("y", "site", "7", "6"), says=r"plate"),
    refuse("outer_row_of_data", simple, 6, Y[None, :], names=("y",), says=r"shape"),
    refuse("centered_locals", centered, y=Y, names=("y", "theta"), says=OTHER_SITE),
    refuse("permuted_locals", permuted, y=Y, names=("y", "theta"), says=OTHER_SITE),
    refuse("random_walk_locals", random_walk, y=Y, names=("y", "step"), says=OTHER_SITE),
    refuse("centered_simulator", centered_simulator, names=("y", "theta"), says=OTHER_SITE),
    refuse("mixed_locals", mixed_locals, y=Y, names=("phi", "theta"), says=OTHER_SITE),
    refuse("global_after_locals", global_after_locals, y=Y, names=("total", "theta"), says="local"),
    refuse("radon_ragged", radon_ragged, COUNTY, np.linspace(0, 1, 11), names=("alpha", "county"), says="plate"),
    refuse(
        "ucb_ragged",
        ucb_ragged,
        np.array([0, 0, 1, 1, 2, 2]),
        np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]),
        np.full(6, 20),
        np.arange(6),
        names=("effect", "department"),
        says="plate",
    ),
    refuse("item_response", item_response, np.ones((6, 4), int), names=("difficulty", "item"), says="plate"),
    refuse("two_levels", two_levels, np.zeros((6, 3)), names=("effect", "visit"), says="plate"),
    refuse("shared_dim", shared_dim, Y, names=("site", "visit"), says="dim"),
    refuse("wrong_simulator", wrong_simulator, names=("y", "(3,)", "(2,)"), says="event_shape|event shape"),
    refuse("wrong_simulator_data", wrong_simulator, np.zeros((6, 3)), names=("y", "(3,)", "(2,)"), says="event_shape"),
    refuse("wrong_event_data", pair_simulator, np.zeros((6, 4)), names=("y", "(2,)"), says="shape"),
    refuse("nothing_observed", simple, 6, names=("y",), says="observed"),
    refuse("unknown_observed", simple, 6, names=("z",), says="observed", observed=("z",)),
)

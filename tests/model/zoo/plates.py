"""Plates in every position that NumPyro allows."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from .case import Case, Expected, PlateFacts, covariate, data, det, glob, local, obs

SITE = (PlateFacts(name="site", size=6),)
Y = np.linspace(-2.0, 3.0, 6)
SIGMA = np.linspace(0.5, 1.5, 6)


def column_plate(sigma, y=None):
    """The plate at dim -2 alone leaves a singleton axis."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", sigma.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.deterministic("double", 2.0 * theta)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def column_plate_events(total, counts=None):
    """Vector events behind the singleton axis of a plate at dim -2."""
    alpha = numpyro.sample("alpha", dist.LogNormal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("site", 5, dim=-2):
        share = numpyro.sample("share", dist.Dirichlet(alpha))
        numpyro.sample("counts", dist.Multinomial(total, share), obs=counts)


def unplated_axis(y=None):
    """The site plate at dim -2 with an axis of values at dim -1 that no plate names."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6, dim=-2):
        theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
        numpyro.sample("y", dist.Normal(theta + slope * jnp.arange(4.0)[None, :], 1.0), obs=y)


def unplated_outer_axis(y=None):
    """Values along an unnamed axis to the left of the plate."""
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
        numpyro.sample("y", dist.Normal(theta[None, :] + jnp.arange(4.0)[:, None], 1.0), obs=y)


def decorated(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))

    @numpyro.plate("site", sigma.shape[0])
    def sites():
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    sites()


def built_before(sigma, y=None):
    """One plate object, built ahead of the globals and entered twice."""
    site = numpyro.plate("site", sigma.shape[0])
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with site:
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with site:
        numpyro.sample("y", dist.Normal(theta, scale * sigma), obs=y)


def sized_by_data(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def indexed_by_plate(sigma, y=None):
    """The plate's own index picks each site's own entries."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    with numpyro.plate("site", sigma.shape[0]) as index:
        numpyro.sample("y", dist.Normal(theta[index], sigma[index]), obs=y)


def nested_without_dims(y=None):
    """NumPyro gives the outer plate dim -1 and the inner one dim -2."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        with numpyro.plate("visit", 3):
            numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def nested_replicates(y=None):
    """Two replicate plates within each site."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6, dim=-3):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        with numpyro.plate("day", 2, dim=-1), numpyro.plate("hour", 3, dim=-2):
            numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def replicates_entered_first(y=None):
    """The plate of replicates is entered first, but the locals say which plate holds the sites."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    site = numpyro.plate("site", 6, dim=-1)
    with site:
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    with numpyro.plate("visit", 3, dim=-2), site:
        numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def replicated_events(y=None):
    """Vector events within a replicate plate that lies left of the site plate."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0).expand([2]).to_event(1))
        with numpyro.plate("visit", 3):
            numpyro.sample("y", dist.MultivariateNormal(theta, jnp.eye(2)), obs=y)


def exchangeable(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("row", 7):
        numpyro.sample("y", dist.MultivariateNormal(mu, scale * jnp.eye(2)), obs=y)


def exchangeable_crossed(y=None):
    """Observations in two plates without any latent inside: the outer one holds the sites."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("row", 7, dim=-2), numpyro.plate("column", 4, dim=-1):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def stacked(y=None):
    """Two plates from one call; the first it enters has dim -1 and holds the sites."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate_stack("axis", [7, 4]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def entered_by_hand(sigma, y=None):
    """A plate that no `with` opens."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    site = numpyro.plate("site", sigma.shape[0])
    site.__enter__()
    theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
    site.__exit__(None, None, None)


def plateless(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("precision", scale**-2)
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


def plateless_vector(y=None):
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)))
    numpyro.sample("y", dist.Normal(mu, 1.0).to_event(1), obs=y)


def expanded_locals(y=None):
    """Locals made with `expand`, outside the plate of their observations."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    theta = numpyro.sample("theta", dist.Normal(mu, 1.0).expand([6]))
    with numpyro.plate("site", 6):
        numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def sample_shape_locals(y=None):
    """Locals made with `sample_shape`, no plate at all."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    theta = numpyro.sample("theta", dist.Normal(mu, 1.0), sample_shape=(6,))
    numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


ARGUMENTS = (covariate("sigma", 6), data("y", 6))


def basic(*rest, plates=SITE, theta=None, arguments=ARGUMENTS):
    theta = theta or local("theta", (6,), parents=("mu",))
    return Expected(sites=(glob("mu"), theta, *rest), plates=plates, covariates=arguments)


def replicated(*replicates, y_facts, site_dim, arguments, theta=None):
    plates = (PlateFacts(name="site", size=6, dim=site_dim), *replicates)
    return basic(y_facts, plates=plates, theta=theta, arguments=arguments)


Y_OF_THETA = obs("y", (6,), parents=("theta",))

CASES = (
    Case(
        name="column_plate",
        model=column_plate,
        args=(SIGMA[:, None],),
        kwargs={"y": Y[:, None]},
        expected=basic(
            det("double", (6,), ("theta",), plates=("site",), program=(6, 1)),
            obs("y", (6,), parents=("theta",), program=(6, 1)),
            plates=(PlateFacts(name="site", size=6, dim=-2),),
            theta=local("theta", (6,), parents=("mu",), program=(6, 1)),
            arguments=(covariate("sigma", 6, 1), data("y", 6, 1)),
        ),
    ),
    Case(
        name="column_plate_events",
        model=column_plate_events,
        args=(10,),
        kwargs={"counts": np.tile(np.array([3, 3, 4]), (5, 1, 1))},
        expected=Expected(
            sites=(
                glob("alpha", "positive", shape=(3,), event=(3,), distribution="LogNormal"),
                local("share", (5, 3), "simplex", event=(3,), parents=("alpha",), program=(5, 1, 3)),
                obs(
                    "counts",
                    (5, 3),
                    "multinomial(...)",
                    event=(3,),
                    parents=("share",),
                    program=(5, 1, 3),
                    discrete=True,
                ),
            ),
            plates=(PlateFacts(name="site", size=5, dim=-2),),
            covariates=(data("counts", 5, 1, 3),),
        ),
    ),
    Case(
        name="unplated_axis",
        model=unplated_axis,
        kwargs={"y": np.arange(24.0).reshape(6, 4)},
        expected=Expected(
            sites=(
                glob("slope"),
                local("theta", (6,), program=(6, 1)),
                obs("y", (6, 4), event=(4,), parents=("slope", "theta")),
            ),
            plates=(PlateFacts(name="site", size=6, dim=-2),),
            covariates=(data("y", 6, 4),),
        ),
    ),
    Case(
        name="unplated_outer_axis",
        model=unplated_outer_axis,
        kwargs={"y": np.arange(24.0).reshape(4, 6)},
        expected=Expected(
            sites=(
                local("theta", (6,)),
                obs("y", (6, 4), event=(4,), parents=("theta",), program=(4, 6), axes=(-1,)),
            ),
            plates=SITE,
            covariates=(data("y", 4, 6, axis=1),),
        ),
    ),
    Case(name="decorated", model=decorated, args=(SIGMA, Y), expected=basic(Y_OF_THETA)),
    Case(
        name="built_before",
        model=built_before,
        args=(SIGMA, Y),
        expected=basic(glob("scale", "positive"), obs("y", (6,), parents=("theta", "scale"))),
    ),
    Case(name="sized_by_data", model=sized_by_data, args=(Y,), expected=basic(Y_OF_THETA, arguments=(data("y", 6),))),
    Case(
        name="indexed_by_plate",
        model=indexed_by_plate,
        args=(jnp.asarray(SIGMA),),
        kwargs={"y": Y},
        expected=basic(Y_OF_THETA),
    ),
    Case(
        name="nested_without_dims",
        model=nested_without_dims,
        kwargs={"y": np.arange(18.0).reshape(3, 6)},
        expected=replicated(
            PlateFacts(name="visit", size=3, dim=-2, role="replicate"),
            y_facts=obs("y", (6, 3), plates=("site", "visit"), parents=("theta",), program=(3, 6), axes=(-1, -2)),
            site_dim=-1,
            arguments=(data("y", 3, 6, axis=1),),
        ),
    ),
    Case(
        name="nested_replicates",
        model=nested_replicates,
        kwargs={"y": np.arange(36.0).reshape(6, 3, 2)},
        expected=replicated(
            PlateFacts(name="day", size=2, dim=-1, role="replicate"),
            PlateFacts(name="hour", size=3, dim=-2, role="replicate"),
            y_facts=obs(
                "y",
                (6, 2, 3),
                plates=("site", "day", "hour"),
                parents=("theta",),
                program=(6, 3, 2),
                axes=(-3, -1, -2),
            ),
            site_dim=-3,
            arguments=(data("y", 6, 3, 2),),
            theta=local("theta", (6,), parents=("mu",), program=(6, 1, 1)),
        ),
    ),
    Case(
        name="replicates_entered_first",
        model=replicates_entered_first,
        kwargs={"y": np.arange(18.0).reshape(3, 6)},
        expected=replicated(
            PlateFacts(name="visit", size=3, dim=-2, role="replicate"),
            y_facts=obs("y", (6, 3), plates=("site", "visit"), parents=("theta",), program=(3, 6), axes=(-1, -2)),
            site_dim=-1,
            arguments=(data("y", 3, 6, axis=1),),
        ),
    ),
    Case(
        name="replicated_events",
        model=replicated_events,
        kwargs={"y": np.arange(36.0).reshape(3, 6, 2)},
        expected=replicated(
            PlateFacts(name="visit", size=3, dim=-2, role="replicate"),
            y_facts=obs(
                "y",
                (6, 3, 2),
                "real_vector",
                event=(2,),
                plates=("site", "visit"),
                parents=("theta",),
                program=(3, 6, 2),
                axes=(-2, -3),
            ),
            site_dim=-1,
            arguments=(data("y", 3, 6, 2, axis=1),),
            theta=local("theta", (6, 2), "real_vector", event=(2,), parents=("mu",)),
        ),
    ),
    Case(
        name="exchangeable",
        model=exchangeable,
        kwargs={"y": np.arange(14.0).reshape(7, 2)},
        expected=Expected(
            sites=(
                glob("mu", "real_vector", shape=(2,), event=(2,)),
                glob("scale", "positive"),
                obs("y", (7, 2), "real_vector", plates=("row",), event=(2,), parents=("mu", "scale")),
            ),
            plates=(PlateFacts(name="row", size=7),),
            covariates=(data("y", 7, 2),),
        ),
    ),
    Case(
        name="exchangeable_crossed",
        model=exchangeable_crossed,
        kwargs={"y": np.arange(28.0).reshape(7, 4)},
        expected=Expected(
            sites=(glob("mu"), obs("y", (7, 4), plates=("row", "column"), parents=("mu",))),
            plates=(
                PlateFacts(name="row", size=7, dim=-2),
                PlateFacts(name="column", size=4, dim=-1, role="replicate"),
            ),
            covariates=(data("y", 7, 4),),
        ),
    ),
    Case(
        name="stacked",
        model=stacked,
        kwargs={"y": np.arange(28.0).reshape(7, 4)},
        expected=Expected(
            sites=(
                glob("mu"),
                obs("y", (4, 7), plates=("axis_0", "axis_1"), parents=("mu",), program=(7, 4), axes=(-1, -2)),
            ),
            plates=(
                PlateFacts(name="axis_0", size=4, dim=-1),
                PlateFacts(name="axis_1", size=7, dim=-2, role="replicate"),
            ),
            covariates=(data("y", 7, 4, axis=1),),
        ),
    ),
    Case(name="entered_by_hand", model=entered_by_hand, args=(SIGMA, Y), expected=basic(Y_OF_THETA)),
    Case(
        name="plateless",
        model=plateless,
        kwargs={"y": 0.7},
        expected=Expected(
            sites=(
                glob("mu"),
                glob("scale", "positive"),
                det("precision", (), ("scale",)),
                obs("y", (), plates=(), parents=("mu", "scale")),
            ),
        ),
    ),
    Case(
        name="plateless_vector",
        model=plateless_vector,
        args=(np.array([1.0, 2.0, 3.0]),),
        expected=Expected(
            sites=(
                glob("mu", "real_vector", shape=(3,), event=(3,)),
                obs("y", (3,), "real_vector", plates=(), event=(3,), parents=("mu",)),
            ),
        ),
    ),
    Case(
        name="expanded_locals",
        model=expanded_locals,
        kwargs={"y": Y},
        route="whole",
        expected=Expected(
            sites=(
                glob("mu"),
                glob("theta", "real", ("mu",), shape=(6,), event=(6,)),
                obs("y", (6,), parents=("theta",)),
            ),
            plates=SITE,
            covariates=(data("y", 6),),
            warns=r"theta.*(expand|plate)",
        ),
    ),
    Case(
        name="sample_shape_locals",
        model=sample_shape_locals,
        kwargs={"y": Y},
        expected=Expected(
            sites=(
                glob("mu"),
                glob("theta", "real", ("mu",), shape=(6,), event=(6,)),
                obs("y", (6,), plates=(), event=(6,), parents=("theta",)),
            ),
            warns=r"theta.*(sample_shape|expand|plate)",
        ),
    ),
)

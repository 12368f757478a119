"""Models wrapped in effect handlers, missing data, and unusual events."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import transforms
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from .case import Case, Expected, PlateFacts, covariate, data, det, glob, local, obs

SITE = (PlateFacts(name="site", size=6),)
Y = np.linspace(-2.0, 3.0, 6)
SIGMA = np.linspace(0.5, 1.5, 6)
KEEP = np.array([True, False, True, True, False, True])


def plain(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def transformed(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", sigma.shape[0]):
        affine = transforms.AffineTransform(mu, 2.0)
        theta = numpyro.sample("theta", dist.TransformedDistribution(dist.Normal(0.0, 1.0), affine))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def masked_events(keep, y=None):
    """A mask over sites removes whole events."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", keep.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0).expand([3]).to_event(1))
        with handlers.mask(mask=keep):
            numpyro.sample("y", dist.Normal(theta, 0.5).to_event(1), obs=y)


def mask_method(keep, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", keep.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 0.5).mask(keep), obs=y)


def obs_mask(keep, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", keep.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 0.5), obs=y, obs_mask=keep)


def series(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 6):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta[:, None], jnp.ones(4)).to_event(1), obs=y)


HOLES = np.arange(24.0).reshape(6, 4)
HOLES[1, 2] = np.nan
HOLES[3, :] = np.nan
HOLES[5, 0] = np.nan


def correlated_effects(x, y=None):
    """A correlation matrix as global, correlated vectors as locals."""
    factor = numpyro.sample("L", dist.LKJCholesky(3, concentration=1.5))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([3]).to_event(1))
    with numpyro.plate("site", x.shape[0]):
        effect = numpyro.sample("effect", dist.MultivariateNormal(jnp.zeros(3), scale_tril=scale[:, None] * factor))
        numpyro.sample("y", dist.Normal(jnp.einsum("sd,std->st", effect, x), 0.3).to_event(1), obs=y)


def topic_shares(counts=None):
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 1.0))
    with numpyro.plate("site", 5):
        share = numpyro.sample("share", dist.Dirichlet(concentration * jnp.ones(4)))
        numpyro.sample("counts", dist.Multinomial(20, share), obs=counts)


def covariance_locals(y=None):
    """Matrix events per site."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("site", 5):
        factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(2), scale_tril=scale * factor), obs=y)


def many_supports(y=None):
    """One global of each continuous support that priors commonly have."""
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([3]).to_event(1), transforms.OrderedTransform()),
    )
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(4)))
    factor = numpyro.sample("factor", dist.LKJCholesky(3, concentration=2.0))
    corr = numpyro.sample("corr", dist.LKJ(2, concentration=2.0))
    unit = numpyro.sample("unit", dist.Beta(2.0, 3.0))
    box = numpyro.sample("box", dist.Uniform(-1.5, 2.0))
    angle = numpyro.sample("angle", dist.VonMises(0.0, 2.0))
    tail = numpyro.sample("tail", dist.TruncatedNormal(0.0, 1.0, low=0.5))
    total = cuts.sum() + share[0] + factor[1, 0] + corr[0, 1] + unit + box + angle + tail
    with numpyro.plate("site", 6):
        numpyro.sample("y", dist.Normal(total, 1.0), obs=y)


def two_kinds(exposure, weight=None, count=None):
    """A real observation per site and counts in replicates."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("site", exposure.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        rate = numpyro.deterministic("rate", jnp.exp(theta) * exposure)
        numpyro.sample("weight", dist.Normal(theta, noise), obs=weight)
        with numpyro.plate("visit", 3, dim=-1):
            numpyro.sample("count", dist.Poisson(rate), obs=count)


def chained_locals(y=None):
    """A local that depends on its own site's other local, and binary data."""
    with numpyro.plate("site", 6):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(a, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=a + b), obs=y)


def plain_structure(prefix="", data_argument=True, distribution="Normal"):
    plate = prefix + "site"
    return Expected(
        sites=(
            glob(prefix + "mu"),
            local(prefix + "theta", (6,), plates=(plate,), parents=(prefix + "mu",), distribution=distribution),
            obs(prefix + "y", (6,), plates=(plate,), parents=(prefix + "theta",)),
        ),
        plates=(PlateFacts(name=plate, size=6),),
        covariates=(covariate("sigma", 6), *((data("y", 6, of=prefix + "y"),) if data_argument else ())),
    )


def missing_structure(y_facts, *covariates):
    return Expected(
        sites=(glob("mu"), local("theta", (6,), parents=("mu",)), y_facts), plates=SITE, covariates=covariates
    )


CASES = (
    Case(
        name="condition",
        model=handlers.condition(plain, data={"y": Y}),
        args=(SIGMA,),
        expected=plain_structure(data_argument=False),
    ),
    Case(
        name="scope",
        model=handlers.scope(plain, prefix="trial"),
        args=(SIGMA,),
        kwargs={"y": Y},
        expected=plain_structure("trial/"),
    ),
    Case(
        name="reparam_locscale",
        model=handlers.reparam(plain, config={"theta": LocScaleReparam(0.0)}),
        args=(SIGMA, Y),
        expected=plain_structure(),
    ),
    Case(
        name="reparam_transform",
        model=handlers.reparam(transformed, config={"theta": TransformReparam()}),
        args=(SIGMA, Y),
        expected=plain_structure(distribution=None),
    ),
    Case(
        name="mask",
        model=handlers.mask(series, mask=KEEP),
        route="whole",
        kwargs={"y": np.arange(24.0).reshape(6, 4)},
        expected=Expected(
            sites=(
                glob("mu", shape=(6,), event=(6,)),
                local("theta", (6,), parents=("mu",)),
                obs("y", (6, 4), "real_vector", event=(4,), parents=("theta",), missing=8),
            ),
            plates=SITE,
            covariates=(data("y", 6, 4),),
            warns=r"(?:'mu' has shape|is masked: the mask is ignored)",
        ),
    ),
    Case(
        name="condition_of_reparam",
        model=handlers.condition(handlers.reparam(plain, config={"theta": LocScaleReparam(0.0)}), data={"y": Y}),
        args=(SIGMA,),
        expected=plain_structure(data_argument=False),
    ),
    Case(
        name="masked_events",
        model=masked_events,
        args=(KEEP,),
        kwargs={"y": np.arange(18.0).reshape(6, 3)},
        expected=Expected(
            sites=(
                glob("mu"),
                local("theta", (6, 3), "real_vector", event=(3,), parents=("mu",), distribution="Normal"),
                obs("y", (6, 3), "real_vector", event=(3,), parents=("theta",), missing=6, distribution="Normal"),
            ),
            plates=SITE,
            covariates=(covariate("keep", 6), data("y", 6, 3)),
        ),
    ),
    Case(
        name="mask_method",
        model=mask_method,
        args=(KEEP, Y),
        expected=missing_structure(
            obs("y", (6,), parents=("theta",), missing=2, distribution="Normal"), covariate("keep", 6), data("y", 6)
        ),
    ),
    Case(
        name="obs_mask",
        model=obs_mask,
        args=(KEEP, Y),
        expected=missing_structure(
            obs("y", (6,), parents=("theta",), missing=2, distribution="Normal"), covariate("keep", 6), data("y", 6)
        ),
    ),
    Case(
        name="nan_data",
        model=series,
        kwargs={"y": HOLES},
        expected=missing_structure(
            obs("y", (6, 4), "real_vector", event=(4,), parents=("theta",), missing=6), data("y", 6, 4)
        ),
    ),
    Case(
        name="correlated_effects",
        model=correlated_effects,
        args=(np.linspace(-1.0, 1.0, 60).reshape(5, 4, 3),),
        kwargs={"y": np.arange(20.0).reshape(5, 4)},
        expected=Expected(
            sites=(
                glob("L", "corr_cholesky", shape=(3, 3), event=(3, 3)),
                glob("scale", "positive", shape=(3,), event=(3,)),
                local("effect", (5, 3), "real_vector", event=(3,), parents=("L", "scale")),
                obs("y", (5, 4), "real_vector", event=(4,), parents=("effect",)),
            ),
            plates=(PlateFacts(name="site", size=5),),
            covariates=(covariate("x", 5, 4, 3), data("y", 5, 4)),
        ),
    ),
    Case(
        name="topic_shares",
        model=topic_shares,
        kwargs={"counts": np.tile(np.array([5, 6, 2, 7]), (5, 1))},
        expected=Expected(
            sites=(
                glob("concentration", "positive"),
                local("share", (5, 4), "simplex", event=(4,), parents=("concentration",), distribution="Dirichlet"),
                obs("counts", (5, 4), "multinomial(...)", event=(4,), parents=("share",), discrete=True),
            ),
            plates=(PlateFacts(name="site", size=5),),
            covariates=(data("counts", 5, 4),),
        ),
    ),
    Case(
        name="covariance_locals",
        model=covariance_locals,
        kwargs={"y": np.arange(10.0).reshape(5, 2)},
        expected=Expected(
            sites=(
                glob("scale", "positive"),
                local("factor", (5, 2, 2), "corr_cholesky", event=(2, 2)),
                obs("y", (5, 2), "real_vector", event=(2,), parents=("scale", "factor")),
            ),
            plates=(PlateFacts(name="site", size=5),),
            covariates=(data("y", 5, 2),),
        ),
    ),
    Case(
        name="many_supports",
        model=many_supports,
        kwargs={"y": Y},
        expected=Expected(
            sites=(
                glob("cuts", "ordered_vector", shape=(3,), event=(3,)),
                glob("share", "simplex", shape=(4,), event=(4,)),
                glob("factor", "corr_cholesky", shape=(3, 3), event=(3, 3)),
                glob("corr", "corr_matrix", shape=(2, 2), event=(2, 2)),
                glob("unit", "interval(0, 1)"),
                glob("box", "interval(-1.5, 2)"),
                glob("angle", "circular"),
                glob("tail", "greater_than_eq(0.5)"),
                obs("y", (6,), parents=("cuts", "share", "factor", "corr", "unit", "box", "angle", "tail")),
            ),
            plates=SITE,
            covariates=(data("y", 6),),
        ),
    ),
    Case(
        name="two_kinds",
        model=two_kinds,
        args=(np.linspace(1.0, 2.0, 5)[:, None],),
        kwargs={"weight": np.linspace(0.0, 1.0, 5)[:, None], "count": np.arange(15).reshape(5, 3)},
        expected=Expected(
            sites=(
                glob("mu"),
                glob("noise", "positive"),
                local("theta", (5,), parents=("mu",), program=(5, 1)),
                det("rate", (5,), ("theta",), plates=("site",), program=(5, 1)),
                obs("weight", (5,), parents=("theta", "noise"), program=(5, 1)),
                obs(
                    "count",
                    (5, 3),
                    "nonnegative_integer",
                    plates=("site", "visit"),
                    parents=("theta",),
                    discrete=True,
                ),
            ),
            plates=(
                PlateFacts(name="site", size=5, dim=-2),
                PlateFacts(name="visit", size=3, dim=-1, role="replicate"),
            ),
            covariates=(covariate("exposure", 5, 1), data("weight", 5, 1), data("count", 5, 3)),
        ),
    ),
    Case(
        name="chained_locals",
        model=chained_locals,
        kwargs={"y": np.array([0, 1, 1, 0, 0, 1])},
        expected=Expected(
            sites=(
                local("a", (6,)),
                local("b", (6,), parents=("a",)),
                obs("y", (6,), "boolean", parents=("a", "b"), discrete=True),
            ),
            plates=SITE,
            covariates=(data("y", 6),),
        ),
    ),
)

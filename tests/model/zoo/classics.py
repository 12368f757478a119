"""Textbook hierarchical models, written from their mathematics."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from .case import Case, Expected, PlateFacts, covariate, data, det, glob, local, obs

SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOLS_SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
HITS = np.array([18, 17, 16, 15, 14, 14, 13])
AT_BATS = np.full(7, 45)
DEATHS = np.array([0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24])
OPERATIONS = np.array([47, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360])


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_raw(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        raw = numpyro.sample("theta_raw", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * raw)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_locscale(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        with numpyro.handlers.reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_transform(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        with numpyro.handlers.reparam(config={"theta": TransformReparam()}):
            affine = dist.transforms.AffineTransform(mu, tau)
            theta = numpyro.sample("theta", dist.TransformedDistribution(dist.Normal(0.0, 1.0), affine))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


SCHOOL_PLATE = (PlateFacts(name="school", size=8),)
SCHOOL_ARGUMENTS = (covariate("sigma", 8), data("y", 8))


def school_structure(theta_distribution):
    return Expected(
        sites=(
            glob("mu", distribution="Normal"),
            glob("tau", "positive", distribution="HalfCauchy"),
            local("theta", (8,), plates=("school",), parents=("mu", "tau"), distribution=theta_distribution),
            obs("y", (8,), plates=("school",), parents=("theta",), distribution="Normal"),
        ),
        plates=SCHOOL_PLATE,
        covariates=SCHOOL_ARGUMENTS,
    )


def baseball_partial(at_bats, hits=None):
    mean = numpyro.sample("m", dist.Uniform(0.0, 1.0))
    kappa = numpyro.sample("kappa", dist.Pareto(1.0, 1.5))
    with numpyro.plate("player", at_bats.shape[0]):
        phi = numpyro.sample("phi", dist.Beta(mean * kappa, (1.0 - mean) * kappa))
        numpyro.sample("hits", dist.Binomial(at_bats, probs=phi), obs=hits)


def baseball_logit(at_bats, hits=None):
    loc = numpyro.sample("loc", dist.Normal(-1.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("player", at_bats.shape[0]):
        alpha = numpyro.sample("alpha", dist.Normal(loc, scale))
        numpyro.sample("hits", dist.Binomial(at_bats, logits=alpha), obs=hits)


def baseball_pooled(at_bats, hits=None):
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    with numpyro.plate("player", at_bats.shape[0]):
        numpyro.sample("hits", dist.Binomial(at_bats, probs=phi), obs=hits)


def surgical(operations, deaths=None):
    mu = numpyro.sample("mu", dist.Normal(-2.5, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("hospital", operations.shape[0]):
        b = numpyro.sample("b", dist.Normal(mu, sigma))
        numpyro.deterministic("risk", 1.0 / (1.0 + jnp.exp(-b)))
        numpyro.sample("deaths", dist.Binomial(operations, logits=b), obs=deaths)
    numpyro.deterministic("population_risk", 1.0 / (1.0 + jnp.exp(-mu)))


def rats(weeks, y=None):
    """Growth curves: a line per rat, measured in the same weeks."""
    alpha_mean = numpyro.sample("alpha_mean", dist.Normal(250.0, 50.0))
    beta_mean = numpyro.sample("beta_mean", dist.Normal(6.0, 3.0))
    alpha_scale = numpyro.sample("alpha_scale", dist.HalfNormal(20.0))
    beta_scale = numpyro.sample("beta_scale", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(10.0))
    with numpyro.plate("rat", 6, dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(alpha_mean, alpha_scale))
        beta = numpyro.sample("beta", dist.Normal(beta_mean, beta_scale))
        with numpyro.plate("week", weeks.shape[0], dim=-1):
            numpyro.sample("y", dist.Normal(alpha + beta * (weeks - weeks.mean())[None, :], noise), obs=y)


def pumps(hours, failures=None):
    alpha = numpyro.sample("alpha", dist.Exponential(1.0))
    beta = numpyro.sample("beta", dist.Gamma(0.1, 1.0))
    with numpyro.plate("pump", len(hours)):
        rate = numpyro.sample("rate", dist.Gamma(alpha, beta))
        numpyro.sample("failures", dist.Poisson(rate * hours), obs=failures)


def seeds(seed_type, extract, total, germinated=None):
    """Random-effects logistic regression with an interaction of two factors."""
    with numpyro.plate("coefficient", 4):
        coef = numpyro.sample("coef", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    with numpyro.plate("dish", total.shape[0]):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0 / jnp.sqrt(tau)))
        logit = coef[0] + coef[1] * seed_type + coef[2] * extract + coef[3] * seed_type * extract + b
        numpyro.sample("germinated", dist.Binomial(total, logits=logit), obs=germinated)


def dugongs(age, length=None):
    """Nonlinear growth without a plate: one site with a vector of values."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0))
    decay = numpyro.sample("decay", dist.Uniform(0.5, 1.0))
    scale = numpyro.sample("scale", dist.InverseGamma(2.0, 1.0))
    numpyro.sample("length", dist.Normal(alpha - beta * decay**age, scale), obs=length)


def stochastic_volatility(num_days, returns=None):
    step = numpyro.sample("step", dist.Exponential(50.0))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    path = numpyro.sample("path", dist.GaussianRandomWalk(scale=step, num_steps=num_days))
    numpyro.sample("returns", dist.StudentT(nu, 0.0, jnp.exp(path)), obs=returns)


def ucb_admissions(applications, male, admitted=None):
    """Varying intercept and gender effect by department with correlated effects."""
    base = numpyro.sample("base", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfCauchy(2.0).expand([2]).to_event(1))
    factor = numpyro.sample("L", dist.LKJCholesky(2, concentration=2.0))
    with numpyro.plate("department", applications.shape[0], dim=-2):
        effect = numpyro.sample("effect", dist.MultivariateNormal(base, scale_tril=scale[:, None] * factor))
        with numpyro.plate("gender", 2, dim=-1):
            logits = effect[..., 0] + effect[..., 1] * male[None, :]
            numpyro.sample("admitted", dist.Binomial(applications, logits=logits), obs=admitted)


def radon_padded(floor, present, y=None):
    """Varying intercepts over counties, houses padded to the largest county."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    num_counties, num_houses = floor.shape
    with numpyro.plate("county", num_counties, dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
        with numpyro.plate("house", num_houses, dim=-1), numpyro.handlers.mask(mask=present):
            numpyro.sample("y", dist.Normal(alpha + slope * floor, noise), obs=y)


HOUSES = np.array([4, 1, 3, 2, 4])
PRESENT = np.arange(4)[None, :] < HOUSES[:, None]
FLOOR = np.where(np.arange(20).reshape(5, 4) % 3 == 0, 1.0, 0.0)


def divorce(*, marriage, age, rate=None):
    """Linear regression on exchangeable rows; keyword arguments only."""
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    b_marriage = numpyro.sample("b_marriage", dist.Normal(0.0, 0.5))
    b_age = numpyro.sample("b_age", dist.Normal(0.0, 0.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("state", len(marriage)):
        mean = numpyro.deterministic("mean", a + b_marriage * marriage + b_age * age)
        numpyro.sample("rate", dist.Normal(mean, sigma), obs=rate)


def horseshoe(x, y=None):
    """Sparse regression: the coefficients have a plate of their own that holds no observation."""
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    with numpyro.plate("feature", x.shape[1]):
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, scale * tau))
    noise = numpyro.sample("noise", dist.Gamma(3.0, 1.0))
    with numpyro.plate("row", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)


def binomial(name, size, plate, parents, distribution):
    return obs(
        name,
        (size,),
        "integer_interval(...)",
        plates=(plate,),
        parents=parents,
        distribution=distribution,
        discrete=True,
    )


BASEBALL = {
    "plates": (PlateFacts(name="player", size=7),),
    "covariates": (covariate("at_bats", 7), data("hits", 7)),
}

CASES = (
    Case(
        name="eight_schools",
        model=eight_schools,
        args=(SCHOOLS_SIGMA,),
        kwargs={"y": SCHOOLS},
        expected=school_structure("Normal"),
    ),
    Case(
        name="eight_schools_raw",
        model=eight_schools_raw,
        args=(SCHOOLS_SIGMA, SCHOOLS),
        expected=Expected(
            sites=(
                glob("mu"),
                glob("tau", "positive"),
                local("theta_raw", (8,), plates=("school",)),
                det("theta", (8,), ("mu", "tau", "theta_raw"), plates=("school",)),
                obs("y", (8,), plates=("school",), parents=("mu", "tau", "theta_raw")),
            ),
            plates=SCHOOL_PLATE,
            covariates=SCHOOL_ARGUMENTS,
        ),
    ),
    Case(
        name="eight_schools_locscale",
        model=eight_schools_locscale,
        args=(SCHOOLS_SIGMA,),
        kwargs={"y": SCHOOLS},
        expected=school_structure("Normal"),
    ),
    Case(
        name="eight_schools_transform",
        model=eight_schools_transform,
        args=(SCHOOLS_SIGMA,),
        kwargs={"y": SCHOOLS},
        expected=school_structure(None),
    ),
    Case(
        name="baseball_partial",
        model=baseball_partial,
        args=(AT_BATS, HITS),
        expected=Expected(
            sites=(
                glob("m", "interval(0, 1)", distribution="Uniform"),
                glob("kappa", "greater_than(1)", distribution="Pareto"),
                local("phi", (7,), "interval(0, 1)", plates=("player",), parents=("m", "kappa"), distribution="Beta"),
                binomial("hits", 7, "player", ("phi",), "BinomialProbs"),
            ),
            **BASEBALL,
        ),
    ),
    Case(
        name="baseball_logit",
        model=baseball_logit,
        args=(AT_BATS,),
        kwargs={"hits": HITS},
        expected=Expected(
            sites=(
                glob("loc"),
                glob("scale", "positive"),
                local("alpha", (7,), plates=("player",), parents=("loc", "scale")),
                binomial("hits", 7, "player", ("alpha",), "BinomialLogits"),
            ),
            **BASEBALL,
        ),
    ),
    Case(
        name="baseball_pooled",
        model=baseball_pooled,
        args=(AT_BATS, HITS),
        expected=Expected(
            sites=(glob("phi", "interval(0, 1)"), binomial("hits", 7, "player", ("phi",), "BinomialProbs")),
            **BASEBALL,
        ),
    ),
    Case(
        name="surgical",
        model=surgical,
        args=(OPERATIONS,),
        kwargs={"deaths": DEATHS},
        expected=Expected(
            sites=(
                glob("mu"),
                glob("sigma", "positive"),
                local("b", (12,), plates=("hospital",), parents=("mu", "sigma")),
                det("risk", (12,), ("b",), plates=("hospital",)),
                binomial("deaths", 12, "hospital", ("b",), "BinomialLogits"),
                det("population_risk", (), ("mu",)),
            ),
            plates=(PlateFacts(name="hospital", size=12),),
            covariates=(covariate("operations", 12), data("deaths", 12)),
        ),
    ),
    Case(
        name="rats",
        model=rats,
        args=(np.array([8.0, 15.0, 22.0, 29.0, 36.0]),),
        kwargs={"y": 200.0 + np.arange(30.0).reshape(6, 5)},
        expected=Expected(
            sites=(
                glob("alpha_mean"),
                glob("beta_mean"),
                glob("alpha_scale", "positive"),
                glob("beta_scale", "positive"),
                glob("noise", "positive"),
                local("alpha", (6,), plates=("rat",), parents=("alpha_mean", "alpha_scale"), program=(6, 1)),
                local("beta", (6,), plates=("rat",), parents=("beta_mean", "beta_scale"), program=(6, 1)),
                obs("y", (6, 5), plates=("rat", "week"), parents=("alpha", "beta", "noise")),
            ),
            plates=(
                PlateFacts(name="rat", size=6, dim=-2),
                PlateFacts(name="week", size=5, dim=-1, role="replicate"),
            ),
            covariates=(data("y", 6, 5),),
        ),
    ),
    Case(
        name="pumps",
        model=pumps,
        args=(np.array([94.3, 15.7, 62.9, 126.0, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5]),),
        kwargs={"failures": np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])},
        expected=Expected(
            sites=(
                glob("alpha", "positive", distribution="Exponential"),
                glob("beta", "positive", distribution="Gamma"),
                local("rate", (10,), "positive", plates=("pump",), parents=("alpha", "beta")),
                obs("failures", (10,), "nonnegative_integer", plates=("pump",), parents=("rate",), discrete=True),
            ),
            plates=(PlateFacts(name="pump", size=10),),
            covariates=(covariate("hours", 10), data("failures", 10)),
        ),
    ),
    Case(
        name="seeds",
        model=seeds,
        args=(np.array([0.0, 0.0, 1.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.0, 1.0, 1.0]), np.array([39, 62, 81, 51, 39])),
        kwargs={"germinated": np.array([10, 23, 23, 26, 17])},
        expected=Expected(
            sites=(
                glob("coef", plates=("coefficient",), shape=(4,)),
                glob("tau", "positive"),
                local("b", (5,), plates=("dish",), parents=("tau",)),
                binomial("germinated", 5, "dish", ("coef", "b"), "BinomialLogits"),
            ),
            plates=(PlateFacts(name="coefficient", size=4, role="other"), PlateFacts(name="dish", size=5)),
            covariates=(
                covariate("seed_type", 5),
                covariate("extract", 5),
                covariate("total", 5),
                data("germinated", 5),
            ),
        ),
    ),
    Case(
        name="dugongs",
        model=dugongs,
        args=(np.array([1.0, 1.5, 2.5, 5.0, 8.0, 12.0, 17.0]),),
        kwargs={"length": np.array([1.80, 1.77, 2.02, 2.19, 2.35, 2.43, 2.6])},
        expected=Expected(
            sites=(
                glob("alpha"),
                glob("beta"),
                glob("decay", "interval(0.5, 1)"),
                glob("scale", "positive"),
                obs("length", (7,), event=(7,), plates=(), parents=("alpha", "beta", "decay", "scale")),
            ),
        ),
    ),
    Case(
        name="stochastic_volatility",
        model=stochastic_volatility,
        args=(9,),
        kwargs={"returns": np.linspace(-0.02, 0.03, 9)},
        expected=Expected(
            sites=(
                glob("step", "positive"),
                glob("nu", "positive"),
                glob("path", "real_vector", ("step",), shape=(9,), event=(9,), distribution="GaussianRandomWalk"),
                obs("returns", (9,), event=(9,), plates=(), parents=("nu", "path"), distribution="StudentT"),
            ),
        ),
    ),
    Case(
        name="ucb_admissions",
        model=ucb_admissions,
        args=(10 + np.arange(12).reshape(6, 2), np.array([0.0, 1.0])),
        kwargs={"admitted": np.arange(12).reshape(6, 2)},
        expected=Expected(
            sites=(
                glob("base", "real_vector", shape=(2,), event=(2,)),
                glob("scale", "positive", shape=(2,), event=(2,)),
                glob("L", "corr_cholesky", shape=(2, 2), event=(2, 2), distribution="LKJCholesky"),
                local(
                    "effect",
                    (6, 2),
                    "real_vector",
                    plates=("department",),
                    event=(2,),
                    parents=("base", "scale", "L"),
                    program=(6, 1, 2),
                ),
                obs(
                    "admitted",
                    (6, 2),
                    "integer_interval(...)",
                    plates=("department", "gender"),
                    parents=("effect",),
                    discrete=True,
                ),
            ),
            plates=(
                PlateFacts(name="department", size=6, dim=-2),
                PlateFacts(name="gender", size=2, dim=-1, role="replicate"),
            ),
            covariates=(covariate("applications", 6, 2), data("admitted", 6, 2)),
        ),
    ),
    Case(
        name="radon_padded",
        model=radon_padded,
        args=(FLOOR, PRESENT),
        kwargs={"y": np.where(PRESENT, 0.1 * np.arange(20.0).reshape(5, 4), 0.0)},
        expected=Expected(
            sites=(
                glob("mu"),
                glob("tau", "positive"),
                glob("slope"),
                glob("noise", "positive"),
                local("alpha", (5,), plates=("county",), parents=("mu", "tau"), program=(5, 1)),
                obs("y", (5, 4), plates=("county", "house"), parents=("alpha", "slope", "noise"), missing=6),
            ),
            plates=(
                PlateFacts(name="county", size=5, dim=-2),
                PlateFacts(name="house", size=4, dim=-1, role="replicate"),
            ),
            covariates=(covariate("floor", 5, 4), covariate("present", 5, 4), data("y", 5, 4)),
        ),
    ),
    Case(
        name="divorce",
        model=divorce,
        kwargs={
            "marriage": np.linspace(-1.0, 1.0, 9),
            "age": np.linspace(2.0, -1.0, 9),
            "rate": np.linspace(0.0, 1.0, 9),
        },
        expected=Expected(
            sites=(
                glob("a"),
                glob("b_marriage"),
                glob("b_age"),
                glob("sigma", "positive"),
                det("mean", (9,), ("a", "b_marriage", "b_age"), plates=("state",)),
                obs("rate", (9,), plates=("state",), parents=("a", "b_marriage", "b_age", "sigma")),
            ),
            plates=(PlateFacts(name="state", size=9),),
            covariates=(covariate("marriage", 9), covariate("age", 9), data("rate", 9)),
        ),
    ),
    Case(
        name="horseshoe",
        model=horseshoe,
        args=(np.linspace(-1.0, 1.0, 33).reshape(11, 3),),
        kwargs={"y": np.linspace(-1.0, 1.0, 11)},
        expected=Expected(
            sites=(
                glob("tau", "positive"),
                glob("scale", "positive", plates=("feature",), shape=(3,)),
                glob("beta", "real", ("tau", "scale"), plates=("feature",), shape=(3,)),
                glob("noise", "positive"),
                obs("y", (11,), plates=("row",), parents=("beta", "noise")),
            ),
            plates=(PlateFacts(name="feature", size=3, role="other"), PlateFacts(name="row", size=11)),
            covariates=(covariate("x", 11, 3), data("y", 11)),
        ),
    ),
)

"""The linearization of exact surrogates is the conjugate posterior."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from hsbi.inference.arrays import Coordinates, Design, ObservationShape
from hsbi.inference.batch import Observed
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.linear import Linear
from hsbi.inference.linearize import Linearized, linearize
from hsbi.inference.surrogate import Surrogate
from hsbi.model.program import Program
from hsbi.model.structure import Plate, Site, Structure
from tests.inference.linear_gaussian import (
    TINY,
    identity,
    school_coordinates,
    school_design,
    school_surrogate,
    transform,
)
from tests.model.programs import EFFECTS, ERRORS, NUM_SCHOOLS, per_site, schools_program

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
MU, TAU = 4.0, 6.0


@functools.cache
def _linearize_schools():
    surrogate = school_surrogate()

    @jax.jit
    def run(effects):
        values = {"y": surrogate.transform.center(effects.reshape(NUM_SCHOOLS, 1, 1, 1))}
        observed = Observed(values, school_design(ERRORS), jnp.ones(NUM_SCHOOLS, bool))
        globals_ = jnp.asarray([MU, jnp.log(TAU)])
        return linearize(schools_program(), school_coordinates(), (surrogate,), globals_, observed)

    return run


def conjugate(effects):
    """Give mean and precision of z = (theta - mu) / tau when y ~ Normal(mu + tau z, sigma)."""
    precision = 1.0 + (TAU / ERRORS) ** 2
    return TAU * (effects - MU) / ERRORS**2 / precision, precision


def test_schools_have_their_conjugate_posterior():
    found = _linearize_schools()(jnp.asarray(EFFECTS, "float32"))
    mean, precision = conjugate(EFFECTS)
    np.testing.assert_allclose(found.mean[:, 0], mean, **TOLERANCE)
    np.testing.assert_allclose(found.factor[:, 0, 0] ** 2, precision, **TOLERANCE)
    np.testing.assert_allclose(found.features(), np.stack([mean, 0.5 * np.log(precision)], axis=-1), **TOLERANCE)


@pytest.mark.parametrize("missing", [np.nan, np.inf], ids=["missing", "infinite"])
def test_a_school_without_a_usable_observation_keeps_its_prior(missing):
    effects = np.where(np.arange(NUM_SCHOOLS) == 2, missing, EFFECTS)
    found = _linearize_schools()(jnp.asarray(effects, "float32"))
    mean, precision = conjugate(EFFECTS)
    mean[2], precision[2] = 0.0, 1.0
    np.testing.assert_allclose(found.mean[:, 0], mean, **TOLERANCE)
    np.testing.assert_allclose(found.factor[:, 0, 0] ** 2, precision, **TOLERANCE)


def test_a_far_observation_is_kept_within_reach():
    found = _linearize_schools()(jnp.asarray(EFFECTS + 1e6, "float32"))
    np.testing.assert_allclose(found.mean, np.full((NUM_SCHOOLS, 1), 6.0))


# Three numbers observed of two effects: the posterior of a site is correlated.
DESIGN = np.array([[1.0, 0.5], [-0.3, 2.0], [0.8, 0.8]])
NOISE = np.array([0.5, 1.0, 2.0])
SITES = 4


def regression():
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("site", SITES):
        eta = numpyro.sample("eta", dist.Normal(jnp.zeros(2), scale).to_event(1))
        numpyro.sample("y", dist.Normal(eta @ DESIGN.T, NOISE).to_event(1))


def regression_problem():
    structure = Structure(
        sites=(
            Site(name="scale", level="global"),
            per_site("eta", "local", SITES, (2,)),
            per_site("y", "observation", SITES, (3,)),
        ),
        plates=(Plate(name="site", size=SITES, dim=-1, role="site"),),
    )
    program = Program(model=regression, structure=structure, arguments={}, route="resize")
    sizes = (("scale", "global", 1), ("eta", "local", 2))
    coordinates = Coordinates(sizes=sizes, globals=identity(1), locals=identity(2), values=identity(1))
    features = ParameterFeatures(
        names=("eta",), positive=(), scaling=identity(2), input_low=jnp.zeros(0), input_range=jnp.zeros(0)
    )
    shape = ObservationShape(name="y", replicates=1, points=1, width=3, parents=("eta",))
    empty = Surrogate.unfitted(shape, TINY, features, transform(0.0, 1.0, 3))
    linear = Linear(
        jnp.asarray(np.concatenate([DESIGN.T, np.zeros((1, 3))]), "float32"),
        jnp.asarray(np.concatenate([np.zeros((2, 3)), np.log(NOISE)[None]]), "float32"),
    )
    surrogate = Surrogate(
        shape=shape, networks=empty.networks, features=features, transform=empty.transform, linear=linear
    )
    return program, coordinates, surrogate


def test_correlated_locals_have_their_conjugate_posterior():
    program, coordinates, surrogate = regression_problem()
    scale = 1.5
    y = np.random.default_rng(0).normal(size=(SITES, 3))
    y[1, 2] = np.nan

    @jax.jit
    def run(values):
        observed = Observed({"y": values}, Design(jnp.zeros((SITES, 0)), {}), jnp.ones(SITES, bool))
        return linearize(program, coordinates, (surrogate,), jnp.log(jnp.asarray([scale])), observed)

    found = run(jnp.asarray(y.reshape(SITES, 1, 1, 3), "float32"))
    for site in range(SITES):
        real = np.isfinite(y[site])
        root = scale * DESIGN[real] / NOISE[real, None]
        precision = np.eye(2) + root.T @ root
        mean = np.linalg.solve(precision, root.T @ (y[site, real] / NOISE[real]))
        np.testing.assert_allclose(found.mean[site], mean, **TOLERANCE)
        np.testing.assert_allclose(found.factor[site] @ found.factor[site].T, precision, **TOLERANCE)


def test_whiten_and_color_are_inverses_and_whiten():
    rng = np.random.default_rng(0)
    factor = np.tril(rng.normal(size=(SITES, 3, 3))) + 3 * np.eye(3)
    base = Linearized(rng.normal(size=(SITES, 3)).astype("float32"), factor.astype("float32"))
    x = rng.normal(size=(SITES, 3)).astype("float32")
    np.testing.assert_allclose(base.color(base.whiten(x)), x, **TOLERANCE)
    np.testing.assert_allclose(base.whiten(base.color(x)), x, **TOLERANCE)
    # The squared length of the residual is the Mahalanobis distance of the precision L L'.
    away = x - base.mean
    distance = np.einsum("si,sij,skj,sk->s", away, factor, factor, away)
    np.testing.assert_allclose(np.sum(base.whiten(x) ** 2, axis=-1), distance, rtol=1e-4)

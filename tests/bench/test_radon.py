"""Radon: the data, and the exact posterior against brute force and NUTS."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density
from scipy import stats

import hsbi
from hsbi.bench.tasks import radon


@pytest.fixture(scope="module")
def houses():
    return radon.load()


def test_data_are_those_of_the_survey(houses):
    number = np.isfinite(houses.y).sum(1)
    assert number.sum() == 919
    assert (number.size, number.min(), number.max()) == (85, 1, 116)
    assert houses.county[int(number.argmax())] == "St. Louis"
    assert houses.floor[np.isfinite(houses.y)].mean() == pytest.approx(0.1665, abs=1e-3)
    # What the file held when it was added: these guard it against later damage.
    np.testing.assert_allclose([np.nanmean(houses.y), np.nanstd(houses.y)], [1.225, 0.853], atol=2e-3)


def test_program_is_read_with_its_missing_houses(houses):
    arrays = [jnp.asarray(value) for value in (houses.floor, houses.uranium, houses.y)]
    structure = hsbi.inspect(radon.model, *arrays)
    assert structure.globals == radon.GLOBALS
    assert structure.locals == ("alpha",)
    assert structure["y"].missing == houses.y.size - 919
    assert {covariate.path: covariate.data for covariate in structure.covariates}["y"] == "y"


def test_density_of_the_scales_is_that_of_the_joint_normal():
    rng = np.random.default_rng(0)
    floor, uranium, y = rng.integers(0, 2, (3, 4)).astype(float), rng.normal(size=3), rng.normal(size=(3, 4))
    y[0, 2:], y[2, 1:] = np.nan, np.nan
    log_scales = rng.normal(size=(5, 2)) * 0.5
    got = radon._solve(radon._count(floor, uranium, y), *log_scales.T)[0]
    seen = np.isfinite(y)
    county = np.nonzero(seen)[0]
    design = np.stack([np.ones(county.size), uranium[county], floor[seen]], axis=1)
    expected = []
    for log_alpha, log_y in log_scales:
        alpha, noise = np.exp([2 * log_alpha, 2 * log_y])
        covariance = design @ np.diag([4.0, 1.0, 1.0]) @ design.T
        covariance += alpha * (county[:, None] == county) + noise * np.eye(county.size)
        prior = log_alpha + log_y - 0.5 * (alpha + noise)
        expected.append(prior + stats.multivariate_normal(cov=covariance).logpdf(y[seen]))
    np.testing.assert_allclose(got - got[0], np.array(expected) - expected[0], atol=1e-8)


def test_draws_have_the_moments_of_the_grid(houses):
    draws = radon.reference(jax.random.key(1), houses.floor, houses.uranium, houses.y, 4_000)
    for name, (mean, sd) in radon.moments(houses.floor, houses.uranium, houses.y).items():
        # Four standard errors of 4,000 draws, 4.5 for the largest of 85; sds of skewed marginals vary more.
        assert np.all(np.abs(draws[name].mean(0) - mean) < 4.5 * sd / np.sqrt(4_000))
        assert np.all(np.abs(draws[name].std(0) / sd - 1) < 0.08)


def test_program_has_the_density_of_the_observed_houses_only(houses):
    latents = {"mu": 1.0, "g": 0.5, "b": -0.5, "sigma_alpha": 0.3, "sigma_y": 0.8, "alpha": jnp.ones((85, 1))}
    filled = jnp.asarray(houses.y)
    value, _ = log_density(radon.model, (jnp.asarray(houses.floor), jnp.asarray(houses.uranium), filled), {}, latents)
    seen = np.isfinite(houses.y)
    expected = stats.norm(1 - 0.5 * houses.floor[seen], 0.8).logpdf(houses.y[seen]).sum()
    expected += stats.norm(1 + 0.5 * houses.uranium, 0.3).logpdf(1.0).sum()
    expected += (
        stats.norm(0, 2).logpdf(1.0) + stats.norm.logpdf([0.5, -0.5]).sum() + stats.halfnorm.logpdf([0.3, 0.8]).sum()
    )
    assert float(value) == pytest.approx(expected, rel=1e-5)


def test_arrays_of_other_shapes_are_refused(houses):
    with pytest.raises(ValueError, match=r"Floors, uranium and data of task 'radon' have shapes \(85, 2\)"):
        radon.moments(houses.floor[:, :2], houses.uranium, houses.y)


@pytest.mark.slow
@pytest.mark.long
def test_posterior_agrees_with_nuts_on_the_program(houses):
    arrays = [jnp.asarray(value) for value in (houses.floor, houses.uranium, houses.y)]
    mcmc = MCMC(NUTS(radon.model), num_warmup=500, num_samples=2_000, progress_bar=False)
    mcmc.run(jax.random.key(2), *arrays)
    samples = {name: np.asarray(value, float) for name, value in mcmc.get_samples().items()}
    samples["alpha"] = samples["alpha"][..., 0]
    for name, (mean, sd) in radon.moments(houses.floor, houses.uranium, houses.y).items():
        # The spread of the counties mixes slowly: four standard errors of 250 effective draws.
        assert np.all(np.abs(samples[name].mean(0) - mean) < 0.25 * sd)
        assert np.all(np.abs(np.log(samples[name].std(0) / sd)) < 0.25)

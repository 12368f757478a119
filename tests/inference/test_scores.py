"""Scores of counts against the distributions they stand for, and draws against the cells of the scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.cells import log_mass
from hsbi.inference.count_linear import fit_count_linear
from hsbi.inference.scores import CountNoise

FREE = CountNoise(bounded=False, upper=jnp.asarray(jnp.inf))
TRIALS = 60
BOUNDED = CountNoise(bounded=True, upper=jnp.asarray(float(TRIALS)))
# A dispersion of exp(-11) is that of a Poisson distribution.
POISSON = -11.0


def mass(noise, counts, link, log_dispersion):
    counts = jnp.asarray(counts, jnp.float32)
    ends = noise.scores(counts, jnp.full(counts.shape, link), jnp.full(counts.shape, log_dispersion))
    return np.exp(np.asarray(log_mass(*ends), float))


@pytest.mark.parametrize("mean", [0.1, 1.0, 7.0, 60.0, 500.0])
@pytest.mark.parametrize(("log_dispersion", "allowed"), [(POISSON, 0.004), (-2.0, 0.004), (0.0, 0.009)])
def test_cells_have_the_mass_of_a_negative_binomial(mean, log_dispersion, allowed):
    size = np.exp(-log_dispersion)
    sd = np.sqrt(mean + mean**2 / size)
    counts = np.arange(int(mean + 14 * sd) + 10)
    exact = stats.nbinom(size, size / (size + mean)).pmf(counts)
    found = mass(FREE, counts, np.log(mean), log_dispersion)
    assert 0.5 * np.sum(np.abs(found - exact)) < allowed
    assert found.sum() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("probability", [0.002, 0.1, 0.5, 0.95, 0.999])
def test_cells_have_the_mass_of_a_binomial(probability):
    counts = np.arange(TRIALS + 1)
    exact = stats.binom(TRIALS, probability).pmf(counts)
    found = mass(BOUNDED, counts, np.log(probability / (1 - probability)), POISSON)
    assert 0.5 * np.sum(np.abs(found - exact)) < 0.005
    assert found.sum() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("noise", [FREE, BOUNDED], ids=["free", "bounded"])
def test_a_score_comes_back_to_its_cell(noise):
    rng = np.random.default_rng(0)
    score = jnp.asarray(rng.normal(size=4000), jnp.float32)
    link = jnp.asarray(rng.uniform(-4.0, 4.0 if noise.bounded else 6.0, size=4000), jnp.float32)
    log_dispersion = jnp.asarray(rng.uniform(-11.0, -1.0, size=4000), jnp.float32)
    counts = jax.jit(noise.counts)(score, link, log_dispersion)
    np.testing.assert_array_equal(counts, np.round(counts))
    low, high = noise.scores(counts, link, log_dispersion)
    # Ends of cells are rounded in single precision.
    assert np.mean((score > low) & (score <= high)) > 0.999
    assert np.min(counts) >= 0.0
    assert not noise.bounded or np.max(counts) <= TRIALS


def test_variances_are_those_of_draws():
    score = jax.random.normal(jax.random.key(0), (100_000,))
    for noise, link, log_dispersion in ((FREE, 3.0, -2.0), (BOUNDED, 0.4, POISSON), (BOUNDED, 0.4, 0.0)):
        pair = jnp.asarray(link), jnp.asarray(log_dispersion)
        draws = np.asarray(noise.counts(score, *(jnp.full(score.shape, x) for x in pair)), float)
        # Within four standard errors, 0.018 of the variance, and the error of the family, 0.01.
        assert draws.mean() == pytest.approx(float(noise.mean(pair[0])), rel=0.02)
        assert draws.var() == pytest.approx(float(noise.variance(*pair)), rel=0.03)


def test_gradients_are_finite_far_out():
    def loss(link, log_dispersion, noise):
        return log_mass(*noise.scores(jnp.asarray([0.0, 3.0, 50.0]), link, log_dispersion)).sum()

    for noise in (FREE, BOUNDED):
        for link in (-20.0, -3.0, 0.0, 12.0):
            pair = jnp.full(3, link), jnp.full(3, -6.0)
            assert all(np.all(np.isfinite(part)) for part in jax.grad(loss, (0, 1))(*pair, noise))


@pytest.mark.parametrize("noise", [FREE, BOUNDED], ids=["free", "bounded"])
def test_regression_finds_its_coefficients(noise):
    rng = np.random.default_rng(1)
    features = rng.normal(size=(4000, 2))
    # By entry: two slopes and an intercept.
    truth = np.array([[0.6, -0.4], [-0.3, 0.5], [1.5, 0.2]])
    link = np.concatenate([features, np.ones((4000, 1))], axis=1) @ truth
    mean = np.asarray(noise.mean(jnp.asarray(link)))
    counts = rng.binomial(TRIALS, mean / TRIALS) if noise.bounded else rng.negative_binomial(5.0, 5.0 / (5.0 + mean))
    as_arrays = (jnp.asarray(x, jnp.float32) for x in (features, counts, np.ones(4000)))
    found = fit_count_linear(*as_arrays, noise)
    variance = mean * (1 - mean / TRIALS) if noise.bounded else mean + mean**2 / 5.0
    slope = mean * (1 - mean / TRIALS) if noise.bounded else mean
    design = np.concatenate([features, np.ones((4000, 1))], axis=1)
    for entry in range(2):
        information = design.T @ (design * (slope**2 / variance)[:, entry : entry + 1])
        error = np.sqrt(np.diagonal(np.linalg.inv(information)))
        # Six coefficients, two families: five standard errors fail once in 150,000 times.
        assert np.all(np.abs(np.asarray(found.location)[:, entry] - truth[:, entry]) < 5 * error)
    dispersion = np.exp(np.asarray(found.log_scale)[-1])
    if noise.bounded:
        assert np.all(dispersion < 0.12)
    else:
        # The standard error of a dispersion of 0.2 is about 0.01 here.
        np.testing.assert_allclose(dispersion, 0.2, atol=0.05)
    np.testing.assert_array_equal(np.asarray(found.log_scale)[:-1], 0.0)


def test_every_row_may_have_a_bound_of_its_own():
    trials = np.array([[4.0], [30.0]])
    noise = CountNoise(bounded=True, upper=jnp.asarray(trials))
    score = jax.random.normal(jax.random.key(0), (2, 20_000))
    link, log_dispersion = jnp.full(score.shape, 0.8), jnp.full(score.shape, POISSON)
    draws = np.asarray(noise.counts(score, link, log_dispersion), float)
    share = 1.0 / (1.0 + np.exp(-0.8))
    exact = stats.binom(trials, share)
    assert np.all(draws <= trials)
    # Five standard errors, and the error of the family.
    np.testing.assert_allclose(draws.mean(1), exact.mean()[:, 0], atol=5 * exact.std().max() / np.sqrt(20_000) + 0.02)
    np.testing.assert_allclose(draws.var(1), exact.var()[:, 0], rtol=0.07)

"""The seasonal epidemic: its equations, and its exact posterior against brute force, NUTS and calibration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS, init_to_value
from scipy import integrate, stats

import hsbi
from hsbi.bench.tasks import seirs


def data(num_sites, beta0, seed=0):
    times = seirs.draw_times(jax.random.key(seed), num_sites)
    truth, y = seirs.draw(jax.random.key(seed + 1), times, beta0=beta0)
    return times, truth, y.astype(float)


@pytest.mark.parametrize(("beta0", "amplitude"), [(0.25, 0.45), (0.9, 0.2)])
def test_epidemic_solves_its_equations(beta0, amplitude):
    def slope(day, state):
        s, e, i, r = state
        force = beta0 * (1 + amplitude * np.sin(2 * np.pi * day / 365 - np.pi / 2)) * i / 1e4
        return [r / 180 - force * s, force * s - e / 5, e / 5 - i / 7, i / 7 - r / 180]

    days = np.arange(366)
    exact = integrate.solve_ivp(
        slope, (-730, 365), [9990, 0, 10, 0], t_eval=days, rtol=1e-8, atol=1e-8, method="DOP853"
    ).y[1]
    # Steps of one day at rates below one a day, in single precision.
    np.testing.assert_allclose(seirs.daily_incidence(beta0, amplitude), exact / 5, rtol=2e-3, atol=1e-3)


def test_program_has_two_levels_and_functional_inputs():
    structure = hsbi.inspect(seirs.model, jnp.asarray(seirs.draw_times(jax.random.key(0), 3)))
    assert structure.globals == ("beta0",)
    assert structure.locals == ("amplitude",)
    assert structure["y"].event_shape == (12,)


def test_posterior_agrees_with_importance_sampling():
    times, _, y = data(2, 0.6)
    y[0, 3] = np.nan
    rng = np.random.default_rng(0)
    count = 1_000
    beta0 = rng.uniform(0.5, 0.8, count)
    low, high = seirs.AMPLITUDE_RANGE
    rate = jax.jit(jax.vmap(seirs.rates, (0, 0, None)))
    # Pairing each rate with amplitudes of its own would waste draws: sites are independent given the rate, so each
    # site's marginal is estimated on the strata of its amplitude.
    logs, means = np.zeros(count), np.zeros((2, count))
    strata = 40
    for site in range(2):
        a = low + (high - low) * (np.arange(strata) + rng.random((count, strata))) / strata
        r = np.asarray(rate(jnp.repeat(jnp.asarray(beta0), strata), jnp.asarray(a.ravel()), jnp.asarray(times[site])))
        terms = stats.poisson.logpmf(np.nan_to_num(y[site]), r.astype(float))
        terms = np.where(np.isnan(y[site]), 0.0, terms).sum(1).reshape(count, strata)
        part = np.exp(terms - terms.max(1, keepdims=True))
        logs += terms.max(1) + np.log(part.sum(1))
        means[site] = (part * a).sum(1) / part.sum(1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    effective = 1 / np.sum(weights**2)
    exact = seirs.solve(times, y).moments()
    # Four standard errors of the importance sampler.
    bound = 4 / np.sqrt(effective)
    assert bound < 0.4
    assert abs(weights @ beta0 - exact["beta0"][0]) < bound * exact["beta0"][1]
    assert np.all(np.abs(means @ weights - exact["amplitude"][0]) < bound * exact["amplitude"][1])


@pytest.mark.parametrize("num_sites", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_finer_grid_changes_nothing(num_sites):
    times, _, y = data(num_sites, 0.3)
    coarse, fine = (
        seirs.solve(times, y, num_rates=rates, num_amplitudes=count).moments()
        for rates, count in ((64, 600), (128, 1800))
    )
    for name, (mean, sd) in coarse.items():
        np.testing.assert_allclose(fine[name][0], mean, atol=1e-3 * sd.min(), rtol=0)
        np.testing.assert_allclose(fine[name][1], sd, rtol=1e-3)


def test_missing_counts_say_nothing():
    times, _, y = data(3, 0.5)
    mask = np.ones(y.shape, bool)
    mask[0], mask[1, ::3] = False, False
    exact = seirs.solve(times, y, mask).moments()
    by_nan = seirs.solve(times, np.where(mask, y, np.nan)).moments()
    without = seirs.solve(times[1:], y[1:], mask[1:]).moments()
    np.testing.assert_array_equal(exact["amplitude"], by_nan["amplitude"])
    np.testing.assert_allclose(without["beta0"], exact["beta0"], rtol=1e-5)
    # The site without data keeps its prior, U(0.2, 0.5).
    np.testing.assert_allclose([part[0] for part in exact["amplitude"]], [0.35, 0.3 / np.sqrt(12)], rtol=1e-4)


def test_draws_have_the_moments_of_the_grid():
    times, _, y = data(4, 0.7)
    draws = seirs.reference(jax.random.key(3), times, y, 4_000)
    for name, (mean, sd) in seirs.solve(times, y).moments().items():
        # Four standard errors of 4,000 draws.
        assert np.all(np.abs(draws[name].mean(0) - mean) < 4 * sd / np.sqrt(4_000))
        assert np.all(np.abs(draws[name].std(0) / sd - 1) < 0.06)


def test_data_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"Times, counts and mask of task 'seirs' have shapes \(3, 12\), \(3, 5\)"):
        seirs.solve(np.zeros((3, 12)), np.zeros((3, 5)))


@pytest.mark.slow
@pytest.mark.long
def test_posterior_agrees_with_nuts_on_the_program():
    times, truth, y = data(2, 0.5)
    kernel = NUTS(seirs.model_with_density, init_strategy=init_to_value(values=truth))
    mcmc = MCMC(kernel, num_warmup=200, num_samples=600, progress_bar=False)
    mcmc.run(jax.random.key(4), jnp.asarray(times), y=jnp.asarray(y))
    for name, (mean, sd) in seirs.solve(times, y).moments().items():
        draws = np.asarray(mcmc.get_samples()[name], float)
        # Four standard errors of 250 effective draws.
        assert np.all(np.abs(draws.mean(0) - mean) < 0.25 * sd)
        assert np.all(np.abs(np.log(draws.std(0) / sd)) < 0.25)

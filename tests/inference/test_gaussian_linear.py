"""Gaussian Linear by the defaults and by the joint posterior against exact answers, with controls that must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hsbi
from hsbi.bench import gaussian_linear

GAUSSIAN_BOUNDS = gaussian_linear.Errors(0.15, 0.20, 0.12, 0.12)


@pytest.mark.slow
def test_gaussian_linear():
    lf = hsbi.LF(gaussian_linear.model, num_simulations=5_000, observed=("y",), progress=False)
    lf.simulate(jax.random.key(0), 50)
    lf.fit(jax.random.key(1))
    errors = []
    for number in range(5):
        _, y = gaussian_linear.draw(jax.random.fold_in(jax.random.key(2026), number), 50)
        samples = lf.sample(jax.random.fold_in(jax.random.key(2), number), 50, y=jnp.asarray(y))
        errors.append(gaussian_linear.compare(samples, y))
    assert np.all(np.mean(errors, axis=0) <= np.asarray(GAUSSIAN_BOUNDS)), np.mean(errors, axis=0)
    assert lf.ledger.total == 5_000


@pytest.mark.slow
def test_one_training_serves_a_range_of_site_counts():
    lf = hsbi.LF(gaussian_linear.model, num_simulations=5_000, observed=("y",), num_sites=(5, 40), progress=False)
    lf.simulate(jax.random.key(0), 40)
    lf.fit(jax.random.key(1))
    for num_sites in (5, 17, 40):
        _, y = gaussian_linear.draw(jax.random.key(num_sites), num_sites)
        samples = lf.sample(jax.random.key(3), num_sites, y=jnp.asarray(y))
        errors = gaussian_linear.compare(samples, y)
        assert errors.global_mean <= 0.3, num_sites
        assert errors.local_mean <= 0.3, num_sites


@pytest.mark.slow
def test_joint_posterior():
    config = hsbi.JointConfig(
        width=64,
        heads=4,
        num_ode_steps=16,
        fit=hsbi.FitConfig(num_steps=6000, epoch_steps=200, learning_rate=1e-3),
    )
    lf = hsbi.LF(gaussian_linear.model, num_simulations=5_000, observed=("y",), posterior_config=config, progress=False)
    lf.simulate(jax.random.key(0), 5, 1)
    lf.fit(jax.random.key(1))
    errors = []
    for number in range(3):
        _, y = gaussian_linear.draw(jax.random.fold_in(jax.random.key(7), number), 5, 1)
        samples = lf.sample(jax.random.fold_in(jax.random.key(2), number), 5, 1, y=jnp.asarray(y))
        errors.append(gaussian_linear.compare(samples, y))
    mean = gaussian_linear.Errors(*np.mean(errors, axis=0))
    assert mean.global_mean <= 0.3
    assert mean.local_mean <= 0.3


@pytest.mark.parametrize("control", ["prior", "swapped", "narrow"])
def test_gaussian_linear_bounds_reject_wrong_posteriors(control):
    errors = []
    for number in range(5):
        _, y = gaussian_linear.draw(jax.random.fold_in(jax.random.key(2026), number), 50)
        exact = gaussian_linear.reference(y)
        rng = np.random.default_rng(number)
        sigma = exact.sigma_mean + exact.sigma_sd * rng.standard_normal(1000)
        mu = exact.mu_mean + exact.mu_sd * rng.standard_normal((1000, 50, 5))
        if control == "prior":
            sigma, mu = np.abs(rng.standard_normal(1000)), rng.standard_normal((1000, 50, 5))
        elif control == "swapped":
            mu = np.roll(mu, 1, axis=1)
        else:
            sigma, mu = (draws.mean(0) + 0.7 * (draws - draws.mean(0)) for draws in (sigma, mu))
        errors.append(gaussian_linear.compare({"sigma": sigma, "mu": mu}, y))
    assert not np.all(np.mean(errors, axis=0) <= np.asarray(GAUSSIAN_BOUNDS))


def test_gaussian_linear_reference_agrees_with_importance_sampling():
    # Brute force: draws from the prior weighted by the likelihood, at two sites of two dimensions.
    _, y = gaussian_linear.draw(jax.random.key(5), 2, 2)
    rng = np.random.default_rng(0)
    sigma = np.abs(rng.standard_normal(400_000))
    mu = rng.standard_normal((400_000, 2, 2))
    log_weight = -0.5 * np.sum((y - mu) ** 2, axis=(1, 2)) / sigma**2 - 4 * np.log(sigma)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    exact = gaussian_linear.reference(y)
    effective = 1 / np.sum(weight**2)
    # Five standard errors of a weighted mean.
    assert abs(np.sum(weight * sigma) - exact.sigma_mean) < 5 * exact.sigma_sd / np.sqrt(effective)
    assert np.all(np.abs(np.einsum("n,nij->ij", weight, mu) - exact.mu_mean) < 5 * exact.mu_sd / np.sqrt(effective))

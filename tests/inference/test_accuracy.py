"""Posteriors of the defaults against exact answers, with controls that must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hsbi
from hsbi.bench import gaussian_linear
from tests.inference import problems

# The mean of 4,000 independent draws is off by 0.016 sd and their sd by 1.1 %: bounds are for the estimator.
NUM_DRAWS = 4000
SCHOOLS_BOUNDS = {"mean_bound": 0.25, "ratio_bounds": (0.8, 1.25)}
SURGICAL_BOUNDS = {"mean_bound": 0.3, "ratio_bounds": (0.75, 1.3)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_eight_schools(seed):
    lf = hsbi.LF(problems.eight_schools, num_simulations=5_000, num_samples=NUM_DRAWS, progress=False)
    lf.run(jax.random.key(seed), problems.SCHOOLS_SIGMA, y=problems.SCHOOLS_Y)
    draws = problems.stack(lf.get_samples(), ("mu", "tau", "theta"))
    assert not problems.failures(draws, problems.SCHOOLS_MEAN, problems.SCHOOLS_SD, **SCHOOLS_BOUNDS)
    assert lf.ledger.total == 5_000


@pytest.mark.slow
def test_surgical():
    lf = hsbi.LF(problems.surgical, num_simulations=5_000, num_samples=NUM_DRAWS, progress=False)
    lf.run(jax.random.key(0), problems.SURGICAL_TRIALS, deaths=problems.SURGICAL_DEATHS)
    draws = problems.stack(lf.get_samples(), ("mu", "sigma", "b"))
    assert not problems.failures(draws, problems.SURGICAL_MEAN, problems.SURGICAL_SD, **SURGICAL_BOUNDS)


def exact_schools_draws(key, num_draws):
    """Draw from the exact posterior's marginals of eight schools, as independent normals: moments are all we check."""
    noise = jax.random.normal(key, (num_draws, problems.SCHOOLS_MEAN.size))
    return problems.SCHOOLS_MEAN + problems.SCHOOLS_SD * np.asarray(noise, float)


def prior_draws(key, num_draws):
    keys = jax.random.split(key, 3)
    mu = 5 * np.asarray(jax.random.normal(keys[0], (num_draws, 1)))
    tau = 5 * np.abs(np.asarray(jax.random.cauchy(keys[1], (num_draws, 1))))
    theta = mu + tau * np.asarray(jax.random.normal(keys[2], (num_draws, 8)))
    return np.concatenate([mu, tau, theta], axis=1)


def swap_schools(draws):
    order = [0, 1, *(2 + np.roll(np.arange(8), 1))]
    return draws[:, order]


def narrow(draws):
    return draws.mean(0) + 0.7 * (draws - draws.mean(0))


@pytest.mark.parametrize("control", ["exact", "prior", "swapped", "narrow"])
def test_accuracy_check_tells_right_from_wrong(control):
    exact = exact_schools_draws(jax.random.key(0), NUM_DRAWS)
    draws = {
        "exact": exact,
        "prior": prior_draws(jax.random.key(1), NUM_DRAWS),
        "swapped": swap_schools(exact),
        "narrow": narrow(exact),
    }[control]
    found = problems.failures(draws, problems.SCHOOLS_MEAN, problems.SCHOOLS_SD, **SCHOOLS_BOUNDS)
    assert bool(found) == (control != "exact")


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
@pytest.mark.long
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
@pytest.mark.long
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
            sigma, mu = narrow(sigma[:, None])[:, 0], narrow(mu)
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

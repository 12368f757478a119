"""Posteriors of real data by the defaults against exact answers, with controls that must fail."""

import jax
import numpy as np
import pytest

import hsbi
from tests.inference import problems

# The mean of 4,000 independent draws is off by 0.016 sd and their sd by 1.1 %: bounds are for the estimator.
NUM_DRAWS = 4000
SCHOOLS_BOUNDS = {"mean_bound": 0.25, "ratio_bounds": (0.8, 1.25)}
SURGICAL_BOUNDS = {"mean_bound": 0.3, "ratio_bounds": (0.75, 1.3)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
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

"""Metrics against closed forms: shifted, scaled and exact draws."""

import jax
import numpy as np
import pytest

from hsbi.bench import lc2st
from hsbi.bench.metrics import calibration, compare, marginal_errors
from hsbi.bench.tasks import TASKS

TASK = TASKS["gaussian_linear"]
SITES, DRAWS = 3, 400
# Standard errors that no mean of |errors| of exact draws exceeds; each of them alone does once in two million.
MAX_ERRORS = 5.0


@pytest.fixture(scope="module")
def exact():
    truth, y = TASK.draw(jax.random.key(0), SITES)
    first, second = (TASK.reference(jax.random.key(seed), y, DRAWS) for seed in (1, 2))
    return truth, y, first, second


@pytest.fixture(scope="module")
def floor(exact):
    return compare(jax.random.key(3), TASK, exact[2], exact[3])


def test_marginal_errors_of_shifted_and_scaled_draws():
    z = np.random.default_rng(0).normal(size=(500, 4))
    z = (z - z.mean(0)) / z.std(0)
    loc, scale = np.array([1.0, -2.0, 0.0, 5.0]), np.array([0.1, 1.0, 3.0, 10.0])
    mean, log_sd = marginal_errors(loc + scale * (0.5 * z + [0.2, -0.2, 0.4, 0.0]), loc + scale * z)
    np.testing.assert_allclose([mean, log_sd], [0.2, np.log(2)], rtol=1e-9)


def test_equal_draws_have_finite_errors():
    z = np.random.default_rng(0).normal(size=(50, 2))
    assert marginal_errors(np.zeros_like(z), z)[1] == pytest.approx(np.log(1e6))


def test_exact_draws_are_at_the_floor(floor):
    error = np.sqrt(2 / DRAWS)
    for level in ("global", "local"):
        assert floor[f"{level}_mean_error"] < MAX_ERRORS * error
        # The sd of a log sd is sqrt((kurtosis - 1) / 4n), at most twice that of a Gaussian here.
        assert floor[f"{level}_log_sd_ratio"] < MAX_ERRORS * error
        # Folds share rows, so accuracies scatter by up to a third more than 1 / sqrt(8 n).
        assert abs(floor[f"{level}_c2st"] - 0.5) < MAX_ERRORS * 4 / 3 / np.sqrt(8 * DRAWS)
        assert floor[f"{level}_wasserstein"] < 0.5
    assert floor["all_mmd_p"] > 1e-3


def test_distances_of_shifted_draws_are_known(exact):
    """With the same draws moved by a standard deviation, every quantile moves by one."""
    _, _, draws, _ = exact
    moved = {name: value + value.std(0) for name, value in draws.items()}
    found = compare(jax.random.key(3), TASK, moved, draws)
    for level in ("global", "local"):
        assert found[f"{level}_mean_error"] == pytest.approx(1.0, rel=1e-5)
        assert found[f"{level}_log_sd_ratio"] == pytest.approx(0.0, abs=1e-5)
        assert found[f"{level}_mmd_p"] == pytest.approx(1 / 501)
        assert found[f"{level}_c2st"] > 0.6
    # One global, so nothing is projected.
    assert found["global_wasserstein"] == pytest.approx(1.0, rel=1e-5)
    assert found["all_mmd_p"] == pytest.approx(1 / 501)


def test_ranks_and_coverage_of_known_truths():
    draws = {"sigma": np.arange(99.0), "mu": np.broadcast_to(np.arange(99.0)[:, None, None], (99, 2, 3))}
    mu = np.array([[-1.0, 48.5, 1000.0], [1.5, 20.5, 96.5]])
    found = calibration(jax.random.key(0), TASK, draws, {"sigma": np.array(48.5), "mu": mu})
    assert found["global_coverage"] == 1.0
    # With 99 draws and r of them below, ranks lie in [r, r + 1] / 100, and central intervals hold 0.05 to 0.95.
    below = np.array([0, 49, 99, 2, 21, 97])
    assert found["local_coverage"] == pytest.approx(2 / 6)
    assert np.all((np.asarray(found["local_ranks"]) * 100 - below >= 0) & (np.asarray(found["local_ranks"]) <= 1))
    assert np.all(np.asarray(found["local_ranks"]) * 100 - below <= 1)


@pytest.mark.slow
def test_local_tests_find_a_biased_method_and_pass_the_reference(monkeypatch, exact):
    monkeypatch.setattr(lc2st, "_NUM_FOLDS", 2)
    monkeypatch.setattr(lc2st, "_NUM_NULLS", 19)
    y = exact[1]

    def biased(key, y, num_draws):
        return {name: 2 * value + 1 for name, value in TASK.reference(key, y, num_draws).items()}

    found = {}
    for name, sample in (("exact", TASK.reference), ("biased", biased)):
        pairs = lc2st.draw_pairs(jax.random.key(4), TASK, sample, SITES, 150)
        found[name] = lc2st.local_tests(jax.random.key(5), TASK, pairs, sample(jax.random.key(6), y, DRAWS), y)
    for level in ("global", "local"):
        assert found["exact"][f"{level}_lc2st_p"] > 1 / 20
        assert found["biased"][f"{level}_lc2st_p"] == pytest.approx(1 / 20)
        assert found["biased"][f"{level}_lc2st"] > found["exact"][f"{level}_lc2st"]


def test_summaries_of_data_are_means_and_spreads_over_sites():
    data = np.sinh(np.arange(24.0).reshape(2, 3, 2, 2) / 10)
    found = lc2st.summarize(data)
    flat = np.arange(24.0).reshape(2, 3, 4) / 10
    np.testing.assert_allclose(found[:, :4], flat.mean(1))
    np.testing.assert_allclose(found[:, 4:], np.log(flat.std(1) + 1e-3))

import jax
import numpy as np
import pytest

from hsbi.diagnostics.surrogate_check import check_surrogate, near_rows
from hsbi.diagnostics.verdict import judge

NUM_ROWS, NUM_DRAWS = 400, 60


def no_error(x):
    return np.zeros(len(x))


def compare(seed, error=no_error, factor=1.0, correlation=0.0, near=None):
    """Check a Gaussian surrogate of three entries with mean x, off where asked."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(NUM_ROWS, 2))
    chol = np.linalg.cholesky(np.full((3, 3), correlation) + (1 - correlation) * np.eye(3))
    real = x[:, :1] + rng.normal(size=(NUM_ROWS, 3)) @ chol.T
    draws = (x[:, 0] + error(x))[:, None, None] + factor * rng.normal(size=(NUM_ROWS, NUM_DRAWS, 3))
    return check_surrogate(jax.random.key(seed), real, draws, x, name="y", columns=["a", "b"], near=near)


def test_exact_surrogate_is_trusted():
    verdicts = [judge(compare(seed).evidence, 6)[0] for seed in range(20)]
    assert verdicts.count("trusted") >= 19


def test_wrong_noise_and_its_size_are_found():
    check = compare(0, factor=1.3)
    verdict, _, worst = judge(check.evidence, 6)
    assert verdict == "wrong"
    assert worst.ratio == pytest.approx(1.3, rel=0.1)


def test_wrong_dependence_between_entries_is_found():
    check = compare(1, correlation=0.7)
    p_values = {one.name: one.p_value for one in check.evidence}
    assert p_values["spread of y"] < 1e-6
    assert min(p_values[f"y[{entry}]"] for entry in range(3)) > 1e-3


def test_the_worst_region_is_named():
    check = compare(2, lambda x: 0.8 * (x[:, 1] > 0.6))
    worst = check.evidence[-1]
    assert worst.p_value < 1e-6
    low = float(worst.name.split("b in [")[1].split(",")[0])
    assert low == pytest.approx(0.6, abs=0.1)
    assert worst.bias == pytest.approx(0.8, abs=0.2)


def test_the_error_near_the_data_is_that_of_the_rows_near_them():
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, size=(NUM_ROWS, 2))
    at = np.array([0.9, 0.0]) + 0.01 * rng.normal(size=(50, 2))
    near = near_rows(x, at)
    assert near.mean() == pytest.approx(0.2, abs=0.01)
    assert x[near, 0].min() > x[~near, 0].mean()
    positive = compare(3).parameters[:, 0] > 0
    check = compare(3, lambda x: np.where(x[:, 0] > 0, 0.5, -0.5), near=positive)
    assert check.near.bias == pytest.approx(0.5, abs=0.15)
    assert check.num_near == positive.sum()

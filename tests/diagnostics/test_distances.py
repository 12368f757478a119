import jax
import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import pdist
from sklearn.metrics.pairwise import rbf_kernel

from hsbi.diagnostics import mmd, mmd_test, sliced_wasserstein


def test_mmd_is_the_unbiased_estimate_with_the_median_distance():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2, 2)), 0.4 + rng.normal(size=(45, 2, 2))
    result = mmd(x, y)
    x, y = x.reshape(30, 4), y.reshape(45, 4)
    assert result.bandwidth == pytest.approx(np.median(pdist(np.concatenate([x, y]))), rel=1e-9)
    gamma = 1 / (2 * result.bandwidth**2)
    k_xx, k_yy, k_xy = rbf_kernel(x, x, gamma), rbf_kernel(y, y, gamma), rbf_kernel(x, y, gamma)
    expected = (k_xx.sum() - 30) / (30 * 29) + (k_yy.sum() - 45) / (45 * 44) - 2 * k_xy.mean()
    assert result.squared == pytest.approx(expected, rel=1e-9)


def test_mmd_has_no_bias_and_the_right_limit():
    rng = np.random.default_rng(1)
    same = [mmd(rng.normal(size=20), rng.normal(size=20), bandwidth=1.0).squared for _ in range(400)]
    assert abs(np.mean(same)) < 4 * np.std(same) / np.sqrt(400)
    shifted = [mmd(rng.normal(size=200), 1.0 + rng.normal(size=200), bandwidth=1.0).squared for _ in range(50)]
    # For N(0, 1), N(d, 1) and bandwidth 1 the kernel's mean is exp(-d^2 / 6) / sqrt(3).
    limit = 2 / np.sqrt(3) * (1 - np.exp(-1 / 6))
    assert abs(np.mean(shifted) - limit) < 4 * np.std(shifted) / np.sqrt(50)


def test_permutation_test_holds_its_level_and_has_power():
    rng = np.random.default_rng(2)
    null, power = [], []
    for number in range(300):
        x, y = rng.normal(size=(40, 3)), rng.normal(size=(40, 3))
        null.append(mmd_test(jax.random.key(number), x, y, num_permutations=99).p_value)
        if number < 20:
            power.append(mmd_test(jax.random.key(number), x, y + 0.8, num_permutations=99).p_value)
    # Three standard errors of 300 repeats around 0.05.
    assert 0.012 <= np.mean(np.array(null) <= 0.05) <= 0.088
    assert np.all(np.array(power) == 0.01)
    assert mmd_test(jax.random.key(0), x, y).squared == mmd(x, y).squared


@pytest.mark.parametrize(("num_x", "num_y"), [(50, 50), (30, 47)])
def test_one_dimension_is_the_wasserstein_distance(num_x, num_y):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=num_x), rng.gamma(2.0, size=num_y)
    result = sliced_wasserstein(jax.random.key(0), x, y, order=1)
    assert result == pytest.approx(stats.wasserstein_distance(x, y), rel=1e-9)


@pytest.mark.parametrize(("num_x", "num_y"), [(12, 12), (8, 12)])
def test_order_two_pairs_sorted_values(num_x, num_y):
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=num_x), rng.gamma(2.0, size=num_y)
    # Repeated to 24 values each, samples of any size are coupled one to one in the order of their values.
    pairs = np.repeat(np.sort(x), 24 // num_x), np.repeat(np.sort(y), 24 // num_y)
    expected = np.sqrt(np.mean((pairs[0] - pairs[1]) ** 2))
    assert sliced_wasserstein(jax.random.key(0), x, y) == pytest.approx(expected, rel=1e-9)


def test_slices_are_averaged_over_directions():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(40, 3)), 1.3 * rng.normal(size=(25, 3))
    key = jax.random.key(1)
    directions = np.asarray(jax.random.normal(key, (12, 3)), float)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    expected = np.mean([stats.wasserstein_distance(x @ v, y @ v) for v in directions])
    assert sliced_wasserstein(key, x, y, num_projections=12, order=1) == pytest.approx(expected, rel=1e-9)


def test_translation_moves_by_its_length_over_root_dimension():
    x = np.random.default_rng(5).normal(size=(20, 5))
    shift = np.array([3.0, 0, 0, 4.0, 0])
    result = sliced_wasserstein(jax.random.key(2), x, x + shift, num_projections=20_000)
    # E (v . shift)^2 = |shift|^2 / 5; its relative standard error here is below 1 %.
    assert result == pytest.approx(5 / np.sqrt(5), rel=0.02)


def test_wrong_samples_are_refused():
    key, x = jax.random.key(0), np.zeros((4, 2))
    with pytest.raises(ValueError, match=r"shapes \(4, 2\) and \(4, 3\); expected \[draws, ...\]"):
        mmd(x, np.zeros((4, 3)))
    with pytest.raises(ValueError, match="not finite"):
        sliced_wasserstein(key, x, np.full((4, 2), np.nan))
    with pytest.raises(ValueError, match="median distance is zero"):
        mmd(x, x)
    with pytest.raises(ValueError, match="bandwidth is -1"):
        mmd(x, x, bandwidth=-1.0)
    with pytest.raises(ValueError, match="num_permutations is 0"):
        mmd_test(key, x, x, num_permutations=0)
    with pytest.raises(ValueError, match=r"order is 0.5 and num_projections 200"):
        sliced_wasserstein(key, x, x, order=0.5)

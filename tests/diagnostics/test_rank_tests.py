import jax
import numpy as np
import pytest
from scipy import special

from hsbi.diagnostics import ecdf_band, pooled_uniformity, sbc_ranks, uniformity
from tests.diagnostics import conjugate

NUM_REPEATS = 2_000
LEVEL_BOUNDS = (0.03, 0.07)


def statistics_by_formula(ranks):
    """Evaluate shift, width and distance of one column by loops."""
    n = len(ranks)
    shift = np.sqrt(12 / n) * sum(u - 0.5 for u in ranks)
    width = np.sqrt(180 / n) * sum((u - 0.5) ** 2 - 1 / 12 for u in ranks)
    distances = []
    for t in np.arange(1, 100) / 100:
        share = np.mean(ranks < t)
        distances.append(n * (special.rel_entr(share, t) + special.rel_entr(1 - share, 1 - t)))
    return shift, width, max(distances)


@pytest.mark.parametrize("num_ranks", [10, 100, 1000])
def test_true_null_is_rejected_at_the_level(num_ranks):
    ranks = np.random.default_rng(num_ranks).random((num_ranks, NUM_REPEATS))
    result = uniformity(ranks)
    rejected = result.p_value < 0.05
    assert LEVEL_BOUNDS[0] <= rejected.mean() <= LEVEL_BOUNDS[1]
    np.testing.assert_array_equal(result.shape != "uniform", rejected)
    # p-values are uniform themselves, so their quartiles are known to 4 standard errors.
    np.testing.assert_allclose(np.quantile(result.p_value, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.045)


def test_level_holds_for_ranks_among_few_draws_with_ties():
    rng = np.random.default_rng(0)
    truths = rng.integers(3, size=(60, NUM_REPEATS))
    draws = rng.integers(3, size=(60, 7, NUM_REPEATS))
    p_value = uniformity(sbc_ranks(jax.random.key(0), truths, draws)).p_value
    assert LEVEL_BOUNDS[0] <= np.mean(p_value < 0.05) <= LEVEL_BOUNDS[1]


def test_statistics_and_p_values_follow_the_formulas():
    rng = np.random.default_rng(1)
    nulls = np.array([statistics_by_formula(rng.random(50)) for _ in range(600)])
    columns = np.stack([rng.beta(1.15, 1, 50), rng.beta(0.8, 0.8, 50), rng.random(50)], axis=1)
    result = uniformity(columns)
    scale = np.quantile(np.stack([nulls[:, 0] ** 2 / 2, nulls[:, 1] ** 2 / 2, nulls[:, 2]], axis=1), 0.95, axis=0)
    for column, p_value, shift, width in zip(columns.T, result.p_value, result.shift, result.width, strict=True):
        exact = statistics_by_formula(column)
        np.testing.assert_allclose([shift, width], exact[:2], rtol=1e-9)
        combined = np.max(np.array([exact[0] ** 2 / 2, exact[1] ** 2 / 2, exact[2]]) - scale)
        null = np.max(np.stack([nulls[:, 0] ** 2 / 2, nulls[:, 1] ** 2 / 2, nulls[:, 2]], axis=1) - scale, axis=1)
        # Four standard errors of a share of 600.
        assert abs(p_value - np.mean(null >= combined)) < 0.08


@pytest.mark.parametrize(("kind", "shape"), [("shifted", "too high"), ("narrow", "too narrow"), ("wide", "too wide")])
def test_wrong_posteriors_are_rejected_and_named(kind, shape):
    rng = np.random.default_rng(2)
    results = []
    for number in range(20):
        truths, draws, _ = conjugate.simulate(rng, kind, 200, 100)
        results.append(uniformity(sbc_ranks(jax.random.key(number), truths, draws)))
    assert sum(str(result.shape) == shape for result in results) >= 19


def test_prior_as_posterior_is_found_by_a_quantity_that_depends_on_the_data_alone():
    rng = np.random.default_rng(3)
    truths, draws, y = conjugate.simulate(rng, "prior", 200, 100)
    assert uniformity(sbc_ranks(jax.random.key(0), truths, draws)).p_value > 0.01
    ranks = sbc_ranks(jax.random.key(0), -((y - truths) ** 2), -((y[:, None] - draws) ** 2))
    assert uniformity(ranks).p_value < 1e-6


def test_smaller_p_values_than_simulated_keep_falling():
    squeezed = np.linspace(0.0, 1.0, 300)[:, None] * np.array([0.8, 0.6, 0.4])
    p_value = uniformity(squeezed).p_value
    assert np.all(p_value < 1e-4)
    assert np.all(np.diff(p_value) < 0)


def test_other_departures_are_rejected_without_a_wrong_name():
    # Two clumps at the quartiles' outer sides: neither mean nor spread of the ranks is off.
    ranks = np.concatenate([np.full(150, 0.5 - 1 / np.sqrt(12)), np.full(150, 0.5 + 1 / np.sqrt(12))])
    result = uniformity(ranks)
    assert result.p_value < 1e-4
    assert str(result.shape) == "other"


def test_band_holds_the_empirical_distribution_at_its_level():
    points, low, high = ecdf_band(80)
    ranks = np.random.default_rng(4).random((NUM_REPEATS, 80))
    shares = np.stack([np.mean(ranks < t, axis=1) for t in points], axis=1)
    # Shares are multiples of 1/80 and may sit on the edge up to rounding.
    outside = np.any((shares < low - 1e-9) | (shares > high + 1e-9), axis=1)
    assert LEVEL_BOUNDS[0] <= outside.mean() <= LEVEL_BOUNDS[1]
    assert np.all((low < points) & (points < high))


def dependent_sites(rng, scale):
    """Draw truths `[datasets, sites]` and draws whose sites share a common part, as locals share globals."""
    members = 0.9 * rng.normal(size=(15, 20, 1)) + 0.4 * rng.normal(size=(15, 20, 6))
    return members[:, 0], scale * members[:, 1:]


def test_pooled_test_holds_its_level_under_dependence():
    rng = np.random.default_rng(5)
    pooled, naive = [], []
    for number in range(300):
        key = jax.random.key(number)
        truths, draws = dependent_sites(rng, 1.0)
        pooled.append(pooled_uniformity(key, truths, draws, num_nulls=99).p_value)
        naive.append(uniformity(sbc_ranks(key, truths, draws).ravel()).p_value)
    # Three standard errors of 300 repeats around 0.05.
    assert 0.012 <= np.mean(np.array(pooled) <= 0.05) <= 0.088
    assert np.mean(np.array(naive) <= 0.05) > 0.2


def test_pooled_test_finds_narrow_draws():
    rng = np.random.default_rng(6)
    results = [pooled_uniformity(jax.random.key(i), *dependent_sites(rng, 0.4), num_nulls=199) for i in range(20)]
    assert sum(str(result.shape) == "too narrow" for result in results) >= 19


def test_wrong_ranks_are_refused():
    with pytest.raises(ValueError, match=r"shape \(4,\); expected at least 5 data sets"):
        uniformity(np.full(4, 0.5))
    with pytest.raises(ValueError, match=r"Ranks run from 0 to 100, expected values in \[0, 1\]"):
        uniformity(np.arange(101))

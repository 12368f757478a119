import jax
import numpy as np
import pytest
from scipy import stats

import hsbi
from hsbi.diagnostics import coverage, sbc_ranks
from tests.diagnostics import conjugate


def test_integer_part_counts_the_draws_below():
    rng = np.random.default_rng(0)
    truths, draws = rng.normal(size=(7, 3)), rng.normal(size=(7, 11, 3))
    ranks = sbc_ranks(jax.random.key(0), truths, draws)
    expected = [[sum(draws[i, j, k] < truths[i, k] for j in range(11)) for k in range(3)] for i in range(7)]
    np.testing.assert_array_equal(np.floor(12 * ranks), expected)


@pytest.mark.parametrize("num_draws", [1, 3, 50])
def test_exact_draws_of_counts_give_uniform_ranks(num_draws):
    # Poisson draws of mean 1 are full of ties; ranks that are not randomized would pile up.
    rng = np.random.default_rng(1)
    truths, draws = rng.poisson(1.0, 4000), rng.poisson(1.0, (4000, num_draws))
    ranks = sbc_ranks(jax.random.key(1), truths, draws)
    assert stats.kstest(ranks, "uniform").pvalue > 1e-3
    raw = np.mean(draws < truths[:, None], axis=1)
    assert stats.kstest(raw, "uniform").pvalue < 1e-6


def test_coverage_is_that_of_quantile_intervals():
    rng = np.random.default_rng(2)
    truths, draws, _ = conjugate.simulate(rng, "wide", 300, 4000)
    result = coverage(jax.random.key(2), truths, draws, levels=(0.5, 0.9))
    for level, observed, low, high in zip(*result, strict=True):
        ends = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=1)
        inside = int(np.sum((truths >= ends[0]) & (truths <= ends[1])))
        # Quantiles interpolate between draws where ranks are randomized; at most one data set lies that close.
        assert abs(observed * 300 - inside) < 1.5
        interval = stats.binomtest(round(observed * 300), 300).proportion_ci(0.95, method="wilson")
        np.testing.assert_allclose([low, high], interval, rtol=1e-9)


def test_coverage_holds_with_few_draws_and_tells_narrow_from_exact():
    rng = np.random.default_rng(3)
    truths = rng.normal(size=(4000, 2))
    draws = rng.normal(size=(4000, 4, 2)) * np.array([1.0, 0.6])
    result = coverage(jax.random.key(3), truths, draws)
    assert result.observed.shape == (4, 2)
    exact, narrow = result.observed.T
    standard_error = np.sqrt(result.levels * (1 - result.levels) / 4000)
    assert np.all(np.abs(exact - result.levels) < 4 * standard_error)
    assert np.all(narrow < result.levels - 4 * standard_error)


def test_wrong_shapes_and_values_are_refused():
    key, truths = jax.random.key(0), np.zeros((4, 2))
    with pytest.raises(ValueError, match=r"shape \(4, 3\).*expected draws of shape \(4, draws, 2\)"):
        sbc_ranks(key, truths, np.zeros((4, 3)))
    with pytest.raises(ValueError, match="at least one data set and one draw"):
        sbc_ranks(key, truths, np.zeros((4, 0, 2)))
    with pytest.raises(ValueError, match="1 of 24 draws are not finite"):
        sbc_ranks(key, truths, np.where(np.arange(24).reshape(4, 3, 2) == 5, np.nan, 0.0))
    with pytest.raises(ValueError, match="expected a list of probabilities between 0 and 1"):
        coverage(key, truths, np.zeros((4, 3, 2)), levels=(0.5, 95))


def test_public_names_resolve_through_the_package():
    for name in hsbi.diagnostics.__all__:
        assert getattr(hsbi.diagnostics, name).__name__ == name
    assert dir(hsbi.diagnostics) == sorted(hsbi.diagnostics.__all__)
    with pytest.raises(AttributeError, match=r"'hsbi\.diagnostics' has no attribute 'ranking'; public names are"):
        hsbi.diagnostics.ranking  # noqa: B018

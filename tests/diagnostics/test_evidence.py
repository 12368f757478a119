import numpy as np
import pytest
from scipy import stats

from hsbi.diagnostics.evidence import normal_scores, t_test, weigh_clusters, weigh_ranks

NUM_REPEATS = 1_000


def gaussian_ranks(rng, shape, bias, ratio):
    """Give ranks of exact truths among draws of mean `bias` and standard deviation `ratio`, in closed form."""
    return stats.norm.cdf((rng.normal(size=shape) - bias) / ratio)


@pytest.mark.parametrize(("bias", "ratio"), [(0.0, 1.0), (0.5, 1.0), (-0.3, 1.3), (0.0, 0.7)])
def test_effects_are_the_errors_of_gaussian_draws(bias, ratio):
    rng = np.random.default_rng(0)
    one = weigh_ranks("x", gaussian_ranks(rng, 4000, bias, ratio))
    many = weigh_clusters("x", gaussian_ranks(rng, (800, 5), bias, ratio))
    for found in (one, many):
        # Four standard errors of 4,000 independent scores: 1 / sqrt(n) for the bias in right units, half for log sd.
        assert abs(found.bias - bias) < 4 / np.sqrt(4000)
        assert abs(np.log(found.ratio / ratio)) < 4 / np.sqrt(8000)
        assert found.ratio_low < found.ratio < found.ratio_high
        assert found.bias_error == pytest.approx(ratio / ratio / np.sqrt(4000), rel=0.15)
        assert (found.p_value < 1e-6) == ((bias, ratio) != (0.0, 1.0))


def test_intervals_hold_the_error_in_95_of_100_repeats():
    rng = np.random.default_rng(1)
    inside = np.zeros(2)
    for _ in range(400):
        found = weigh_ranks("x", gaussian_ranks(rng, 200, 0.2, 1.1))
        low, high = found.bias_interval
        inside += [low < 0.2 < high, found.ratio_low < 1.1 < found.ratio_high]
    # Three standard errors of 400 repeats below 0.95.
    assert np.all(inside / 400 > 0.915)


def test_clusters_hold_their_level_under_any_dependence():
    rng = np.random.default_rng(2)
    p_values = []
    for _ in range(NUM_REPEATS):
        shared = rng.normal(size=(100, 1))
        ranks = stats.norm.cdf(0.9 * shared + np.sqrt(1 - 0.81) * rng.normal(size=(100, 8)))
        p_values.append(weigh_clusters("x", ranks).p_value)
    share = np.mean(np.array(p_values) < 0.05)
    # The smallest of dependent p-values times their number errs on the safe side, but not by much.
    assert 0.015 <= share <= 0.06
    assert np.mean(np.array(p_values) < 0.002) <= 0.007


def test_masked_sites_do_not_count():
    rng = np.random.default_rng(3)
    ranks = rng.random((60, 5))
    mask = np.arange(5) < rng.integers(1, 6, size=(60, 1))
    spoiled = np.where(mask, ranks, 0.999)
    assert weigh_clusters("x", spoiled, mask) == weigh_clusters("x", np.where(mask, ranks, 0.5), mask)


def test_t_test_and_scores_are_those_of_scipy():
    rng = np.random.default_rng(4)
    values = rng.normal(size=(30, 4)) + np.array([0.0, 0.3, 0.6, 2.0])
    np.testing.assert_allclose(t_test(values), stats.ttest_1samp(values, 0.0).pvalue, rtol=1e-3)
    assert t_test(np.zeros((5, 1)))[0] == 1
    u = np.linspace(0.001, 0.999, 50)
    np.testing.assert_allclose(normal_scores(u), stats.norm.ppf(u), atol=1e-4)


def test_description_names_the_larger_error():
    rng = np.random.default_rng(5)
    assert "mu: off by +0.4" in weigh_ranks("mu", gaussian_ranks(rng, 4000, 0.5, 1.0)).describe()
    assert "mu: sd x 1." in weigh_ranks("mu", gaussian_ranks(rng, 4000, 0.0, 1.5)).describe()

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from hsbi.diagnostics import Classifier, c2st, c2st_test, lc2st
from tests.diagnostics import conjugate

QUICK = Classifier(width=8, num_steps=200)
NUM_NULLS = 19


def crescents(rng, count, flip):
    """Draw an arc with noise; flipped, its mean and variances are the same."""
    angle = rng.uniform(0, np.pi, count)
    height = np.sin(angle) - 2 / np.pi
    points = np.stack([np.cos(angle), -height if flip else height], axis=1)
    return points + 0.1 * rng.normal(size=points.shape)


def quadratic_regression():
    return make_pipeline(StandardScaler(), PolynomialFeatures(2), LogisticRegression(C=10.0))


@pytest.mark.parametrize("case", ["shift", "narrow", "crescents"])
def test_accuracy_is_near_the_best_possible_and_that_of_scikit_learn(case):
    rng = np.random.default_rng(0)
    best, other = None, quadratic_regression()
    if case == "crescents":
        x, y = crescents(rng, 800, False), crescents(rng, 800, True)
        other = KNeighborsClassifier(25)
    elif case == "shift":
        x, y = rng.normal(size=(800, 2)), rng.normal(size=(800, 2)) + np.array([0.8, 0.0])
        best = stats.norm.cdf(0.4)
    else:
        x, y = rng.normal(size=(800, 2)), rng.normal(size=(800, 2)) * np.array([0.6, 1.0])
        cut = np.sqrt(2 * np.log(1 / 0.6) / (1 / 0.36 - 1))
        best = 0.5 + stats.norm.cdf(cut / 0.6) - stats.norm.cdf(cut)
    result = c2st(jax.random.key(0), x, y)
    expected = cross_val_score(other, np.concatenate([x, y]), np.repeat([0, 1], 800), cv=5).mean()
    # Both classify the same 1,600 rows; 0.02 is left for what either misses.
    assert abs(result.accuracy - expected) < result.standard_error + 0.02
    assert result.accuracy > 0.5 + 4 * result.standard_error
    if best is not None:
        assert abs(result.accuracy - best) < 3 * result.standard_error + 0.01


@pytest.mark.slow
def test_equal_distributions_of_unequal_sizes_give_one_half_and_uniform_p_values():
    rng = np.random.default_rng(1)
    results = []
    for number in range(60):
        x, y = rng.normal(size=(150, 2)), rng.normal(size=(60, 2))
        results.append(c2st_test(jax.random.key(number), x, y, num_nulls=9, classifier=QUICK))
    accuracy = np.array([result.accuracy for result in results])
    assert abs(accuracy.mean() - 0.5) < 4 * accuracy.std() / np.sqrt(60)
    # p-values are multiples of 1/10 here, or more where accuracies tie.
    p_values = np.array([result.p_value for result in results])
    assert 0.25 <= np.mean(p_values <= 0.5) <= 0.7
    assert np.mean(p_values <= 0.1) <= 0.25


def test_permutation_test_finds_a_shift_with_the_accuracy_of_c2st():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(150, 2)), rng.normal(size=(60, 2)) + 0.8
    result = c2st_test(jax.random.key(0), x, y, num_nulls=9, classifier=QUICK)
    assert result.p_value == 0.1
    assert np.all(result.nulls < result.accuracy)
    # Bayes' accuracy for a shift of 0.8 along two axes, with the binomial error of the smaller sample.
    assert abs(result.accuracy - stats.norm.cdf(0.4 * np.sqrt(2))) < 4 * 0.5 / np.sqrt(60) / np.sqrt(2)


def run_lc2st(kind, seed, **options):
    rng = np.random.default_rng(seed)
    truths, draws, y = conjugate.simulate(rng, kind, 500, 1)
    observed = np.array([0.8])
    at = conjugate.posterior(rng, kind, observed, 300)[0]
    return (truths, draws[:, 0], y, at, observed[0]), lc2st(
        jax.random.key(seed), truths, draws[:, 0], y, at, observed[0], classifier=QUICK, **options
    )


@pytest.mark.parametrize("kind", conjugate.CONTROLS)
def test_wrong_posteriors_are_found_at_the_observation(kind):
    _, result = run_lc2st(kind, 3, num_nulls=NUM_NULLS)
    assert result.p_value == pytest.approx(1 / (NUM_NULLS + 1))
    assert result.nulls.shape == (NUM_NULLS,)
    assert result.accuracy > 0.52


@pytest.mark.slow
def test_exact_posterior_has_uniform_p_values():
    p_values = [run_lc2st("exact", seed, num_nulls=NUM_NULLS)[1].p_value for seed in range(30)]
    # They are multiples of 1/20 here, uniform under the null.
    assert stats.kstest(np.array(p_values) - 0.025, "uniform").pvalue > 0.01


def test_statistic_is_near_that_of_scikit_learn():
    (truths, draws, y, at, observed), result = run_lc2st("wide", 4, num_nulls=NUM_NULLS)
    model = quadratic_regression()
    inputs = np.concatenate([np.stack([truths, y], axis=1), np.stack([draws, y], axis=1)])
    model.fit(inputs, np.repeat([1, 0], len(truths)))
    probability = model.predict_proba(np.stack([at, np.full(len(at), observed)], axis=1))[:, 1]
    assert result.statistic == pytest.approx(np.mean((probability - 0.5) ** 2), rel=0.3)


def test_wrong_arguments_are_refused():
    key, x = jax.random.key(0), np.zeros((20, 2))
    with pytest.raises(ValueError, match="num_folds is 1, expected 2 or more"):
        c2st(key, x, x, num_folds=1)
    with pytest.raises(ValueError, match="num_nulls is 0, expected 1 or more"):
        c2st_test(key, x, x, num_nulls=0)
    with pytest.raises(ValueError, match="at least 10 draws each"):
        c2st(key, x[:6], x)
    with pytest.raises(ValueError, match=r"width=-1.* cannot be trained"):
        Classifier(width=-1)
    with pytest.raises(ValueError, match=r"20 true values, 20 draws, data of shape \(19,\)"):
        lc2st(key, x, x, np.zeros(19), x, np.zeros(()))
    with pytest.raises(ValueError, match="an observation like one row"):
        lc2st(key, x, x, np.zeros((20, 3)), x, np.zeros(2))
    with pytest.raises(ValueError, match="Data or the observation hold values that are not finite"):
        lc2st(key, x, x, np.zeros((20, 3)), x, np.full(3, np.nan))

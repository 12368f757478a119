import jax
import numpy as np
import pytest

from hsbi.diagnostics import data_references, tarp
from tests.diagnostics import conjugate


def test_ranks_and_coverage_follow_the_formula():
    rng = np.random.default_rng(0)
    truths, draws = rng.normal(size=(40, 3)) * [1, 10, 100], rng.normal(size=(40, 9, 3)) * [1, 10, 100]
    references = rng.normal(size=(40, 3)) * [1, 10, 100]
    result = tarp(jax.random.key(0), truths, draws, references=references)
    scale = truths.std(0)
    closer = []
    for i in range(40):
        own = np.sqrt(np.sum(((truths[i] - references[i]) / scale) ** 2))
        closer.append(sum(np.sqrt(np.sum(((draw - references[i]) / scale) ** 2)) < own for draw in draws[i]))
    np.testing.assert_array_equal(np.floor(10 * result.ranks), closer)
    np.testing.assert_allclose(result.coverage[[0, 50, 100]], [0, np.mean(result.ranks < 0.5), 1])


@pytest.mark.parametrize("with_data", [False, True])
def test_exact_posterior_is_rejected_at_the_level(with_data):
    rng = np.random.default_rng(1)
    p_values = []
    for number in range(500):
        truths, draws, y = conjugate.simulate(rng, "exact", 60, 20)
        p_values.append(tarp(jax.random.key(number), truths, draws, data=y if with_data else None).p_value)
    # Three standard errors of 500 repeats around 0.05.
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.08


@pytest.mark.parametrize("kind", conjugate.CONTROLS)
def test_references_from_data_find_every_wrong_posterior(kind):
    rng = np.random.default_rng(2)
    with_data, without = [], []
    for number in range(20):
        truths, draws, y = conjugate.simulate(rng, kind, 300, 50)
        with_data.append(tarp(jax.random.key(number), truths, draws, data=y).p_value)
        without.append(tarp(jax.random.key(number), truths, draws).p_value)
    assert np.sum(np.array(with_data) < 0.05) >= 19
    if kind == "prior":
        assert np.sum(np.array(without) < 0.05) <= 4


def test_references_from_data_are_a_regression_that_leaves_the_data_set_out():
    rng = np.random.default_rng(3)
    data = rng.normal(size=(200, 4))
    truths = data @ rng.normal(size=(4, 2)) + 0.1 * rng.normal(size=(200, 2))
    points = data_references(truths, data, offset=0.0)
    assert np.max(np.abs(np.std(points - truths, axis=0) - 0.1)) < 0.02
    shifted = data_references(truths, data, offset=2.0) - points
    np.testing.assert_allclose(shifted.mean(0), 0.2, atol=0.02)
    changed = truths.copy()
    changed[17] += 5.0
    moved = np.any(data_references(changed, data) != data_references(truths, data), axis=1)
    assert not moved[17]
    assert moved[18]


def test_wrong_arguments_are_refused():
    key, truths, draws = jax.random.key(0), np.zeros((12, 2)), np.ones((12, 3, 2))
    with pytest.raises(ValueError, match="Both references and data"):
        tarp(key, truths, draws, references=truths, data=truths)
    with pytest.raises(ValueError, match=r"References have shape \(12,\), expected \(12, 2\)"):
        tarp(key, truths, draws, references=np.zeros(12))
    with pytest.raises(ValueError, match="the same number of data sets, 10 or more"):
        tarp(key, truths, draws, data=np.zeros((11, 2)))
    with pytest.raises(ValueError, match="Some data are not finite"):
        tarp(key, truths, draws, data=np.full((12, 2), np.inf))

import jax
import numpy as np
import pytest
from scipy import stats

from hsbi.bench import controls
from hsbi.diagnostics.levels import check_globals, check_locals, robust_width
from tests.diagnostics import conjugate


def simulate_level(kind, seed=0, num_datasets=300):
    truths, draws, y = conjugate.simulate(np.random.default_rng(seed), kind, num_datasets, 100)
    return check_globals(jax.random.key(seed), truths[:, None], draws[..., None], y[:, None], columns=["theta"])


def test_contraction_and_recovery_are_those_of_the_conjugate_model():
    level = simulate_level("exact")
    # Posterior over prior variance is 0.2; widths of 100 draws and 300 truths are off by a tenth each.
    assert np.median(level.contraction) == pytest.approx(0.8, abs=0.06)
    # The correlation of truth and posterior mean is sqrt(0.8), Spearman's a little less.
    expected = 6 / np.pi * np.arcsin(np.sqrt(0.8) / 2)
    assert level.recovery[0] == pytest.approx(expected, abs=4 * (1 - 0.8) / np.sqrt(300) + 0.01)
    assert level.recovery[0] == pytest.approx(
        stats.spearmanr(level.truths[:, 0, 0], level.mean[:, 0, 0]).statistic, abs=1e-9
    )
    np.testing.assert_allclose(level.coverage[:, 0], [0.5, 0.8, 0.9, 0.95], atol=0.12)


def test_prior_as_posterior_is_seen_by_what_depends_on_the_data_alone():
    level = simulate_level("prior")
    p_values = {one.name: one.p_value for one in level.evidence}
    assert p_values["theta"] > 0.001
    assert p_values["theta towards its data"] < 1e-9
    assert p_values["distance to a guess from data"] < 1e-9
    assert np.median(level.contraction) == pytest.approx(0.0, abs=0.25)


def test_guesses_never_see_their_own_data_set():
    rng = np.random.default_rng(1)
    truths, y = rng.normal(size=(50, 4, 1)), rng.normal(size=(50, 4, 2))
    draws = rng.normal(size=(50, 30, 4, 1))
    before = check_locals(jax.random.key(0), truths, draws, y, columns=["theta"])
    truths[7] += 100.0
    after = check_locals(jax.random.key(0), truths, draws, y, columns=["theta"])
    changed = np.any(before.distance_ranks != after.distance_ranks, axis=1)
    assert changed[7]
    # The other data sets of its fold keep the regression that they had, up to the common scale.
    assert not changed[12]


def test_masked_sites_are_left_out():
    rng = np.random.default_rng(2)
    truths, y = rng.normal(size=(60, 5, 1)), rng.normal(size=(60, 5, 1))
    draws = rng.normal(size=(60, 40, 5, 1))
    mask = np.arange(5) < rng.integers(1, 6, size=(60, 1))
    first = check_locals(jax.random.key(0), truths, draws, y, columns=["theta"], mask=mask)
    spoiled = np.where(mask[..., None], truths, 1e6)
    second = check_locals(jax.random.key(0), spoiled, draws, y, columns=["theta"], mask=mask)
    assert first.evidence == second.evidence
    np.testing.assert_array_equal(first.coverage, second.coverage)


def test_width_of_a_constant_is_one():
    values = np.stack([np.zeros(100), stats.norm.ppf((np.arange(100) + 0.5) / 100)], axis=1)
    np.testing.assert_allclose(robust_width(values), [1.0, 1.0], atol=0.02)


def test_every_column_needs_a_name():
    with pytest.raises(ValueError, match="1 names for 2 columns of globals"):
        check_globals(jax.random.key(0), np.zeros((20, 2)), np.zeros((20, 9, 2)), np.zeros((20, 1)), columns=["a"])


def called_out(results, name, line):
    return sum(result[name][line] in ("doubtful", "wrong") for result in results)


@pytest.mark.slow
def test_controls_are_called_out_at_their_level_and_the_exact_posterior_is_trusted():
    results = [controls.run_repeat(seed) for seed in range(20)]
    trusted = sum(all(verdict == "trusted" for verdict in result["exact"].values()) for result in results)
    assert trusted >= 19
    for name, (_, lines) in controls.CONTROLS.items():
        for line in lines:
            assert called_out(results, name, line) >= 19, (name, line)
    # What is wrong with one level is not blamed on the other.
    for name, line in (("prior of locals", "globals"), ("mean of globals + 0.5 sd", "locals")):
        assert called_out(results, name, line) <= 1


@pytest.mark.parametrize("name", ["exact", "prior", "locals swapped", "surrogate noise x 1.3"])
def test_one_repeat_of_the_controls(name, sets):
    control, lines = controls.CONTROLS[name]
    found = controls.verdicts(100, control(np.random.default_rng(100), sets))
    assert {line for line in ("globals", "locals", "surrogate") if found[line] != "trusted"} == set(lines)


@pytest.fixture(scope="module")
def sets():
    return controls.draw_sets(100)

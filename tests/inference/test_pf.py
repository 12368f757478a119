"""Posterior factorization: the budget is spent to the last simulation, on data sets of 1 to S sites."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi
from hsbi.inference.pf import break_stick, choose_simulated

SITES, BUDGET = 4, 61
X = np.array([0.5, -1.0, 2.0, 4.0], np.float32)
Y = np.array([0.1, 0.3, -0.7, 1.5], np.float32)


def lines(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", len(x)):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        simulator = hsbi.Simulator(lambda key, *own: own[0] + own[1] * own[2], level, slope, x)
        numpyro.sample("y", simulator, obs=y)


@pytest.mark.parametrize(("total", "longest"), [(2, 50), (61, 4), (5_000, 50), (300, 1)])
def test_pieces_add_up_and_are_no_longer_than_the_longest(total, longest):
    pieces = break_stick(jax.random.key(0), total, longest)
    assert pieces.sum() == total
    assert pieces.min() >= 1
    assert pieces.max() <= longest
    assert len(pieces) >= 2


def test_pieces_are_uniform():
    """All but the last few are uniform on 1 to 8: each size has a binomial count."""
    pieces = break_stick(jax.random.key(1), 40_000, 8)[:-8]
    counts = np.bincount(pieces, minlength=9)[1:]
    expected, sd = len(pieces) / 8, np.sqrt(len(pieces) / 8 * 7 / 8)
    assert np.all(np.abs(counts - expected) < 5 * sd)


def test_sites_are_chosen_evenly():
    mask = choose_simulated(jax.random.key(2), 12_000, 5)
    assert mask.sum() == 12_000
    assert set(mask.sum(1)) == {1, 2, 3, 4, 5}
    assert np.all(np.abs(mask.mean(0) - 0.6) < 5 * np.sqrt(0.24 / len(mask)))


@pytest.mark.parametrize(("total", "longest"), [(1, 5), (0, 5), (10, 0)])
def test_a_budget_for_fewer_than_two_data_sets_is_refused(total, longest):
    with pytest.raises(ValueError, match="cannot be broken into data sets of 1 to"):
        break_stick(jax.random.key(0), total, longest)


def test_simulations_belong_to_their_latents_and_the_rest_repeats_one_of_them():
    pf = hsbi.PF(lines, num_simulations=BUDGET, observed=("y",), progress=False)
    values, observations = pf.simulate(jax.random.key(0), X)
    assert pf.ledger["simulate"] == pf.ledger.total == BUDGET
    sets = pf._data_sets(pf._program)
    mask = np.asarray(sets.mask)
    assert mask.sum() == BUDGET
    expected = np.asarray(values["level"] + values["slope"][:, None] * X)
    y = np.asarray(observations["y"])
    np.testing.assert_allclose(y[mask], expected[mask], rtol=1e-5, atol=1e-5)
    for row, real in zip(y, mask, strict=True):
        np.testing.assert_array_equal(row[~real], np.repeat(row[real][0], np.sum(~real)))
    assert np.any(np.abs(y - expected)[~mask] > 0.1)


def test_data_sets_with_a_failure_are_left_out_whole():
    def broken(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", len(x)):
            level = numpyro.sample("level", dist.Normal(0.0, 1.0))
            simulator = hsbi.Simulator(lambda key, a, b: jnp.where(a > 1.5, jnp.nan, a + b), level, slope)
            numpyro.sample("y", simulator, obs=y)

    pf = hsbi.PF(broken, num_simulations=BUDGET, observed=("y",), progress=False)
    with pytest.warns(UserWarning, match="Simulations failed"):
        values, _ = pf.simulate(jax.random.key(0), X)
    simulated = pf._simulated
    failed = np.any((np.asarray(values["level"]) > 1.5) & simulated, axis=1)
    assert 0 < failed.sum() < len(failed)
    np.testing.assert_array_equal(pf._data_sets(pf._program).mask, simulated[~failed])


def test_other_posteriors_are_refused():
    with pytest.raises(ValueError, match="posterior_config is JointConfig, but posterior factorization has"):
        hsbi.PF(lines, num_simulations=10, posterior_config=hsbi.JointConfig())


@pytest.mark.slow
def test_a_brief_run_answers_for_any_number_of_sites_and_is_saved(brief, tmp_path):
    config = dataclasses.replace(brief["posterior_config"], num_ode_steps=3)
    pf = hsbi.PF(lines, num_simulations=200, num_samples=7, posterior_config=config, progress=False)
    pf.run(jax.random.key(0), X, y=Y)
    assert pf.ledger.total == 200
    assert {name: value.shape for name, value in pf.get_samples().items()} == {"slope": (7,), "level": (7, SITES)}
    draws = pf.sample(jax.random.key(1), X[:2], y=Y[:2])
    assert draws["level"].shape == (7, 2)
    pf.save(tmp_path / "pf.hsbi")
    loaded = hsbi.load(tmp_path / "pf.hsbi", lines, progress=False)
    assert type(loaded) is hsbi.PF
    assert loaded.posterior_config == config
    for name, value in loaded.sample(jax.random.key(1), X[:2], y=Y[:2]).items():
        np.testing.assert_array_equal(value, draws[name])

"""Missing values, whole missing sites, and schedules of any length, by identities that hold for any weights."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import hsbi
from hsbi.inference.arrays import Latents, read_design
from hsbi.inference.posterior import Posterior
from hsbi.model import routes
from hsbi.model.routes import bind
from tests.inference.test_designs import POINTS, curves, design

pytestmark = pytest.mark.slow

TIMES = jnp.linspace(0.0, 1.0, 4 * POINTS).reshape(4, POINTS)
Y = jnp.sin(jnp.arange(4.0 * POINTS)).reshape(4, POINTS)


@pytest.fixture(scope="module")
def trained(brief):
    lf = hsbi.LF(curves, num_simulations=300, num_samples=2000, design=design, missing=0.5, **brief)
    lf.simulate(jax.random.key(0))
    lf.fit(jax.random.key(1))
    return lf


def transport(lf, times, y, noise):
    program = bind(curves, (times,), {"y": y})
    observed = lf.posterior.view.observe({"y": y}, read_design(program))
    return jax.jit(lf.posterior.transport)(program, observed, noise)


def make_noise(num_sites):
    keys = jax.random.split(jax.random.key(5))
    return Latents(jax.random.normal(keys[0], (7, 1)), jax.random.normal(keys[1], (7, num_sites, 1)))


def test_an_empty_site_is_as_good_as_none(trained):
    noise = make_noise(4)
    gap = transport(trained, TIMES, Y.at[2].set(jnp.nan), noise)
    rest = np.array([0, 1, 3])
    without = transport(trained, TIMES[rest], Y[rest], Latents(noise.globals, noise.locals[:, rest]))
    np.testing.assert_allclose(gap.globals, without.globals, atol=1e-4)
    np.testing.assert_allclose(gap.locals[:, rest], without.locals, atol=1e-4)
    complete = transport(trained, TIMES, Y, noise)
    assert np.max(np.abs(complete.globals - without.globals)) > 1e-3


def test_missing_points_are_as_good_as_none(trained):
    # The last two points of every site are missing, or were never scheduled.
    noise = make_noise(4)
    gap = transport(trained, TIMES, Y.at[:, 4:].set(jnp.nan), noise)
    shorter = transport(trained, TIMES[:, :4], Y[:, :4], noise)
    np.testing.assert_allclose(gap.globals, shorter.globals, atol=1e-4)
    np.testing.assert_allclose(gap.locals, shorter.locals, atol=1e-4)


def test_an_empty_site_has_its_conditional_prior(trained):
    # The data of the first site are far from what any globals make likely.
    y = Y.at[1].set(jnp.nan).at[0].set(6.0 * TIMES[0] - 1.0)
    draws = trained.sample(jax.random.key(2), TIMES, y=y)
    pivot = (np.asarray(draws["slope"][:, 1]) - np.asarray(draws["level"])) / 0.5
    assert scipy.stats.kstest(pivot, "norm").pvalue > 0.001
    # A site with data does not.
    seen = (np.asarray(draws["slope"][:, 0]) - np.asarray(draws["level"])) / 0.5
    assert scipy.stats.kstest(seen, "norm").pvalue < 0.001


def test_what_was_trained_for_is_shown_and_warned_about(trained):
    text = str(trained)
    assert "sites: 2 to 4" in text
    assert f"values of 'y' per site: 0 to {POINTS}" in text
    assert "missing values: up to 50%" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.sample(jax.random.key(2), TIMES[:3], y=Y[:3].at[0, 0].set(jnp.nan))
    with pytest.warns(UserWarning, match="inputs of 'y' from 0 to 2, trained from"):
        trained.sample(jax.random.key(2), 2 * TIMES, y=Y)
    with pytest.warns(UserWarning, match="7 to 7 values of 'y' per site, trained for 0 to 6"):
        trained.sample(jax.random.key(2), jnp.ones((4, 7)) * 0.5, y=jnp.ones((4, 7)))


def test_data_sets_of_one_shape_share_one_compilation(trained, monkeypatch):
    # What is called from compiled code is called once for each compilation.
    compiled, compared = [], []
    transport, choose = Posterior.transport, routes._choose_route
    monkeypatch.setattr(Posterior, "transport", lambda *args: compiled.append(None) or transport(*args))
    monkeypatch.setattr(routes, "_choose_route", lambda *args: compared.append(None) or choose(*args))
    for sites, points in ((2, POINTS), (4, POINTS), (3, 4)):
        times = TIMES[:sites, :points]
        for seed, share in enumerate((0.0, 0.3, 0.5, 0.5)):
            gap = jax.random.uniform(jax.random.key(seed), times.shape) < share
            y = jnp.where(gap.at[0].set(seed == 3), jnp.nan, Y[:sites, :points])
            trained.sample(jax.random.key(seed), times + 0.01 * seed, y=y, num_samples=9)
    assert len(compiled) == 3
    assert len(compared) <= 3


def test_saved_estimator_keeps_its_scope(trained, tmp_path):
    trained.save(tmp_path / "curves.hsbi")
    loaded = hsbi.load(tmp_path / "curves.hsbi", curves, progress=False)
    assert str(loaded) == str(trained)
    data = {"y": Y.at[1].set(jnp.nan).at[0, 3].set(jnp.nan)}
    ours, theirs = (each.sample(jax.random.key(4), TIMES, **data) for each in (trained, loaded))
    np.testing.assert_array_equal(ours["slope"], theirs["slope"])


def plain(y=None, known=True):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("site", 5):
        center = numpyro.sample("center", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(center, scale).mask(known), obs=y)


def test_the_pattern_of_the_data_is_trained_for_without_asking(brief):
    y = jnp.array([1.0, jnp.nan, 0.3, -0.5, 2.0])
    lf = hsbi.LF(plain, num_simulations=200, num_samples=20, **brief)
    known = jnp.array([True, False, True, True, True])
    lf.run(jax.random.key(0), y=y, known=known)
    # By `mask` the same values are missing, and what stands there does not matter.
    draws = [
        lf.sample(jax.random.key(1), y=y.at[1].set(value), known=known)["center"] for value in (jnp.nan, 5.0, -70.0)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], draws[2])
    with pytest.warns(UserWarning, match="another pattern of missing values of 'y'"):
        lf.sample(jax.random.key(1), y=jnp.roll(y, 1), known=jnp.ones(5, bool))
    with pytest.raises(ValueError, match="no covariates, but the posterior was trained with covariate 'known'"):
        lf.sample(jax.random.key(1), y=y)


def test_missing_values_are_refused_by_a_posterior_of_complete_data(schools):
    sigma = jnp.full(8, 12.0)
    with pytest.raises(ValueError, match=r"2 of 8 values of 'y'\. The posterior was trained for complete data"):
        schools.sample(jax.random.key(0), sigma, y=jnp.ones(8).at[jnp.array([1, 4])].set(jnp.nan))

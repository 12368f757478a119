"""Simulations that fail where outputs are large: the posterior of data that did not fail is known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import hsbi
from hsbi.inference.arrays import read_design
from hsbi.inference.validity import fit_validity
from hsbi.model.structure import Site, Structure
from tests.model.programs import per_site

LIMIT, SPREAD = 1.0, 0.5
Y = jnp.array([0.6, -0.2, 0.9, 0.1, 0.7, -0.6])


def fail_above(key, eta):
    y = eta + jax.random.normal(key)
    return jnp.where(y > LIMIT, jnp.nan, y)


def model(num_sites, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", num_sites):
        eta = numpyro.sample("eta", dist.Normal(mu, SPREAD))
        numpyro.sample("y", hsbi.Simulator(fail_above, eta), obs=y)


def exact_mean_and_sd(modeled):
    """Give the posterior of mu by quadrature: the likelihood of a valid output, or of one given that it is valid."""
    grid = np.linspace(-6.0, 6.0, 4001)
    total = np.hypot(1.0, SPREAD)
    log = stats.norm.logpdf(grid) + stats.norm.logpdf(np.asarray(Y)[:, None], grid, total).sum(0)
    if not modeled:
        # Given eta, dropping failures divides by P(valid | eta): the integral over eta is done on a grid too.
        eta = np.linspace(-8.0, 8.0, 2001)
        prior = stats.norm.pdf(eta, grid[:, None], SPREAD) * (eta[1] - eta[0])
        terms = [np.log(prior @ (stats.norm.pdf(y, eta) / stats.norm.cdf(LIMIT - eta))) for y in np.asarray(Y)]
        log = stats.norm.logpdf(grid) + np.sum(terms, axis=0)
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = np.sum(weights * grid)
    return mean, np.sqrt(np.sum(weights * (grid - mean) ** 2))


def run(invalid):
    steps = hsbi.FitConfig(num_steps=1500, epoch_steps=250, patience=3)
    lf = hsbi.LF(
        model,
        num_simulations=6_000,
        num_samples=2_000,
        progress=False,
        invalid=invalid,
        surrogate_config=hsbi.SurrogateConfig(width=32, correction=steps, flow=steps),
        posterior_config=hsbi.FactorizedConfig(width=32, head=steps, flow=steps),
    )
    lf.run(jax.random.key(0), Y.size, y=Y)
    draws = np.asarray(lf.get_samples()["mu"])
    return lf, draws.mean(), draws.std()


@pytest.mark.slow
def test_the_probability_of_a_valid_output_is_part_of_the_likelihood():
    mean, sd = exact_mean_and_sd(True)
    dropped_mean, _ = exact_mean_and_sd(False)
    # The two posteriors are far apart, so that the test can fail.
    assert dropped_mean - mean > 0.5 * sd
    with pytest.warns(UserWarning, match=r"'y': \d+ of 6000 failed \(2\d.\d %; \d+ nonfinite\)"):
        lf, got, spread = run("model")
    assert lf.validity is not None
    assert abs(got - mean) < 0.25 * sd
    assert 0.8 < spread / sd < 1.25


@pytest.mark.slow
@pytest.mark.long
def test_failures_can_be_dropped_on_request():
    mean, sd = exact_mean_and_sd(False)
    with (
        pytest.warns(UserWarning, match="With invalid='drop' the posterior is that of a simulator which"),
        pytest.warns(UserWarning, match="of 6000 failed"),
    ):
        lf, got, _ = run("drop")
    assert lf.validity is None
    assert abs(got - mean) < 0.25 * sd


STRUCTURE = Structure(sites=(Site(name="mu", level="global"), per_site("eta", "local", 5)))


@pytest.mark.slow
def test_classifiers_find_the_probability_of_a_valid_simulation():
    keys = jax.random.split(jax.random.key(3), 3)
    mu = jax.random.normal(keys[0], (8000,))
    eta = mu + SPREAD * jax.random.normal(keys[1], mu.shape)
    valid = np.asarray(eta + jax.random.normal(keys[2], mu.shape) < LIMIT)
    validity = fit_validity(jax.random.key(4), STRUCTURE, {"mu": mu, "eta": eta}, jnp.zeros((8000, 0)), valid)
    assert validity is not None
    grid = jnp.linspace(-2.0, 2.0, 9)
    given_globals = jnp.exp(validity.given_globals.log_valid(grid[:, None]))
    np.testing.assert_allclose(given_globals, stats.norm.cdf((LIMIT - grid) / np.hypot(1.0, SPREAD)), atol=0.08)
    both = jnp.stack([0.5 * grid, grid], axis=1)
    given_all = jnp.exp(validity.given_all.log_valid(both))
    np.testing.assert_allclose(given_all, stats.norm.cdf(LIMIT - grid), atol=0.08)


@pytest.mark.slow
def test_failures_by_chance_alone_are_not_modeled():
    keys = jax.random.split(jax.random.key(5), 3)
    values = {"mu": jax.random.normal(keys[0], (1000,)), "eta": jax.random.normal(keys[1], (1000,))}
    valid = np.array(jax.random.uniform(keys[2], (1000,)) < 0.9)
    assert fit_validity(jax.random.key(6), STRUCTURE, values, jnp.zeros((1000, 0)), valid) is None
    valid[:] = True
    valid[:3] = False
    assert fit_validity(jax.random.key(6), STRUCTURE, values, jnp.zeros((1000, 0)), valid) is None


@pytest.mark.fault(3)
@pytest.mark.parametrize(("invalid", "learns"), [("model", True), ("drop", False)])
def test_failures_are_modeled_unless_they_are_dropped_by_request(monkeypatch, invalid, learns):
    lf = hsbi.LF(model, num_simulations=200, invalid=invalid, progress=False)
    with pytest.warns(UserWarning, match=r"'y': \d+ of 200 failed"):
        simulations = lf.simulate(jax.random.key(0), Y.size)
    taught = []
    monkeypatch.setattr("hsbi.inference.lf.fit_validity", lambda *args, **kwargs: taught.append(args[4]) or "learned")
    arguments = (jax.random.key(1), lf._program, simulations, read_design(lf._program), simulations.usable, None)
    if learns:
        assert lf._fit_validity(*arguments) == "learned"
        # Failures are what it is learned from.
        np.testing.assert_array_equal(taught[0], simulations.usable)
        return
    number = np.count_nonzero(~simulations.usable)
    with pytest.warns(
        UserWarning, match=rf"{number} of 200 simulations are not valid and are left out.*invalid='drop'"
    ):
        assert lf._fit_validity(*arguments) is None
    assert not taught


def test_other_policies_are_refused():
    with pytest.raises(ValueError, match="invalid is 'ignore', expected 'model' or 'drop'"):
        hsbi.LF(model, num_simulations=10, invalid="ignore")

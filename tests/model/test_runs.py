"""Runs stop where outputs or prior draws cannot be what the program says."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import hsbi
from hsbi.model.data import refuse_impossible_counts
from hsbi.model.failures import SimulationError
from hsbi.model.host import Status
from hsbi.model.routes import bind
from hsbi.model.simulate import simulate_sites
from hsbi.simulation import Ledger

KEY = jax.random.key(0)


def counts(simulator, host=True):
    def model(y=None):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        options = {"host": True, "event_shape": ()} if host else {}
        support = constraints.nonnegative_integer
        numpyro.sample("y", hsbi.Simulator(simulator, rate, support=support, **options), obs=y)

    return model


@pytest.mark.fault(7)
@pytest.mark.parametrize(
    ("simulator", "message"),
    [
        (lambda rng, rate: rng.poisson(rate) - 3, r"'y' returned -\d in simulation \d+, .*outside its support"),
        (lambda rng, rate: rate, r"'y' failed in simulation 0 .*returned 0?\d?\.\d+ at a count site"),
    ],
)
def test_impossible_counts_of_a_host_simulator(simulator, message):
    with pytest.raises(SimulationError, match=message):
        simulate_sites(bind(counts(simulator), (), {}), KEY, 50)


@pytest.mark.fault(7)
def test_impossible_counts_of_a_jax_simulator():
    def simulate(key, rate):
        return jax.random.poisson(key, rate) - 3

    with pytest.raises(SimulationError, match=r"'y' returned -\d in simulation \d+, which lies outside"):
        simulate_sites(bind(counts(simulate, host=False), (), {}), KEY, 50)


@pytest.mark.fault(7)
def test_fractions_of_counts_of_a_jax_simulator():
    def simulate(key, rate):
        draw = jax.random.poisson(key, rate)
        return jnp.where(draw == 4, 4.25, draw)

    with pytest.raises(SimulationError, match=r"'y' returned a number between 4 and 5 in simulation \d+ at a count"):
        simulate_sites(bind(counts(simulate, host=False), (), {}), KEY, 200)


@pytest.mark.fault(7)
@pytest.mark.parametrize(("value", "found"), [(-2, "-2"), (1.5, "1.5")])
def test_impossible_counts_in_the_data(value, found):
    def model(y=None):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("site", 3):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    program = bind(model, (), {"y": jnp.array([1, value, 0])})
    with pytest.raises(ValueError, match=f"Data of 'y' contain {found}, expected counts within"):
        refuse_impossible_counts(program)
    refuse_impossible_counts(bind(model, (), {"y": jnp.array([1, 2, 0])}))
    refuse_impossible_counts(bind(model, (), {"y": jnp.array([1.0, jnp.nan, 0.0])}))


@pytest.mark.fault(7)
def test_a_missing_count_does_not_condemn_the_others_of_its_event():
    def model(y=None):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("site", 2):
            numpyro.sample("y", dist.Poisson(rate).expand([2, 3]).to_event(1), obs=y)

    y = jnp.array([[1.0, jnp.nan, 4.0], [2.0, 0.0, 5.0]])
    refuse_impossible_counts(bind(model, (), {"y": y}))
    with pytest.raises(ValueError, match=r"Data of 'y' contain -3\.0, expected counts within"):
        refuse_impossible_counts(bind(model, (), {"y": y.at[0, 2].set(-3.0)}))


def overflowing(scale):
    def model(y=None):
        size = numpyro.sample("size", dist.LogNormal(0.0, scale))
        simulator = hsbi.Simulator(lambda rng, size: rng.normal(), size, host=True, event_shape=())
        numpyro.sample("y", simulator, obs=y)

    return bind(model, (), {})


@pytest.mark.fault(22)
def test_prior_draws_that_are_not_finite_are_counted_and_not_simulated():
    # exp(35 z) exceeds single precision for z > 2.53: about 0.6 % of the draws.
    ledger = Ledger()
    with pytest.warns(UserWarning, match=r"(\d) of 1000 failed .* prior draw of 'size' is not finite"):
        rows = simulate_sites(overflowing(35.0), KEY, 1000, ledger=ledger)
    failed = ~np.isfinite(rows.values["size"])
    assert 0 < failed.sum() <= 10
    np.testing.assert_array_equal(rows.status["y"], np.where(failed, Status.NONFINITE, Status.OK))
    assert ledger.total == 1000 - failed.sum()
    with pytest.raises(SimulationError, match=r"Prior draws are not finite: 'size' in \d+ of 1000"):
        simulate_sites(overflowing(60.0), KEY, 1000)

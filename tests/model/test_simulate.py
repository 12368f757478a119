import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi
from hsbi.model.draws import draw_latents
from hsbi.model.program import Program
from hsbi.model.routes import bind
from hsbi.model.simulate import calls_per_site, simulate_all, simulate_chosen, simulate_given, simulate_sites
from hsbi.simulation import Ledger
from tests.model.programs import CountingSimulator, host_model, schools_program

X = np.array([0.5, -1.0, 2.0, 4.0, -3.0])


@pytest.fixture(scope="module")
def schools() -> Program:
    return schools_program()


def with_route(program: Program, route) -> Program:
    return dataclasses.replace(program, route=route, reason="it was told to.")


@pytest.mark.parametrize(("padding", "route"), [(0, "resize"), (5, "pick")])
def test_ledger_equals_the_simulators_own_count(padding, route):
    simulator = CountingSimulator()
    program = bind(host_model(simulator, padding=padding), (X,), {})
    assert program.route == route
    draw_latents(program, jax.random.key(0), 20)
    assert simulator.calls == 0
    ledger = Ledger()
    rows = simulate_sites(program, jax.random.key(1), 23, ledger=ledger)
    assert simulator.calls == ledger["simulate"] == ledger.total == 23
    np.testing.assert_allclose(rows.observations["y"][:, 0], rows.values["eta"], rtol=1e-6)
    np.testing.assert_allclose(rows.observations["y"][:, 1], X[np.asarray(rows.index)])
    values, observations = simulate_all(program, jax.random.key(2), 4, ledger=ledger, phase="predict")
    assert simulator.calls == ledger.total == 23 + 4 * 5
    assert ledger["predict"] == 20
    np.testing.assert_allclose(observations["y"][..., 0], values["eta"], rtol=1e-6)


def test_route_whole_keeps_and_counts_every_site():
    simulator = CountingSimulator()
    program = with_route(bind(host_model(simulator), (X,), {}), "whole")
    ledger = Ledger()
    with pytest.warns(UserWarning, match=r"simulated 4 times, which makes 20 single-site .*\(23 were asked for\)"):
        rows = simulate_sites(program, jax.random.key(1), 23, ledger=ledger)
    assert simulator.calls == ledger.total == 20
    np.testing.assert_array_equal(rows.index, np.tile(np.arange(5), 4))
    np.testing.assert_allclose(rows.observations["y"][:, 0], rows.values["eta"], rtol=1e-6)
    np.testing.assert_allclose(rows.observations["y"][:, 1], np.tile(X, 4))
    np.testing.assert_array_equal(rows.values["mu"][:5], np.repeat(rows.values["mu"][0], 5))
    assert len(np.unique(rows.values["mu"])) == 4
    with pytest.raises(ValueError, match="sites to simulate cannot be chosen: it was told to"):
        simulate_sites(program, jax.random.key(1), 5, index=np.arange(5))


def test_host_simulators_draw_what_their_callbacks_would():
    simulator = CountingSimulator()
    model = host_model(simulator)
    program = bind(model, (X,), {})
    values = draw_latents(program, jax.random.key(0), 2)
    got = simulate_given(program, jax.random.key(5), values)["y"]
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 1), 2)
    expected = hsbi.Simulator(simulator, values["eta"][1], X, host=True, event_shape=(3,)).sample(key)
    np.testing.assert_array_equal(got[1], expected)


def test_chained_host_observations_run_in_order_and_are_counted():
    first, second = CountingSimulator(), CountingSimulator()

    def model(x):
        with numpyro.plate("site", len(x)):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            y = numpyro.sample("y", hsbi.Simulator(first, eta, host=True, event_shape=(2,)))
            numpyro.sample("z", hsbi.Simulator(second, 2.0 * y[:, 0], x, host=True, event_shape=(3,)))

    program = bind(model, (X,), {})
    ledger = Ledger()
    for route in ("resize", "pick"):
        rows = simulate_sites(with_route(program, route), jax.random.key(0), 6, ledger=ledger)
        np.testing.assert_allclose(rows.observations["z"][:, 0], 2.0 * rows.values["eta"], rtol=1e-6)
        np.testing.assert_allclose(rows.observations["z"][:, 1], X[np.asarray(rows.index)])
    assert first.calls == second.calls == 12
    assert ledger.total == 24


def test_a_call_that_fails_is_counted_and_leaves_the_others():
    calls = []

    def failing(rng, eta, x):
        calls.append(x)
        if len(calls) == 4:
            raise ArithmeticError("diverged")
        return np.zeros(3)

    program = bind(host_model(failing), (X,), {})
    ledger = Ledger()
    with pytest.warns(UserWarning, match="(?s)1 of 10 failed .*ArithmeticError: diverged"):
        rows = simulate_sites(program, jax.random.key(0), 10, ledger=ledger)
    assert ledger.total == len(calls) == 10
    np.testing.assert_array_equal(np.flatnonzero(~rows.usable), [3])
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(rows.observations["y"]).any(axis=1)), [3])


def test_nothing_runs_beyond_the_budget():
    simulator = CountingSimulator()
    program = bind(host_model(simulator), (X,), {})
    ledger = Ledger(budget={"simulate": 9})
    with pytest.raises(ValueError, match="asks for 10 simulator calls, but only 9 are left"):
        simulate_sites(program, jax.random.key(0), 10, ledger=ledger)
    assert simulator.calls == ledger.total == 0


def test_rows_do_not_depend_on_chunks(schools):
    key = jax.random.key(3)
    whole = simulate_sites(schools, key, 26)
    for chunk_size in (26, 13, 5):
        part = simulate_sites(schools, key, 26, chunk_size=chunk_size)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole, part)
    longer = simulate_sites(schools, key, 40)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[:26], rtol=1e-5), whole, longer)


def test_single_sites_follow_the_distribution_of_the_program(schools):
    num_rows = 8000
    rows = simulate_sites(schools, jax.random.key(4), num_rows)
    sigma = schools.arguments["sigma"][np.asarray(rows.index)]
    standardized = np.asarray((rows.observations["y"] - rows.values["theta"]) / sigma)
    relative = np.asarray((rows.values["theta"] - rows.values["mu"]) / rows.values["tau"])
    for values in (standardized, relative, np.asarray(rows.values["mu"]) / 5.0):
        # Five standard errors of mean and standard deviation of a normal sample.
        assert abs(values.mean()) < 5.0 / np.sqrt(num_rows)
        assert abs(values.std() - 1.0) < 5.0 / np.sqrt(2.0 * num_rows)
    assert abs(np.corrcoef(standardized, relative)[0, 1]) < 5.0 / np.sqrt(num_rows)
    np.testing.assert_array_equal(np.bincount(rows.index), np.full(8, 1000))


def test_plain_distributions_count_one_call_per_site(schools):
    ledger, seen = Ledger(), []
    simulate_sites(schools, jax.random.key(0), 12, ledger=ledger, progress=lambda *now: seen.append(now), chunk_size=6)
    assert ledger.total == 12
    assert [now[:2] for now in seen] == [(6, 12), (12, 12)]
    assert calls_per_site(schools) == 1


def test_chosen_sites_are_simulated(schools):
    index = np.array([7, 7, 0, 2])
    rows = simulate_sites(schools, jax.random.key(0), 4, index=index)
    np.testing.assert_array_equal(rows.index, index)
    with pytest.raises(ValueError, match=r"shape \(3,\) and dtype int64, expected \(4,\) integers"):
        simulate_sites(schools, jax.random.key(0), 4, index=np.arange(3))
    with pytest.raises(ValueError, match="goes from 0 to 8, expected 0 to 7"):
        simulate_sites(schools, jax.random.key(0), 2, index=np.array([0, 8]))


def test_refusals(schools):
    with pytest.raises(ValueError, match="num_simulations is 0"):
        simulate_sites(schools, jax.random.key(0), 0)
    values = {"mu": jnp.zeros(3), "tau": jnp.ones(3), "theta": jnp.zeros((3, 8))}
    with pytest.raises(ValueError, match=r"Latents \['tau'\] have no values"):
        simulate_given(schools, jax.random.key(0), {"mu": values["mu"], "theta": values["theta"]})
    with pytest.raises(ValueError, match=r"have \[2, 3\] draws"):
        simulate_given(schools, jax.random.key(0), {**values, "mu": jnp.zeros(2)})


@pytest.mark.parametrize(("padding", "route"), [(0, "resize"), (5, "pick")])
def test_chosen_sites_are_simulated_at_their_latents_and_no_others(padding, route):
    simulator = CountingSimulator()
    program = bind(host_model(simulator, padding=padding), (X,), {})
    assert program.route == route
    values = draw_latents(program, jax.random.key(0), 3)
    draws, sites = np.array([0, 0, 1, 2, 2, 2]), np.array([4, 1, 0, 3, 2, 1])
    ledger = Ledger()
    found = simulate_chosen(program, jax.random.key(1), values, draws, sites, ledger=ledger)
    assert simulator.calls == ledger["simulate"] == 6
    np.testing.assert_allclose(found["y"][:, 0], np.asarray(values["eta"])[draws, sites], rtol=1e-6)
    np.testing.assert_allclose(found["y"][:, 1], X[sites])


def test_sites_cannot_be_chosen_from_whole_runs(schools):
    with pytest.raises(ValueError, match="sites to simulate cannot be chosen: it was told to"):
        simulate_chosen(with_route(schools, "whole"), jax.random.key(0), {}, np.zeros(1, int), np.zeros(1, int))

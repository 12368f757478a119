import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from hsbi.model.data import site_covariates
from hsbi.model.program import take_sites
from hsbi.model.routes import bind
from hsbi.model.simulate import simulate_sites
from tests.model.programs import (
    EFFECTS,
    ERRORS,
    CountingSimulator,
    captured_schools,
    eight_schools,
    host_model,
    replicated,
)

X = np.array([0.5, -1.0, 2.0, 4.0, -3.0])


def test_eight_schools_are_resized():
    program = bind(eight_schools, (ERRORS,), {"y": EFFECTS})
    assert (program.route, program.by_plate, program.reason) == ("resize", False, "")
    assert dict(program.arguments) == {"sigma": ERRORS, "y": EFFECTS}


@pytest.mark.parametrize("plate_size", ["hard-coded", "from data"])
def test_plate_sizes_are_found_wherever_they_come_from(plate_size):
    def model(x, y=None):
        with numpyro.plate("site", 5 if plate_size == "hard-coded" else len(y)):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(eta + x, 1.0), obs=y)

    assert bind(model, (X,), {"y": np.zeros(5)}).route == "resize"


def test_captured_arrays_are_simulated_whole_with_a_warning():
    with pytest.warns(UserWarning, match="'school' differ by something that is no argument"):
        program = bind(captured_schools, (EFFECTS,), {})
    assert program.route == "whole"
    assert "'y' has shape (8,), expected (1,)" in program.reason


def test_captured_arrays_are_resized_when_the_plate_indexes_them_but_still_warned_of():
    def model(y=None):
        with numpyro.plate("site", 5) as member:
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(eta, jnp.exp(jnp.asarray(X))[member]), obs=y)

    with pytest.warns(UserWarning, match="no argument of the model"):
        program = bind(model, (np.zeros(5),), {})
    assert (program.route, program.by_plate) == ("resize", True)
    taken = take_sites(program, jnp.array([3, 1]))
    np.testing.assert_array_equal(taken.indices, [3, 1])
    np.testing.assert_array_equal(take_sites(taken, jnp.array([1])).indices, [1])


def test_covariates_standardized_inside_the_model_are_not_resized():
    def model(x, y=None):
        centered = (x - x.mean()) / x.std()
        with numpyro.plate("site", len(x)):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(eta + centered, 1.0), obs=y)

    program = bind(model, (X,), {"y": np.zeros(5)})
    assert program.route == "whole"
    assert "'y' of a site is another distribution" in program.reason


def test_simulators_that_cannot_be_resized_are_picked():
    simulator = CountingSimulator()
    program = bind(host_model(simulator, padding=5), (X,), {})
    assert program.route == "pick"
    assert "at 1 of 5 sites" in program.reason
    assert simulator.calls == 0


def test_the_axis_of_a_square_covariate_is_found_by_value():
    square = np.arange(25.0).reshape(5, 5)

    def model(x, y=None):
        with numpyro.plate("site", 5):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(eta[:, None] + x.T, 1.0).to_event(1), obs=y)

    program = bind(model, (square,), {"y": np.zeros((5, 5))})
    assert program.route == "resize"
    assert program.structure.covariates[0].axis == 1
    covariates, names = site_covariates(program)
    np.testing.assert_array_equal(covariates, square.T)
    assert names[0] == "x[0]"


def test_an_argument_as_long_as_the_plate_by_chance_is_left_alone():
    knots = np.linspace(-1.0, 1.0, 5)

    def model(knots, y=None):
        with numpyro.plate("site", 5):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(eta[:, None] + knots, 1.0).to_event(1), obs=y)

    program = bind(model, (knots,), {"y": np.zeros((5, 5))})
    assert program.route == "resize"
    assert [covariate.path for covariate in program.structure.covariates] == ["y"]


@pytest.mark.parametrize("route", ["resize", "pick"])
def test_observations_of_a_site_use_its_own_covariates(route):
    x, group = np.arange(15.0).reshape(5, 3), np.arange(5) * 10
    program = bind(replicated, (x, group), {})
    assert program.route == "resize"
    object.__setattr__(program, "route", route)
    rows = simulate_sites(program, jax.random.key(0), 13)
    index, y = np.asarray(rows.index), np.asarray(rows.observations["y"])
    np.testing.assert_array_equal(y[..., 0], x[index])
    np.testing.assert_array_equal(y[..., 1], np.repeat(group[index][:, None], 3, axis=1))
    np.testing.assert_array_equal(y[..., 2], np.repeat(rows.values["eta"][:, :1], 3, axis=1))
    assert len(np.unique(y[..., 3])) == 39
    assert sorted(np.bincount(index)) == [2, 2, 3, 3, 3]


def test_a_model_without_plates_is_one_site():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0).expand([3]).to_event(1), obs=y)

    program = bind(model, (np.zeros(3),), {})
    assert (program.route, program.num_sites) == ("resize", 1)
    rows = simulate_sites(program, jax.random.key(0), 7)
    assert rows.observations["y"].shape == (7, 3)
    assert rows.values["mu"].shape == (7,)
    with pytest.raises(ValueError, match="no site plate and is one site, but 2"):
        take_sites(program, jnp.array([0, 0]))


def test_arguments_of_known_shapes_take_the_same_route_without_a_comparison(monkeypatch):
    known = {}
    first = bind(eight_schools, (ERRORS,), {"y": EFFECTS}, known=known)
    compared = []
    monkeypatch.setattr("hsbi.model.routes._choose_route", lambda *args: compared.append(args) or first)
    gap = np.where(np.arange(8) == 2, np.nan, EFFECTS)
    again = bind(eight_schools, (ERRORS,), {"y": gap}, known=known)
    assert not compared
    assert (again.route, again.structure["y"].missing) == ("resize", 1)
    np.testing.assert_array_equal(again.arguments["y"], gap)
    # Other shapes are compared, and so are other plain values, by which a model may take another way.
    bind(eight_schools, (ERRORS[:5],), {"y": EFFECTS[:5]}, known=known)
    assert len(compared) == 1

    def scaled(sigma, y=None, gain=1.0):
        eight_schools(sigma, y)

    other = {}
    for gain in (1.0, 2.0, 2.0):
        bind(scaled, (ERRORS,), {"y": EFFECTS, "gain": gain}, known=other)
    assert len(compared) == 3

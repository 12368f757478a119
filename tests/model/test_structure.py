"""Structures: what `inspect` reads, the two layouts, the table, the fingerprint and the diagram."""

import dataclasses
import functools
import json
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam

import hsbi
from hsbi.model.arguments import bind_arguments
from hsbi.model.diagram import place
from hsbi.model.structure import Site
from hsbi.model.trace import canonicalize, restore, undo_reparam

SIGMA = np.linspace(0.5, 1.5, 6)
Y = np.linspace(-1.0, 2.0, 6)


def schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def visits(y=None, keep=True):
    """Replicates to the left of the sites, some of them missing."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", 5, dim=-1):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        with numpyro.plate("visit", 3, dim=-2), handlers.mask(mask=keep):
            numpyro.sample("y", dist.Normal(theta, 0.5).expand([3, 5]), obs=y)


def counts(times, y=None):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("site", times.shape[0]):
        growth = numpyro.sample("growth", dist.Uniform(0.0, 1.0))
        simulate = hsbi.Simulator(grow, rate, growth, times, param_event_dims=(0, 0, 1))
        numpyro.sample("y", simulate, obs=y, infer={"inputs": times})


def grow(key, rate, growth, times):
    return rate * jnp.exp(growth * times) + jax.random.normal(key, times.shape)


def test_properties_list_the_levels():
    structure = hsbi.inspect(schools, SIGMA, y=Y)
    assert structure.globals == ("mu", "tau")
    assert structure.locals == ("theta",)
    assert structure.observations == ("y",)
    assert structure.deterministics == ()
    assert structure.num_sites == 6
    assert structure.site_plate is not None
    assert (structure.site_plate.name, structure.site_plate.dim, structure.site_plate.role) == ("school", -1, "site")
    assert structure["theta"].parents == ("mu", "tau")
    assert structure["y"].parents == ("theta",)
    assert [(c.path, c.axis, c.data) for c in structure.covariates] == [("sigma", 0, None), ("y", 0, "y")]
    assert structure.notes == ()


def test_an_unknown_site_is_refused_with_the_names():
    with pytest.raises(KeyError, match=r"No site 'eta' in the model\. Its sites are mu, tau, theta, y"):
        hsbi.inspect(schools, SIGMA, y=Y)["eta"]


def test_a_model_without_plates_is_one_site():
    def model(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

    structure = hsbi.inspect(model, np.ones((7, 3)), y=np.zeros(7))
    assert structure.site_plate is None
    assert structure.num_sites == 1
    assert structure.covariates == ()
    assert structure["y"].event_shape == (7,)


def test_simulators_are_observed_without_data_and_never_run():
    calls = []

    def walk(rng, drift):
        calls.append(drift)
        return rng.normal(drift, 1.0, 4)

    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 5):
            drift = numpyro.sample("drift", dist.Normal(mu, 1.0))
            numpyro.sample("y", hsbi.Simulator(walk, drift, event_shape=(4,), host=True), obs=y)

    for arguments in ({}, {"y": np.zeros((5, 4))}):
        structure = hsbi.inspect(model, **arguments)
        assert structure.observations == ("y",)
        assert structure["y"].shape == (5, 4)
    assert hsbi.inspect(model)["y"].missing is None
    assert calls == []


def test_functional_inputs_have_their_shape():
    structure = hsbi.inspect(counts, np.ones((5, 4)))
    assert structure["y"].inputs == (5, 4)
    assert structure["growth"].inputs is None
    assert structure["y"].parents == ("rate", "growth")


def test_a_thousand_sites_take_hardly_longer_than_ten():
    def inspect(num_sites):
        sigma, y = np.linspace(0.5, 1.5, num_sites), np.linspace(-1.0, 1.0, num_sites)
        start = time.process_time()
        structure = hsbi.inspect(schools, sigma, y=y)
        return structure, time.process_time() - start

    # The first inspection of a size compiles; the second is what a size costs.
    (_, _), (structure, _) = inspect(10), inspect(1000)
    assert structure["theta"].shape == (1000,)
    assert inspect(1000)[1] < 5 * inspect(10)[1]


def test_missing_values_are_counted_once():
    y = np.zeros((3, 5))
    y[0, 1] = y[2, 4] = np.nan
    keep = np.ones((3, 5), bool)
    keep[0, 1] = keep[1, 1] = False
    assert hsbi.inspect(visits, y)["y"].missing == 2
    assert hsbi.inspect(visits, y, keep=keep)["y"].missing == 3
    assert hsbi.inspect(visits, np.zeros((3, 5)), keep=keep)["y"].missing == 2


def test_missing_values_survive_work_on_the_data():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.log(y))

    assert hsbi.inspect(model, np.where(np.arange(6) < 2, np.nan, 1.0))["y"].missing == 2


def test_obs_mask_is_one_site():
    def model(keep, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=keep)

    structure = hsbi.inspect(model, np.arange(6) < 4, Y)
    assert [site.name for site in structure.sites] == ["mu", "y"]
    assert structure["y"].missing == 2


@pytest.mark.parametrize("inside", [True, False])
def test_reparameterization_is_undone_and_comes_back(inside):
    reparam = handlers.reparam(config={"theta": LocScaleReparam(0)})

    def model(sigma, y=None):
        if not inside:
            return schools(sigma, y)
        with reparam:
            return schools(sigma, y)

    wrapped = model if inside else handlers.reparam(model, config={"theta": LocScaleReparam(0)})
    structure = hsbi.inspect(wrapped, SIGMA, y=Y)
    assert structure.locals == ("theta",)
    assert structure.fingerprint() == hsbi.inspect(schools, SIGMA, y=Y).fingerprint()
    with handlers.trace() as trace, handlers.seed(rng_seed=0):
        wrapped(SIGMA, Y)
    assert "theta_decentered" in trace
    with handlers.trace() as trace, handlers.seed(rng_seed=0):
        undo_reparam(wrapped)(SIGMA, Y)
    assert "theta_decentered" not in trace


def test_an_error_in_the_model_leaves_numpyro_as_it_was():
    before = handlers.reparam.process_message, numpyro.primitives._masked_observe
    with pytest.raises(ZeroDivisionError):
        hsbi.inspect(lambda: 1 / 0)
    assert (handlers.reparam.process_message, numpyro.primitives._masked_observe) == before


def test_observations_inside_a_scan_are_one_vector():
    def model(y):
        rho = numpyro.sample("rho", dist.Uniform(-1.0, 1.0))

        def step(last, value):
            numpyro.sample("y", dist.Normal(rho * last, 1.0), obs=value)
            return value, None

        scan(step, jnp.zeros(()), jnp.asarray(y))

    structure = hsbi.inspect(model, Y)
    assert structure["y"].event_shape == (6,)
    assert structure["y"].parents == ("rho",)


def test_a_shared_argument_of_the_plates_size_is_no_covariate():
    def model(times, sigma, y=None):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta[:, None] * times, sigma[:, None]).to_event(1), obs=y)

    structure = hsbi.inspect(model, np.arange(6.0), SIGMA, np.arange(36.0).reshape(6, 6))
    assert [(c.path, c.axis, c.data) for c in structure.covariates] == [("sigma", 0, None), ("y", 0, "y")]


def test_the_site_axis_of_a_square_argument_is_found():
    def model(weights, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 4):
            numpyro.sample("y", dist.Normal(mu * weights[0] + weights[1] * weights[2] + weights[3], 1.0), obs=y)

    weights = np.random.default_rng(0).normal(size=(4, 4))
    (found,) = [c for c in hsbi.inspect(model, weights, np.zeros(4)).covariates if c.data is None]
    assert (found.path, found.axis) == ("weights", 1)


def test_the_site_axis_of_square_data_that_are_worked_on_is_found():
    def model(raw):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta + jnp.arange(6.0)[:, None], 1.0), obs=jnp.log(raw))

    (covariate,) = hsbi.inspect(model, np.arange(1.0, 37.0).reshape(6, 6)).covariates
    assert (covariate.path, covariate.axis, covariate.data) == ("raw", 1, "y")


def test_sizes_may_come_from_arguments():
    def model(index, y):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([int(np.max(index)) + 1]).to_event(1))
        with numpyro.plate("row", 6):
            numpyro.sample("y", dist.Normal(effect[index], 1.0), obs=y)

    structure = hsbi.inspect(model, np.array([0, 1, 2, 0, 1, 2]), Y)
    assert structure["effect"].shape == (3,)
    assert [c.path for c in structure.covariates] == ["index", "y"]


def test_arguments_are_named_by_the_model_inside_its_handlers():
    @handlers.mask(mask=True)
    def model(sigma, *rest, y=None, **options):
        return schools(sigma, y)

    bound = bind_arguments(undo_reparam(handlers.seed(model, 0)), (1, 2), {"y": 3, "extra": 4})
    assert bound == {"sigma": 1, "rest": (2,), "y": 3, "extra": 4}
    partial = functools.partial(schools, y=Y)
    assert [c.path for c in hsbi.inspect(partial, SIGMA).covariates] == ["sigma"]


def test_constants_made_by_condition_are_left_out():
    with pytest.warns(UserWarning, match="Site 'tau' is observed and depends on no latent"):
        structure = hsbi.inspect(handlers.condition(schools, data={"tau": 2.0, "y": Y}), SIGMA)
    assert [site.name for site in structure.sites] == ["mu", "theta", "y"]
    assert structure["theta"].parents == ("mu",)


def test_fingerprints_see_shapes_but_not_values():
    first = hsbi.inspect(schools, SIGMA, y=Y)
    missing = hsbi.inspect(schools, 2 * SIGMA, y=np.where(Y > 0, np.nan, Y))
    shorter = hsbi.inspect(schools, SIGMA[:5], y=Y[:5])
    assert first.fingerprint() == missing.fingerprint()
    assert first.fingerprint() != shorter.fingerprint()
    assert len(first.fingerprint()) == 64


def test_structures_are_hashable_and_survive_json():
    structure = hsbi.inspect(visits, np.zeros((3, 5)))
    assert hash(structure) == hash(hsbi.inspect(visits, np.zeros((3, 5))))
    assert json.loads(json.dumps(dataclasses.asdict(structure)))["plates"][1]["role"] == "replicate"


# Plates at axes -1 and -3 around an unnamed axis of four and a singleton, then an event of two.
AWKWARD = Site(
    name="z",
    level="observation",
    plates=("site", "visit"),
    shape=(6, 3, 4, 2),
    event_shape=(4, 2),
    program_shape=(3, 4, 1, 6, 2),
    plate_axes=(-2, -5),
)


def test_canonical_layout_moves_plates_to_the_front():
    value = np.arange(3 * 4 * 6 * 2).reshape(AWKWARD.program_shape)
    expected = np.transpose(value[:, :, 0], (2, 0, 1, 3))
    np.testing.assert_array_equal(canonicalize(AWKWARD, value), expected)
    np.testing.assert_array_equal(restore(AWKWARD, expected), value)


def test_layouts_keep_draws_and_take_other_plate_sizes():
    value = np.arange(7 * 5 * 3 * 4 * 9 * 2).reshape(7, 5, 3, 4, 1, 9, 2)
    canonical = canonicalize(AWKWARD, jnp.asarray(value))
    assert canonical.shape == (7, 5, 9, 3, 4, 2)
    np.testing.assert_array_equal(restore(AWKWARD, canonical), value)


def test_layouts_refuse_values_that_lack_axes():
    with pytest.raises(
        ValueError, match=r"Site 'z' has shape \(3, 4, 1, 6, 2\) in the program, but the value has shape"
    ):
        canonicalize(AWKWARD, np.zeros((4, 1, 6, 2)))
    with pytest.raises(
        ValueError, match=r"Site 'z' has the canonical shape \(6, 3, 4, 2\), but the value has shape \(6,\)"
    ):
        restore(AWKWARD, np.zeros(6))


def test_the_table_names_everything():
    y = np.zeros((3, 5))
    y[0, 0] = np.nan
    text = str(hsbi.inspect(visits, y))
    assert text.splitlines()[0] == "5 sites (plate 'site'): 1 global, 1 local, 1 observation"
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["theta"].split() == ["theta", "local", "site", "5", "scalar", "Normal", "real", "mu"]
    assert "site 5, visit 3" in rows["y"]
    assert "unknowns: 1 + 1 per site x 5 sites = 6" in text
    assert "replicates: visit (3)" in text
    assert "missing in y: 1 of 15 values" in text
    table = str(hsbi.inspect(counts, np.ones((5, 4))))
    assert "covariates, one entry per site: times (5, 4)" in table
    assert "inputs of y: (5, 4)" in table
    assert "interval(0, 1)" in table


def inner(box, node):
    return box.left < node.x < box.right and box.bottom < node.y < box.top


@pytest.mark.parametrize("arguments", [(schools, SIGMA, Y), (visits, np.zeros((3, 5))), (counts, np.ones((5, 4)))])
def test_plates_in_the_diagram_hold_their_own_sites_only(arguments):
    structure = hsbi.inspect(*arguments)
    nodes, boxes = place(structure)
    for plate, box in zip(structure.plates, boxes, strict=True):
        assert box.label == f"{plate.name} ({plate.size})"
        assert {name for name, node in nodes.items() if inner(box, node)} == {
            site.name for site in structure.sites if plate.name in site.plates
        }
    places = [(node.x, node.y, node.width) for node in nodes.values()]
    for i, (x, y, width) in enumerate(places):
        for other_x, other_y, other_width in places[:i]:
            assert abs(y - other_y) > 0.6 or abs(x - other_x) >= (width + other_width) / 2


def test_plot_draws_into_given_axes_or_its_own():
    structure = hsbi.inspect(visits, np.zeros((3, 5)))
    figure, ax = plt.subplots()
    assert structure.plot(ax) is ax
    own = structure.plot()
    assert own is not ax
    texts = {text.get_text() for text in own.texts}
    assert {"mu", "theta", "y", "site (5)", "visit (3)"} <= texts
    arrows = [patch for patch in own.patches if type(patch).__name__ == "FancyArrowPatch"]
    assert len(arrows) == sum(len(site.parents) for site in structure.sites)
    plt.close(figure)
    plt.close(own.figure)

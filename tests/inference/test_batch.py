"""Sources of data sets: masks, chosen sites, and observations that belong to them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.inference.arrays import Design, ObservationShape
from hsbi.inference.batch import Batch, Observed, Stored, Synthetic, View, choose_sites
from hsbi.inference.features import fit_features
from hsbi.model.program import take_sites
from hsbi.model.transforms import compress_tails
from tests.inference.linear_gaussian import school_coordinates, school_design, school_surrogate, transform
from tests.model.programs import EFFECTS, ERRORS, NUM_SCHOOLS, schools_program
from tests.networks.weights import quick

SETS = 40
# What the location gains per unit of the covariate, with hardly any noise: an observation tells theta and covariate.
SHIFT, QUIET = 100.0, -20.0


@functools.cache
def drawn(low, high):
    source = Synthetic(
        num_sites=(low, high),
        program=schools_program(),
        coordinates=school_coordinates(),
        surrogates=(school_surrogate(SHIFT, QUIET),),
        design=school_design(ERRORS),
    )
    return quick(lambda key: source.draw(key, SETS))(jax.random.key(0))


RANGES = [(3, 6), (NUM_SCHOOLS, NUM_SCHOOLS), (5, 11)]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_shapes_and_masks_stay_in_range(low, high):
    batch = drawn(low, high)
    assert batch.index.shape == (SETS, high)
    assert batch.latents.globals.shape == (SETS, 2)
    assert batch.latents.locals.shape == (SETS, high, 1)
    assert batch.observed.values["y"].shape == (SETS, high, 1, 1, 1)
    sizes = np.sum(batch.observed.site_mask, axis=-1)
    assert (sizes.min(), sizes.max()) == (low, high)
    # Real sites come first.
    np.testing.assert_array_equal(batch.observed.site_mask, np.arange(high)[None] < sizes[:, None])


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_covariates_go_along_with_the_chosen_sites(low, high):
    batch = drawn(low, high)
    np.testing.assert_allclose(batch.observed.design.covariates[..., 0], ERRORS[np.asarray(batch.index)], rtol=1e-6)
    if high < NUM_SCHOOLS:
        assert all(len(set(row)) == high for row in np.asarray(batch.index).tolist())
        assert len({tuple(row) for row in np.asarray(batch.index).tolist()}) > SETS // 2
    if (low, high) == (NUM_SCHOOLS, NUM_SCHOOLS):
        np.testing.assert_array_equal(batch.index, np.broadcast_to(np.arange(NUM_SCHOOLS), (SETS, NUM_SCHOOLS)))


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_observations_are_those_of_the_latents_and_the_chosen_sites(low, high):
    """Without noise y is theta + SHIFT sigma, and theta is mu + tau z."""
    batch = drawn(low, high)
    mu, log_tau = np.asarray(batch.latents.globals, float).T
    theta = mu[:, None] + np.exp(log_tau)[:, None] * np.asarray(batch.latents.locals, float)[..., 0]
    expected = theta + SHIFT * ERRORS[np.asarray(batch.index)]
    found = np.asarray(transform().decode(batch.observed.values["y"]))[..., 0, 0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-1)


def test_data_sets_differ():
    batch = drawn(3, 6)
    assert len(np.unique(np.asarray(batch.latents.globals)[:, 0])) == SETS


def test_coordinates_are_relative_to_the_chosen_sites():
    """Encoding at chosen sites equals encoding the program that has only those sites."""
    batch = drawn(5, 11)
    coordinates = school_coordinates()
    latents = jax.tree.map(lambda array: array[0], batch.latents)
    program = take_sites(schools_program(), np.asarray(batch.index[0]))
    again = quick(lambda latents: coordinates.encode(program, coordinates.decode(program, latents)))(latents)
    np.testing.assert_allclose(again.locals, latents.locals, rtol=1e-3, atol=1e-3)


def test_sites_are_all_chosen_before_any_repeats_of_all():
    chosen = np.asarray(choose_sites(jax.random.key(0), 4, 8, True))
    np.testing.assert_array_equal(np.bincount(chosen), [2, 2, 2, 2])
    few = np.asarray(choose_sites(jax.random.key(1), 9, 4, True))
    assert len(set(few.tolist())) == 4
    np.testing.assert_array_equal(choose_sites(jax.random.key(1), 5, 5, False), np.arange(5))


def test_stored_batches_are_whole_rows():
    rows, sites = 7, 3
    number = jnp.arange(rows, dtype=jnp.float32)
    design = Design(jnp.broadcast_to(number[:, None, None], (rows, sites, 2)), {})
    values = {"y": jnp.broadcast_to(number[:, None, None, None, None], (rows, sites, 1, 1, 1))}
    observed = Observed(values, design, jnp.ones((rows, sites), bool))
    latents = jax.tree.map(
        lambda array: array[:rows, ..., :sites, :], drawn(3, 6).latents._replace(globals=values["y"])
    )
    batch = Batch(jnp.broadcast_to(jnp.arange(rows)[:, None], (rows, sites)), latents, observed)
    picked = Stored(batch=batch).draw(jax.random.key(0), 50)
    chosen = np.asarray(picked.index[:, 0])
    assert set(chosen.tolist()) == set(range(rows))
    for found, stored in zip(jax.tree.leaves(picked), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(found, np.asarray(stored)[chosen])


def make_view():
    shapes = (
        ObservationShape(name="x", replicates=1, points=1, width=2, parents=()),
        ObservationShape(name="y", replicates=3, points=1, width=1, parents=()),
        ObservationShape(name="f", replicates=1, points=4, width=1, parents=()),
    )
    inputs = jnp.linspace(0.0, 1.0, 4).reshape(1, 1, 4, 1)
    return View(
        shapes=shapes,
        covariates=fit_features((), jnp.asarray(ERRORS, jnp.float32)[:, None], None),
        transforms={"x": transform(width=2), "y": transform(), "f": transform()},
        inputs={name: fit_features((), jnp.zeros((1, 0)), inputs) for name in ("x", "y", "f")},
    )


def test_views_tell_single_observations_from_sets():
    rng = np.random.default_rng(0)
    data = {
        "x": jnp.asarray(rng.normal(size=(NUM_SCHOOLS, 2)), "float32"),
        "y": jnp.asarray(rng.normal(size=(NUM_SCHOOLS, 3)), "float32"),
        "f": jnp.asarray(rng.normal(size=(NUM_SCHOOLS, 4)), "float32"),
    }
    inputs = jnp.broadcast_to(jnp.linspace(0.0, 1.0, 4).reshape(1, 1, 4, 1), (NUM_SCHOOLS, 1, 4, 1))
    design = Design(school_design(ERRORS).covariates, {"f": inputs})
    view = make_view()
    observed = view.observe(data, design)
    np.testing.assert_allclose(observed.values["y"][:, :, 0, 0], (data["y"] - 3.0) / 8.0, rtol=1e-5)
    show = quick(lambda data, design: view.features(view.observe(data, design)))
    features = show(data, design)
    # Covariate and its logarithm, then x and its mean square.
    assert features.static.shape == (NUM_SCHOOLS, 5)
    np.testing.assert_allclose(
        features.static[:, 4],
        compress_tails(jnp.mean(observed.values["x"].reshape(NUM_SCHOOLS, 2) ** 2, axis=-1)),
        rtol=1e-5,
    )
    assert [tokens.values.shape[:2] for tokens in features.sets] == [(NUM_SCHOOLS, 3), (NUM_SCHOOLS, 4)]
    assert features.sets[0].values.shape[-1] == 1
    # A point has its value, features of its input, and the product of both.
    curve, expected = features.sets[1].values, view.inputs["f"].of_inputs(inputs)[:, 0]
    np.testing.assert_allclose(curve[:, :, 1:-1], expected, atol=1e-6)
    products = compress_tails(observed.values["f"][:, 0, :, 0]) * (2.0 * inputs[:, 0, :, 0] - 1.0)
    np.testing.assert_allclose(curve[:, :, -1], products, atol=1e-6)
    assert all(bool(jnp.all(tokens.mask)) for tokens in features.sets)
    order = np.array([3, 1, 0, 2, 7, 6, 5, 4])
    permuted = show({name: value[order] for name, value in data.items()}, jax.tree.map(lambda a: a[order], design))
    np.testing.assert_allclose(permuted.static, features.static[order], atol=1e-6)


def test_a_program_of_schools_is_standardized_as_given():
    view = View(
        shapes=(school_surrogate().shape,),
        covariates=fit_features((), school_design(ERRORS).covariates, None),
        transforms={"y": transform()},
        inputs={},
    )
    observed = view.observe({"y": jnp.asarray(EFFECTS, "float32")}, school_design(ERRORS))
    np.testing.assert_allclose(observed.values["y"].reshape(-1), (EFFECTS - 3.0) / 8.0, rtol=1e-5)

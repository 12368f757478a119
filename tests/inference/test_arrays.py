"""Coordinates as inverses with known centres and scales, and the layouts of observations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.arrays import (
    Latents,
    fit_coordinates,
    join,
    observation_shapes,
    observation_supports,
    read_design,
    split,
)
from hsbi.model.draws import draw_latents
from hsbi.model.program import Program
from hsbi.model.trace import bind_arguments
from tests.model.programs import ERRORS, NUM_SCHOOLS, schools_program
from tests.networks.weights import quick
from tests.tokens.structures import CASES, structure_of

# The chance that correct code fails any one of these tests.
FALSE_ALARM = 2e-5
# The draws that standardize coordinates, as the library takes them.
NUM_DRAWS = 4096


def program_of(name):
    case = CASES[name]
    return Program(
        model=case.model,
        structure=structure_of(name),
        arguments=bind_arguments(case.model, case.args, {}),
        route="resize",
    )


@functools.cache
def schools():
    program = schools_program()
    return program, fit_coordinates(program, jax.random.key(0))


def test_schools_are_standardized_by_their_prior():
    """Median and scale of Normal(0, 5), of log HalfCauchy(5) and of a standard normal, within their sampling error.

    The median of n draws has standard error 1 / (2 f sqrt n), f the density there: 1 / sqrt(2 pi) / s for a normal and
    1 / pi for the logarithm of a half-Cauchy. Half the distance of the normal's 16 % and 84 % quantiles has
    s sqrt(p (1 - 2 p) / 2) / phi(1) / sqrt n, p = 0.1587.
    """
    _, coordinates = schools()
    bound = stats.norm.isf(FALSE_ALARM / 12)
    root = np.sqrt(NUM_DRAWS)
    spread = np.sqrt(stats.norm.sf(1) * (1 - 2 * stats.norm.sf(1)) / 2) / stats.norm.pdf(1)
    assert abs(coordinates.globals.loc[0]) < bound * 5.0 / (2 * stats.norm.pdf(0)) / root
    assert abs(coordinates.globals.scale[0] - 5.0) < bound * 5.0 * spread / root
    assert abs(coordinates.globals.loc[1] - np.log(5.0)) < bound * np.pi / 2 / root
    # Quantiles of log HalfCauchy(1) are log tan(pi q / 2), and its density at u is 1 / (pi cosh u).
    half = np.log(np.tan(np.pi / 2 * stats.norm.cdf(1)))
    error = np.sqrt(stats.norm.sf(1) * (1 - 2 * stats.norm.sf(1)) / 2) * np.pi * np.cosh(half)
    assert abs(coordinates.globals.scale[1] - half) < bound * error / root
    root = np.sqrt(NUM_DRAWS * NUM_SCHOOLS)
    assert abs(coordinates.locals.loc[0]) < bound / (2 * stats.norm.pdf(0)) / root
    assert abs(coordinates.locals.scale[0] - 1.0) < bound * spread / root


def test_encode_is_standardized_and_undone_by_decode():
    program, coordinates = schools()
    values = draw_latents(program, jax.random.key(1), NUM_DRAWS)
    latents = quick(jax.vmap(functools.partial(coordinates.encode, program)))(values)
    assert latents.globals.shape == (NUM_DRAWS, 2)
    assert latents.locals.shape == (NUM_DRAWS, NUM_SCHOOLS, 1)
    # Fresh draws and those that were standardized by err independently; pi / 2 is the largest factor of a median.
    error = stats.norm.isf(FALSE_ALARM / 12) * np.sqrt(2 / NUM_DRAWS) * np.pi / 2
    np.testing.assert_allclose(np.median(latents.globals, axis=0), np.zeros(2), atol=error)
    quantiles = np.quantile(latents.globals, stats.norm.cdf([-1, 1]), axis=0)
    np.testing.assert_allclose((quantiles[1] - quantiles[0]) / 2, np.ones(2), atol=2 * error)
    again = quick(jax.vmap(functools.partial(coordinates.decode, program)))(latents)
    usable = np.asarray(values["tau"]) < 1e3
    for name, value in values.items():
        scale = np.maximum(1.0, np.asarray(values["tau"])[usable])
        scale = scale[:, None] if name == "theta" else scale
        np.testing.assert_allclose(again[name][usable] / scale, value[usable] / scale, rtol=1e-4, atol=1e-4)


def test_decode_undoes_encode_on_the_simplex():
    program = program_of("simplex")
    coordinates = fit_coordinates(program, jax.random.key(0))
    values = draw_latents(program, jax.random.key(1), 5)
    there = jax.vmap(functools.partial(coordinates.encode, program))
    back = jax.vmap(functools.partial(coordinates.decode, program))
    again = quick(lambda values: back(there(values)))(values)
    assert set(again) == set(values)
    for site, value in values.items():
        np.testing.assert_allclose(again[site], value, rtol=1e-3, atol=1e-3)


def test_join_and_split_are_inverses():
    sizes = (("a", "global", 2), ("b", "global", 1), ("c", "local", 3), ("d", "local", 1))
    rng = np.random.default_rng(0)
    given = {
        name: jnp.asarray(rng.normal(size=(size,) if level == "global" else (5, size)), "float32")
        for name, level, size in sizes
    }
    joined = join(sizes, given, 5)
    assert joined.globals.shape == (3,)
    assert joined.locals.shape == (5, 4)
    again = split(sizes, joined)
    assert set(again) == set(given)
    for name, value in given.items():
        np.testing.assert_array_equal(again[name], value)
    rejoined = join(sizes, split(sizes, Latents(joined.globals + 1.0, joined.locals)), 5)
    np.testing.assert_array_equal(rejoined.globals, joined.globals + 1.0)


def test_levels_without_latents_are_empty():
    joined = join((("a", "global", 2),), {"a": jnp.ones(2)}, 4)
    assert joined.locals.shape == (4, 0)
    joined = join((("c", "local", 2),), {"c": jnp.ones((4, 2))}, 4)
    assert joined.globals.shape == (0,)


def test_global_features_are_standardized_values():
    _, coordinates = schools()
    found = coordinates.global_features({"mu": jnp.asarray(3.0), "tau": jnp.asarray(2.0)})
    expected = (np.array([3.0, 2.0]) - coordinates.values.loc) / coordinates.values.scale
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert coordinates.names("global") == ("mu", "tau")
    assert (coordinates.dim("global"), coordinates.dim("local")) == (2, 1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eight schools", {"y": (1, 1, 1)}),
        ("correlations", {"y": (1, 1, 3)}),
        ("replicates", {"y": (3, 1, 1)}),
        ("own plane inputs", {"y": (1, 5, 1)}),
        ("long events", {"y": (1, 1, 20)}),
        ("two observations", {"x": (1, 1, 1), "y": (1, 1, 2)}),
    ],
)
def test_observations_are_laid_out_as_replicates_points_and_width(name, expected):
    shapes = observation_shapes(structure_of(name))
    assert {shape.name: (shape.replicates, shape.points, shape.width) for shape in shapes} == expected


def test_layouts_of_tokens_and_of_networks_agree():
    """Both count the observations of a site alike."""
    from hsbi.tokens import make_layout

    for name in CASES:
        layout = make_layout(structure_of(name))
        counts = {variable.name: (variable.rows, variable.size) for variable in layout.of_level("observation")}
        assert counts == {s.name: (s.num_tokens, s.width) for s in observation_shapes(structure_of(name))}


@pytest.mark.parametrize("name", ["inputs", "shared plane inputs", "own plane inputs"])
def test_functional_inputs_are_read_for_every_point(name):
    program = program_of(name)
    design = read_design(program)
    times = np.asarray(CASES[name].args[0])
    dims = 1 if name == "inputs" else 2
    expected = np.broadcast_to(times.reshape(-1, 5, dims), (4, 5, dims))[:, None]
    np.testing.assert_allclose(design.inputs["y"], expected, rtol=1e-6)


def test_covariates_of_schools_are_their_errors():
    design = read_design(schools()[0])
    np.testing.assert_allclose(design.covariates, ERRORS[:, None])
    assert design.inputs == {}


def test_supports_are_those_of_the_distributions():
    from numpyro.distributions import constraints

    assert observation_supports(schools()[0]) == {"y": constraints.real}

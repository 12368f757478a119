import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.model.coordinates import log_prior
from hsbi.model.data import observed_data, site_covariates
from hsbi.model.draws import draw_latents
from hsbi.model.program import Program, map_leaves, take_sites, with_num_sites
from hsbi.model.rows import chunk
from tests.model.programs import EFFECTS, ERRORS, schools_program


@pytest.fixture(scope="module")
def schools() -> Program:
    return schools_program()


def test_taken_sites_have_their_own_arguments(schools):
    index = np.array([6, 1, 1])
    taken = take_sites(schools, index)
    assert taken.num_sites == 3
    assert taken.structure["theta"].shape == taken.structure["theta"].program_shape == (3,)
    assert isinstance(taken.arguments["sigma"], np.ndarray)
    np.testing.assert_array_equal(taken.arguments["sigma"], ERRORS[index])
    data, mask = observed_data(taken)
    np.testing.assert_array_equal(data["y"], EFFECTS[index])
    assert mask["y"].all()


def test_index_may_be_traced_and_mapped(schools):
    @jax.jit
    @jax.vmap
    def covariates(index):
        return site_covariates(take_sites(schools, index))[0]

    index = np.array([[0, 3], [7, 2], [5, 5]])
    np.testing.assert_array_equal(covariates(index)[..., 0], ERRORS[index])


def test_a_program_is_a_pytree_that_compiles_once(schools):
    traces = []

    @jax.jit
    def density(program, coordinates):
        traces.append(program)
        return log_prior(program, coordinates), site_covariates(program)[0]

    coordinates = {"mu": jnp.zeros(1), "tau": jnp.zeros(1), "theta": jnp.zeros((8, 1))}
    density(schools, coordinates)
    other = dataclasses.replace(schools, arguments={"sigma": 2.0 * ERRORS, "y": EFFECTS})
    np.testing.assert_array_equal(density(other, coordinates)[1][:, 0], 2.0 * ERRORS)
    assert len(traces) == 1
    density(take_sites(schools, np.arange(3)), {**coordinates, "theta": jnp.zeros((3, 1))})
    assert len(traces) == 2


def test_a_program_that_cannot_be_resized_keeps_its_arguments_static(schools):
    program = dataclasses.replace(schools, route="pick", reason="its arrays are of one size.")
    assert jax.tree.leaves(program) == []
    assert jax.tree.map(lambda leaf: leaf, program).arguments["sigma"] is ERRORS
    with pytest.raises(ValueError, match="another number of sites: its arrays are of one size"):
        take_sites(program, np.arange(2))


def test_index_must_be_a_vector(schools):
    with pytest.raises(ValueError, match=r"site index has shape \(2, 1\), expected an integer vector"):
        take_sites(schools, np.zeros((2, 1), int))


def test_structure_at_its_own_size_is_the_same(schools):
    assert with_num_sites(schools.structure, 8) is schools.structure
    assert with_num_sites(with_num_sites(schools.structure, 3), 8) == schools.structure


def test_paths_name_nested_arguments():
    paths = []
    map_leaves(lambda path, leaf: paths.append(path), {"data": {"x": 1.0, "list": [2.0, None]}, "y": 3.0})
    assert sorted(paths) == ["data['list'][0]", "data['list'][1]", "data['x']", "y"]


def test_draws_are_functions_of_key_and_number(schools):
    few, many = (draw_latents(schools, jax.random.key(1), count) for count in (3, 7))
    assert {name: value.shape for name, value in many.items()} == {"mu": (7,), "tau": (7,), "theta": (7, 8)}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[:3], rtol=1e-5), few, many)
    assert len(np.unique(many["theta"])) == 56


@pytest.mark.parametrize(("total", "most", "sizes"), [(12, 5, {4}), (13, 5, {5, 3}), (7, 100, {7}), (10, 10, {10})])
def test_chunks_cover_every_row_once(total, most, sizes):
    chunks = list(chunk(total, most))
    assert [number for part in chunks for number in part] == list(range(total))
    assert {len(part) for part in chunks} == sizes

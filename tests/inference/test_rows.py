"""Rows of simulations: looked up where they are, and encoded as they were simulated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.inference.arrays import ObservationShape
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.rows import Raw, reshape_in_place, usable_rows
from hsbi.inference.surrogate import Surrogate
from hsbi.inference.surrogate_fit import _encode
from tests.inference.linear_gaussian import TINY, identity, transform

SITES, REPLICATES, POINTS, WIDTH, PARAMETERS = 4, 3, 5, 2, 6


def make_rows(simulations=7):
    """Give rows whose numbers say where they come from, and an unfitted surrogate of them."""
    rng = np.random.default_rng(0)
    features = ParameterFeatures(
        names=("x",),
        positive=(),
        scaling=identity(PARAMETERS),
        input_low=jnp.zeros(1),
        input_range=jnp.full(1, 100.0),
    )
    shape = ObservationShape(name="y", replicates=REPLICATES, points=POINTS, width=WIDTH, parents=("x",))
    surrogate = Surrogate.unfitted(shape, TINY, features, transform(0.0, 1.0, WIDTH))
    rows = Raw(
        parameters=jnp.asarray(rng.normal(size=(simulations, PARAMETERS)), jnp.float32),
        site=jnp.asarray(rng.integers(0, SITES, simulations)),
        inputs=jnp.asarray(rng.uniform(0, 100, size=(SITES, REPLICATES, POINTS, 1)), jnp.float32),
        values=jnp.asarray(rng.normal(size=(simulations * REPLICATES, POINTS, WIDTH)), jnp.float32),
        weights=jnp.asarray(rng.uniform(size=simulations), jnp.float32),
    )
    return rows, surrogate


def test_a_row_is_one_replicate_of_its_simulation():
    rows, surrogate = make_rows()
    index = np.asarray([20, 0, 13, 5])
    found = _encode(rows, index, surrogate, jax.random.key(0))
    np.testing.assert_array_equal(found.simulation, [6, 0, 4, 1])
    np.testing.assert_array_equal(rows.simulation[index], found.simulation)
    for row, (simulation, replicate) in enumerate([(6, 2), (0, 0), (4, 1), (1, 2)]):
        np.testing.assert_allclose(found.values[row], rows.values[REPLICATES * simulation + replicate], rtol=1e-6)
        np.testing.assert_array_equal(found.weights[row], rows.weights[simulation])
        np.testing.assert_allclose(found.features[row, 3, :PARAMETERS], rows.parameters[simulation], rtol=1e-6)
        inputs = rows.inputs[rows.site[simulation], replicate]
        expected = surrogate.features.of_inputs(inputs)
        np.testing.assert_allclose(found.features[row, :, PARAMETERS:], expected, rtol=1e-5, atol=1e-6)


def test_rows_are_usable_if_all_their_numbers_are():
    rows, surrogate = make_rows()
    rows = rows._replace(values=rows.values.at[4, 1, 0].set(jnp.nan), parameters=rows.parameters.at[5, 2].set(jnp.inf))
    found = np.asarray(usable_rows(rows, surrogate, jax.random.key(0)))
    np.testing.assert_array_equal(np.flatnonzero(~found), [4, 15, 16, 17])


def test_an_array_is_reshaped_without_a_copy():
    array = jnp.arange(24.0).reshape(4, 6)
    found = reshape_in_place(array, (4, 3, 2))
    np.testing.assert_array_equal(found, np.arange(24.0).reshape(4, 3, 2))
    if jax.default_backend() == "cpu":
        assert found.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()


@pytest.mark.parametrize(
    "function", [usable_rows, lambda rows, surrogate, key: rows.encode(jnp.arange(9), surrogate, key)]
)
def test_compiled_code_that_looks_rows_up_holds_no_copy_of_them(function):
    """Negative control: one more array of the size of the rows would be seen."""

    def temporary(simulations, own):
        rows, surrogate = make_rows(simulations)
        compiled = jax.jit(own).lower(rows, surrogate, jax.random.key(0)).compile()
        return compiled.memory_analysis().temp_size_in_bytes, rows.values.nbytes

    def slope(own):
        small, large = temporary(20_000, own), temporary(60_000, own)
        return (large[0] - small[0]) / (large[1] - small[1])

    def copying(rows, surrogate, key):
        return function(rows._replace(values=jnp.sort(rows.values, axis=0)), surrogate, key)

    assert slope(function) < 0.3
    assert slope(copying) > 0.9

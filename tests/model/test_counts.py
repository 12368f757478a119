"""Whole numbers survive the cast, and what is none can be told."""

import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.model.counts import encode_counts, find_fractions, whole_below

DTYPE = np.dtype("int32")
LOWEST = np.iinfo(DTYPE).min


def test_whole_numbers_stay_and_others_are_marked():
    value = jnp.array([0.0, 3.0, -2.0, 2.0**24, 0.25, -0.5, 1e9 + 0.5, jnp.nan, jnp.inf, -jnp.inf, 1e20])
    found = np.asarray(encode_counts(value, DTYPE))
    # In single precision 1e9 + 0.5 is 1e9.
    np.testing.assert_array_equal(found[:4], [0, 3, -2, 2**24])
    np.testing.assert_array_equal(found[6:], [10**9, *[LOWEST] * 4])
    np.testing.assert_array_equal(find_fractions(found), [i in (4, 5) for i in range(11)])
    assert [whole_below(code) for code in found[4:6]] == [0, -1]


@pytest.mark.parametrize("value", [-(2.0**20) - 0.5, -7.75, 0.5, 12.125, 2.0**20 - 0.5, 2.0**22 + 0.5])
def test_fractions_tell_between_which_numbers_they_lie(value):
    code = np.asarray(encode_counts(jnp.array([value], jnp.float32), DTYPE))
    assert find_fractions(code).all()
    assert whole_below(code[0]) == np.clip(np.floor(value), -(2**20), 2**20)

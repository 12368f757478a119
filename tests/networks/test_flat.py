"""The field without attention takes what the joint field takes, and sees every real token."""

import numpy as np
import pytest

from hsbi.networks.flat import FlatField
from tests.networks.weights import quick, random_weights

BATCH, TOKENS, PARAMETERS, DIM, INPUTS = 2, 7, 3, 4, 2
_RNG = np.random.default_rng(0)
VALUES = _RNG.normal(size=(BATCH, TOKENS, DIM)).astype(np.float32)
GIVEN = _RNG.uniform(size=(BATCH, TOKENS, INPUTS)).astype(np.float32)
TIMES = np.array([0.2, 0.7], np.float32)
MASK = np.ones((BATCH, TOKENS), bool)
FIELDS = tuple(np.zeros(TOKENS, int) for _ in range(3))


@pytest.fixture(scope="module")
def field():
    module = FlatField(width=8, depth=2, out=DIM)
    weights = random_weights(module, VALUES, GIVEN, MASK, TIMES, FIELDS, PARAMETERS)
    return quick(lambda *args: module.apply(weights, *args, PARAMETERS))


def test_every_token_and_time_matters(field):
    base = field(VALUES, GIVEN, MASK, TIMES, FIELDS)
    assert base.shape == (BATCH, PARAMETERS, DIM)
    for token in range(TOKENS):
        moved = VALUES.copy()
        moved[1, token] += 0.5
        change = np.abs(field(moved, GIVEN, MASK, TIMES, FIELDS) - base)
        assert change[0].max() == 0
        assert change[1].max() > 1e-3
    assert np.abs(field(VALUES, GIVEN + 0.5, MASK, TIMES, FIELDS) - base).max() > 1e-3
    assert np.abs(field(VALUES, GIVEN, MASK, TIMES + 0.2, FIELDS) - base).max() > 1e-3


def test_masked_tokens_do_not_matter(field):
    mask = MASK.copy()
    mask[:, [2, 5]] = False
    garbage = np.where(mask[..., None], VALUES, 1e3).astype(np.float32)
    expected = field(VALUES, GIVEN, mask, TIMES, FIELDS)
    np.testing.assert_array_equal(field(garbage, GIVEN, mask, TIMES, FIELDS), expected)
    assert np.abs(field(VALUES, GIVEN, MASK, TIMES, FIELDS) - expected).max() > 1e-3

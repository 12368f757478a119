"""Token embeddings use every field, and the joint field treats tokens as a set."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.networks.embedding import JointField, TokenEmbedding
from tests.networks.weights import quick, random_weights

BATCH, TOKENS, PARAMETERS, DIM, INPUTS, WIDTH = 2, 7, 3, 4, 2, 8
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
_RNG = np.random.default_rng(0)
VALUES = _RNG.normal(size=(BATCH, TOKENS, DIM)).astype(np.float32)
GIVEN = _RNG.uniform(size=(BATCH, TOKENS, INPUTS)).astype(np.float32)
TIMES = np.array([0.2, 0.7], np.float32)
# One global, the locals of two sites, and two observations of each of them.
FIELDS = (np.array([0, 1, 1, 2, 2, 2, 2]), np.array([0, 0, 0, 0, 1, 0, 1]), np.array([0, 1, 2, 1, 1, 2, 2]))


def embedding(num_groups=3, dtype="float32"):
    return TokenEmbedding(width=WIDTH, num_variables=3, num_positions=2, num_groups=num_groups, dtype=dtype)


@functools.cache
def apply_embedding(num_groups=3):
    module = embedding(num_groups)
    weights = random_weights(module, VALUES, GIVEN, TIMES, FIELDS)
    return quick(lambda *args: module.apply(weights, *args))


def with_field(number, token, value):
    changed = [field.copy() for field in FIELDS]
    changed[number][token] = value
    return tuple(changed)


CHANGES = {
    "value": lambda: (VALUES + 0.5, GIVEN, TIMES, FIELDS),
    "inputs": lambda: (VALUES, GIVEN + 0.1, TIMES, FIELDS),
    "time": lambda: (VALUES, GIVEN, TIMES + 0.1, FIELDS),
    "variable": lambda: (VALUES, GIVEN, TIMES, with_field(0, 4, 1)),
    "position": lambda: (VALUES, GIVEN, TIMES, with_field(1, 4, 0)),
    "group": lambda: (VALUES, GIVEN, TIMES, with_field(2, 4, 2)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_enters_the_embedding(name):
    change = np.abs(apply_embedding()(*CHANGES[name]()) - apply_embedding()(VALUES, GIVEN, TIMES, FIELDS))
    assert np.all(np.max(change[:, 4], axis=-1) > 1e-3)
    if name in ("variable", "position", "group"):
        assert np.max(np.delete(change, 4, axis=1)) == 0


def test_without_groups_the_group_does_not_matter():
    base = apply_embedding(0)(VALUES, GIVEN, TIMES, FIELDS)
    np.testing.assert_array_equal(apply_embedding(0)(*CHANGES["group"]()), base)
    assert np.max(np.abs(apply_embedding(0)(*CHANGES["position"]()) - base)) > 1e-3


def test_no_functional_inputs_are_fine():
    args = (VALUES, GIVEN[..., :0], TIMES, FIELDS)
    shape = jax.eval_shape(lambda: embedding().init_with_output(jax.random.key(0), *args)[0])
    assert shape.shape == (BATCH, TOKENS, WIDTH)


@functools.cache
def joint(dtype="float32"):
    module = JointField(embedding(dtype=dtype), num_blocks=2, heads=2, out=DIM, dtype=dtype)
    mask = np.ones((BATCH, TOKENS), bool)
    weights = random_weights(module, VALUES, GIVEN, mask, TIMES, FIELDS, PARAMETERS)
    return quick(lambda *args: module.apply(weights, *args, PARAMETERS)), mask


def test_only_parameters_get_a_velocity():
    field, mask = joint()
    assert field(VALUES, GIVEN, mask, TIMES, FIELDS).shape == (BATCH, PARAMETERS, DIM)


def test_the_order_of_tokens_does_not_matter():
    """Permute observations, and the two locals, each with its fields: velocities go along with their tokens."""
    field, mask = joint()
    order = np.array([0, 2, 1, 6, 3, 5, 4])
    moved = field(
        VALUES[:, order], GIVEN[:, order], mask[:, order], TIMES, tuple(np.asarray(row)[order] for row in FIELDS)
    )
    expected = field(VALUES, GIVEN, mask, TIMES, FIELDS)
    np.testing.assert_allclose(moved, expected[:, order[:PARAMETERS]], **TOLERANCE)
    # Negative control: values that move without their groups are other data.
    torn = field(VALUES[:, order], GIVEN[:, order], mask[:, order], TIMES, FIELDS)
    assert np.max(np.abs(torn - expected[:, order[:PARAMETERS]])) > 1e-3


def test_swapping_sites_and_group_embeddings_swaps_the_answers():
    """A group label means nothing but its row of the table."""
    module = JointField(embedding(), num_blocks=1, heads=2, out=DIM)
    mask = np.ones((BATCH, TOKENS), bool)
    weights = random_weights(module, VALUES, GIVEN, mask, TIMES, FIELDS, PARAMETERS)
    apply = quick(module.apply, static_argnums=6)
    expected = apply(weights, VALUES, GIVEN, mask, TIMES, FIELDS, PARAMETERS)
    swap = np.array([0, 2, 1, 5, 6, 3, 4])
    table = weights["params"]["embedding"]["group"]["embedding"]
    weights["params"]["embedding"]["group"]["embedding"] = table[np.array([0, 2, 1])]
    found = apply(weights, VALUES[:, swap], GIVEN[:, swap], mask, TIMES, FIELDS, PARAMETERS)
    np.testing.assert_allclose(found, expected[:, np.array([0, 2, 1])], **TOLERANCE)


def test_masked_tokens_change_no_velocity():
    field, mask = joint()
    mask = mask.copy()
    mask[:, [2, 5, 6]] = False
    garbage = np.where(mask[..., None], VALUES, 1e3)
    real = np.array([0, 1])
    expected = field(VALUES, GIVEN, mask, TIMES, FIELDS)[:, real]
    np.testing.assert_allclose(field(garbage, GIVEN, mask, TIMES, FIELDS)[:, real], expected, **TOLERANCE)
    assert np.max(np.abs(field(VALUES, GIVEN, np.ones_like(mask), TIMES, FIELDS)[:, real] - expected)) > 1e-3


def test_bfloat16_returns_float32():
    field, mask = joint("bfloat16")
    found = field(VALUES, GIVEN, mask, TIMES, FIELDS)
    assert found.dtype == jnp.float32
    full, _ = joint()
    error = np.max(np.abs(found - full(VALUES, GIVEN, mask, TIMES, FIELDS)))
    assert 0 < error < 0.2

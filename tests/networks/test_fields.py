"""Velocity fields start at zero, and points see each other only where they are real."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.networks.fields import MLPField, PointField
from hsbi.networks.mlp import broadcast_features, time_features
from tests.networks.weights import quick, random_weights

BATCH, POINTS, DIM, CONTEXT = 4, 5, 2, 3
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(BATCH, POINTS, DIM)).astype(np.float32)
SEEN = _RNG.normal(size=(BATCH, POINTS, CONTEXT)).astype(np.float32)
TIMES = np.linspace(0.1, 0.9, BATCH, dtype=np.float32)


@pytest.mark.parametrize(
    ("module", "x", "context", "dtype"),
    [(MLPField, X[:, 0], SEEN[:, 0], "float32"), (PointField, X, SEEN, "bfloat16")],
    ids=["vector", "points in bfloat16"],
)
def test_fields_start_at_exactly_zero(module, x, context, dtype):
    field = module(DIM, 8, dtype=dtype)
    velocity, _ = quick(field.init_with_output)(jax.random.key(0), x, TIMES, context)
    assert velocity.dtype == jnp.float32
    np.testing.assert_array_equal(velocity, np.zeros(x.shape))


def test_vector_field_depends_on_value_time_and_context():
    field = MLPField(DIM, 8)
    x, context = X[:, 0], SEEN[:, 0]
    weights = random_weights(field, x, TIMES, context)
    apply = quick(field.apply)
    base = apply(weights, x, TIMES, context)
    for changed in ((x + 0.1, TIMES, context), (x, TIMES + 0.1, context), (x, TIMES, context + 0.1)):
        assert np.all(np.max(np.abs(apply(weights, *changed) - base), axis=-1) > 1e-4)


def test_a_scalar_time_and_a_shared_context_are_those_of_every_row():
    """Contexts with fewer axes belong to the leading ones."""
    field = MLPField(DIM, 8)
    weights = random_weights(field, X, TIMES, SEEN[:, 0])
    found = quick(field.apply)(weights, X, jnp.asarray(0.3), SEEN[:, 0])
    repeated = np.repeat(SEEN[:, :1], POINTS, axis=1)
    expected = quick(field.apply)(weights, X, np.full((BATCH, POINTS), 0.3, np.float32), repeated)
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_points_ignore_masked_points_and_their_order():
    field = PointField(DIM, 8, heads=2)
    everything = np.ones((BATCH, POINTS), bool)
    weights = random_weights(field, X, TIMES, SEEN, everything)
    apply = quick(field.apply)
    expected = apply(weights, X, TIMES, SEEN, everything)
    mask = np.broadcast_to(np.arange(POINTS) < 3, (BATCH, POINTS))
    masked = apply(weights, X, TIMES, SEEN, mask)
    garbage = apply(weights, np.where(mask[..., None], X, 1e3), TIMES, np.where(mask[..., None], SEEN, -1e3), mask)
    np.testing.assert_allclose(garbage[:, :3], masked[:, :3], **TOLERANCE)
    assert np.max(np.abs(masked[:, :3] - expected[:, :3])) > 1e-3
    order = np.array([4, 1, 0, 2, 3])
    permuted = apply(weights, X[:, order], TIMES, SEEN[:, order], everything)
    np.testing.assert_allclose(permuted, expected[:, order], **TOLERANCE)


def test_time_features_by_hand():
    found = time_features(TIMES, X)
    assert found.shape == (BATCH, POINTS, 9)
    angles = np.pi * np.arange(1, 5) * TIMES[2]
    np.testing.assert_allclose(found[2, 1], [TIMES[2], *np.sin(angles), *np.cos(angles)], **TOLERANCE)


def test_broadcast_features_aligns_leading_axes():
    found = broadcast_features([X, SEEN[:, 0]], X.shape[:-1])
    np.testing.assert_array_equal(found[..., :DIM], X)
    np.testing.assert_array_equal(found[..., DIM:], np.repeat(SEEN[:, :1], POINTS, axis=1))

"""The residual network's start, types and compression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.networks.mlp import ResidualMLP, compress
from tests.networks.weights import quick, random_weights

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_output_is_float32_and_starts_at_zero_if_asked(dtype):
    module = ResidualMLP(8, 2, 5, zero=True, dtype=dtype)
    out, weights = quick(module.init_with_output)(jax.random.key(0), X)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, np.zeros((2, 3, 5)))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(weights))
    free = quick(module.apply)(random_weights(module, X), X)
    assert np.all(np.ptp(np.asarray(free).reshape(-1, 5), axis=0) > 0)


def test_depth_counts_hidden_layers():
    weights = random_weights(ResidualMLP(8, 3, 5), X)
    kernels = [leaf.shape for leaf in jax.tree.leaves(weights) if leaf.ndim == 2]
    assert sorted(kernels) == [(4, 8), (8, 5), (8, 8), (8, 8)]


def test_compress_is_linear_inside_and_logarithmic_outside():
    np.testing.assert_allclose(compress(jnp.asarray([0.0, 1e-3, -1e-3])), [0.0, 1e-3, -1e-3], rtol=1e-5)
    np.testing.assert_allclose(compress(jnp.asarray([1e4, -1e4])), [np.log(2e4), -np.log(2e4)], rtol=1e-5)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.networks.triangular import cholesky, solve_lower, solve_upper


@pytest.mark.parametrize("dim", [1, 2, 5, 9])
def test_factors_and_solves_agree_with_numpy(dim):
    rng = np.random.default_rng(dim)
    root = rng.normal(size=(4, 3, dim, dim))
    matrix = root @ np.swapaxes(root, -1, -2) + np.eye(dim)
    target = rng.normal(size=(4, 3, dim))
    expected = np.linalg.cholesky(matrix)
    factor = jax.jit(cholesky)(jnp.asarray(matrix, "float32"))
    np.testing.assert_allclose(factor, expected, rtol=1e-4, atol=1e-4)
    lower = np.linalg.solve(expected, target[..., None])[..., 0]
    upper = np.linalg.solve(np.swapaxes(expected, -1, -2), target[..., None])[..., 0]
    np.testing.assert_allclose(solve_lower(factor, jnp.asarray(target, "float32")), lower, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(solve_upper(factor, jnp.asarray(target, "float32")), upper, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1e3, 1e5])
def test_known_eigenvalues_survive_cancellation(size):
    slopes = jnp.asarray([[size, size, size], [size, -size, 0.5 * size]], "float32")
    matrix = jnp.eye(3) + slopes.T @ slopes
    factor = cholesky(matrix, min_eigenvalue=1.0)
    assert bool(jnp.all(jnp.diagonal(factor) >= 1.0))
    np.testing.assert_allclose(factor @ factor.T, matrix, rtol=1e-5, atol=2e-6 * size**2)

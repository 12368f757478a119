"""Gaussians against scipy."""

import jax
import numpy as np
import pytest
from scipy import stats

from hsbi.networks.heads import Gaussian, GaussianHead, color, marginal_scale, negative_log_density, whiten
from tests.networks.weights import quick, random_weights

ROWS, DIM = 4, 3
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def gaussian(full):
    rng = np.random.default_rng(0)
    loc, log_scale = rng.normal(size=(2, ROWS, DIM)).astype(np.float32)
    lower = np.tril(rng.normal(size=(ROWS, DIM, DIM)), -1).astype(np.float32) if full else None
    return Gaussian(loc, log_scale, lower)


def covariance(found, row):
    """Give the covariance of x = loc + scale * r with U r standard normal."""
    unit = np.eye(DIM) + (0 if found.lower is None else found.lower[row])
    root = np.diag(np.exp(found.log_scale[row])) @ np.linalg.inv(unit)
    return root @ root.T


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_density_is_that_of_a_multivariate_normal(full):
    found = gaussian(full)
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype(np.float32)
    expected = [-stats.multivariate_normal(found.loc[i], covariance(found, i)).logpdf(x[i]) for i in range(ROWS)]
    density = negative_log_density(found, x) + 0.5 * DIM * np.log(2 * np.pi)
    np.testing.assert_allclose(density, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_color_undoes_whiten(full):
    found = gaussian(full)
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype(np.float32)
    np.testing.assert_allclose(color(found, whiten(found, x)), x, **TOLERANCE)
    np.testing.assert_allclose(whiten(found, color(found, x)), x, **TOLERANCE)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_colored_noise_has_the_covariance(full):
    """The Jacobian of `color` is a root of the covariance."""
    found = jax.tree.map(lambda array: array[0], gaussian(full))
    root = np.asarray(jax.jacobian(lambda residual: color(found, residual))(np.zeros(DIM, np.float32)))
    np.testing.assert_allclose(root @ root.T, covariance(gaussian(full), 0), **TOLERANCE)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_marginal_scale_is_the_root_of_the_variance(full):
    found = gaussian(full)
    expected = [np.sqrt(np.diagonal(covariance(found, row))) for row in range(ROWS)]
    np.testing.assert_allclose(marginal_scale(found), expected, **TOLERANCE)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_head_starts_at_the_standard_normal(full):
    context = np.random.default_rng(2).normal(size=(2, ROWS, 5)).astype(np.float32)
    module = GaussianHead(DIM, width=8, full=full)
    found, _ = quick(module.init_with_output)(jax.random.key(0), context)
    for array in jax.tree.leaves(found):
        np.testing.assert_array_equal(array, np.zeros_like(array))
    assert (found.lower is None) == (not full)


def test_log_scales_are_bounded():
    """A head pushed far out must not overflow."""
    context = np.full((ROWS, 2), 1e6, np.float32)
    module = GaussianHead(DIM, width=8)
    weights = jax.tree.map(np.ones_like, random_weights(module, context))
    found = quick(module.apply)(weights, context)
    np.testing.assert_array_equal(found.log_scale, np.full((ROWS, DIM), 9.0))

"""Densities of proposals in compiled code against SciPy: fused sums of such shapes were seen to compile wrongly."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from hsbi.inference.linearize import Linearized
from hsbi.inference.proposals import Normals
from hsbi.inference.reweigh import _find_gap, _log_kernels, _neighborhoods

PARTS, SITES, DIM, NUMBER = 33, 50, 2, 64


def factors(rng, *shape):
    lower = np.tril(rng.normal(size=(*shape, DIM, DIM)))
    return (lower + np.eye(DIM) * (0.5 - lower + np.abs(lower))).astype("float32")


def test_the_density_of_normals_is_that_of_a_mixture():
    rng = np.random.default_rng(0)
    factor, mean = factors(rng, PARTS, SITES), rng.normal(size=(PARTS, SITES, DIM)).astype("float32")
    shares = rng.dirichlet(np.ones(PARTS), size=SITES).T.astype("float32")
    normals = Normals(jnp.log(shares), Linearized(jnp.asarray(mean), jnp.asarray(factor)))
    points = rng.normal(size=(NUMBER, SITES, DIM)).astype("float32")
    found = np.asarray(jax.jit(Normals.log_prob)(normals, jnp.asarray(points)))
    for site in (0, 17):
        parts = [
            multivariate_normal(mean[k, site], np.linalg.inv(factor[k, site] @ factor[k, site].T)).logpdf(
                points[:, site]
            )
            for k in range(PARTS)
        ]
        expected = logsumexp(np.stack(parts) + np.log(shares[:, site])[:, None], axis=0)
        np.testing.assert_allclose(found[:, site], expected, rtol=1e-3, atol=1e-3)


def test_kernels_have_the_density_of_normals():
    rng = np.random.default_rng(1)
    factor, centers = factors(rng, 512), rng.normal(size=(512, DIM)).astype("float32")
    points = rng.normal(size=(NUMBER, DIM)).astype("float32")
    found = np.asarray(jax.jit(_log_kernels)(jnp.asarray(points), jnp.asarray(centers), jnp.asarray(factor)))
    parts = [multivariate_normal(centers[k], factor[k] @ factor[k].T).logpdf(points) for k in range(512)]
    expected = logsumexp(parts, axis=0) + 0.5 * DIM * np.log(2 * np.pi)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_members_on_the_same_side_of_gaps_share_a_covariance():
    rng = np.random.default_rng(2)
    sign = rng.choice([-1.0, 1.0], size=(400, DIM))
    population = (sign * [3.0, 2.0] + rng.normal(size=(400, DIM)) @ [[0.3, 0.1], [0.0, 0.2]]).astype("float32")
    means, found = (np.asarray(array) for array in jax.jit(_neighborhoods)(jnp.asarray(population)))
    own = np.all(sign == sign[0], axis=1)
    np.testing.assert_allclose(means[0], population[own].mean(0), rtol=1e-4)
    np.testing.assert_allclose(found[0] @ found[0].T, np.cov(population[own].T, ddof=0), rtol=1e-2, atol=1e-4)


def test_one_mode_has_no_gap():
    rng = np.random.default_rng(3)
    for values in (rng.normal(size=400), rng.uniform(size=400), rng.exponential(size=400)):
        assert not _find_gap(jnp.asarray(values, "float32"))[1]

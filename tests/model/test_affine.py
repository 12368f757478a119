import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms

from hsbi.model.affine import conditional_affine
from hsbi.model.bijections import unconstrain

NUM_DRAWS = 40_000
# Six standard errors; the fourth moments of these distributions stay below 9 standard deviations to the fourth.
MEAN_BOUND, SD_BOUND = 6.0 / np.sqrt(NUM_DRAWS), 6.0 * np.sqrt(8.0 / (4.0 * NUM_DRAWS))

EXACT = {
    "normal": dist.Normal(jnp.array([2.0, -1.0]), 3.0),
    "log_normal": dist.LogNormal(1.0, jnp.array([0.4, 0.9])),
    "half_normal": dist.HalfNormal(jnp.array([3.0, 0.1])),
    "half_cauchy": dist.HalfCauchy(jnp.array([5.0, 1.0])),
    "gamma": dist.Gamma(jnp.array([0.7, 5.0]), 2.0),
    "inverse_gamma": dist.InverseGamma(jnp.array([3.0, 1.0]), 2.0),
    "exponential": dist.Exponential(jnp.array([0.2, 7.0])),
    "weibull": dist.Weibull(jnp.array([2.0, 1.0]), 1.5),
    "beta": dist.Beta(jnp.array([2.0, 1.0]), 5.0),
    "uniform": dist.Uniform(-1.0, jnp.array([4.0, 9.0])),
    "logit_normal": dist.TransformedDistribution(
        dist.Normal(jnp.array([0.5, 1.0]), 0.8), transforms.SigmoidTransform()
    ),
    "affine": dist.TransformedDistribution(
        dist.Normal(jnp.array([0.5, 1.0]), 0.8), transforms.AffineTransform(3.0, -2.0)
    ),
    "wrapped": dist.Normal(2.0, 3.0).expand([2]).mask(False),
    "event": dist.Normal(jnp.array([[2.0], [5.0]]), 3.0).expand([2, 4]).to_event(1),
    "multivariate": dist.MultivariateNormal(jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.6], [0.6, 0.5]])).expand([2]),
    "cholesky_affine": dist.TransformedDistribution(
        dist.Normal(1.0, 2.0).expand([2, 2]).to_event(1),
        transforms.LowerCholeskyAffine(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.0], [0.5, 2.0]])),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_closed_forms_standardize_draws(name):
    fn = EXACT[name]

    @jax.jit
    def standardize(key):
        raw = unconstrain(fn.support, fn.sample(key, (NUM_DRAWS,)))
        affine = conditional_affine(fn, raw.shape[1:])
        z = jax.vmap(affine.inverse)(raw)
        return z, jnp.max(jnp.abs(jax.vmap(affine.forward)(z) - raw) / (1.0 + jnp.abs(raw)))

    z, error = standardize(jax.random.key(0))
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=MEAN_BOUND)
    np.testing.assert_allclose(z.std(axis=0), 1.0, atol=SD_BOUND)
    assert error < 1e-5


@pytest.mark.parametrize("fn", [dist.TruncatedNormal(1.0, 2.0, low=0.0), dist.LogUniform(0.1, 10.0)])
def test_quantiles_put_the_median_at_zero_and_68_percent_within_one(fn):
    affine = conditional_affine(fn, ())
    low, middle, high = (
        float(affine.inverse(unconstrain(fn.support, fn.icdf(q)))) for q in (0.15865525, 0.5, 0.84134475)
    )
    assert middle == pytest.approx(0.0, abs=1e-4)
    assert high - low == pytest.approx(2.0, rel=1e-3)


def test_moments_serve_where_nothing_else_does():
    fn = dist.LowRankMultivariateNormal(jnp.array([1.0, -3.0]), jnp.ones((2, 1)), jnp.array([3.0, 8.0]))
    affine = conditional_affine(fn, (2,))
    np.testing.assert_allclose(affine.loc, [1.0, -3.0])
    np.testing.assert_allclose(affine.scale, [2.0, 3.0], rtol=1e-6)


def test_what_is_not_finite_becomes_the_identity():
    loc, scale = jnp.array([jnp.nan, 1.0]), jnp.array([2.0, jnp.inf])
    bad = conditional_affine(dist.Normal(loc, scale, validate_args=False), (2,))
    np.testing.assert_array_equal(bad.loc, [0.0, 1.0])
    np.testing.assert_array_equal(bad.scale, [2.0, 1.0])
    singular = conditional_affine(
        dist.MultivariateNormal(jnp.zeros(2), scale_tril=jnp.zeros((2, 2)), validate_args=False), (2,)
    )
    np.testing.assert_array_equal(singular.tril, jnp.eye(2))


def test_log_determinants_are_those_of_the_jacobian():
    for name in ("normal", "cholesky_affine"):
        fn = EXACT[name]
        affine = conditional_affine(fn, fn.shape())
        jacobian = jax.jacfwd(lambda z, affine=affine: affine.forward(z).ravel())(jnp.zeros(fn.shape()))
        size = jacobian.shape[0]
        _, expected = jnp.linalg.slogdet(jacobian.reshape(size, size))
        np.testing.assert_allclose(affine.log_scales().sum(), expected, rtol=1e-5)

"""Mixtures fitted to residuals: the single Gaussian in closed form, and a known mixture by its likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.mixture_fit import SIZES, fit_mixtures
from hsbi.inference.surrogate import SurrogateConfig

NUMBER = 4000


def fitted(residual, weights):
    laws = jax.jit(fit_mixtures)(jax.random.key(0), jnp.asarray(residual, "float32"), jnp.asarray(weights, "float32"))
    return [jax.tree.map(lambda array, n=n: array[n, : SIZES[n]], laws) for n in range(len(SIZES))]


def test_one_part_is_the_weighted_gaussian():
    rng = np.random.default_rng(0)
    residual = rng.normal(size=(NUMBER, 2)) @ np.array([[1.0, 0.6], [0.0, 0.5]]) + [0.3, -0.2]
    weights = rng.uniform(size=NUMBER)
    one = fitted(residual, weights)[0]
    mean, cov = np.average(residual, axis=0, weights=weights), np.cov(residual.T, aweights=weights, ddof=0)
    found = one.given(jnp.zeros((1, 1)), SurrogateConfig()).log_prob(jnp.asarray(residual[:50], "float32"))
    # Variances are raised by a ten thousandth.
    np.testing.assert_allclose(found, stats.multivariate_normal(mean, cov).logpdf(residual[:50]), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_narrow_core_in_wide_noise_is_found(dim):
    """With p parameters the likelihood of fresh draws is lower than the true one by about p / 2n: 0.002 here."""
    rng = np.random.default_rng(1)

    def draw(number):
        return rng.normal(size=(number, dim)) * rng.choice([1.0, 0.1], size=(number, 1))

    def log_density(x):
        parts = [stats.norm(0, scale).logpdf(x).sum(-1) for scale in (1.0, 0.1)]
        return np.logaddexp(*parts) - np.log(2)

    laws, fresh = fitted(draw(NUMBER), np.ones(NUMBER)), draw(NUMBER)
    losses = [
        log_density(fresh)
        - np.asarray(law.given(jnp.zeros((1, 1)), SurrogateConfig()).log_prob(jnp.asarray(fresh, "float32")))
        for law in laws
    ]
    assert losses[0].mean() > 0.3
    assert abs(losses[1].mean()) < 0.01

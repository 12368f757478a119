"""Mixtures of Gaussians against SciPy: densities, marginals of what is known, samples and moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.law import Law, Mixture, covariance
from hsbi.inference.surrogate import SurrogateConfig
from tests.networks.weights import random_weights

# The chance that correct code fails any one of the statistical tests.
FALSE_ALARM = 2e-5
PARTS, DIM, FEATURES = 2, 3, 4
CONFIG = SurrogateConfig(flow_width=8)


def make_law(dim=DIM, seed=0):
    rng = np.random.default_rng(seed)
    sizes = {
        "logits": (PARTS,),
        "loc": (PARTS, dim),
        "log_scale": (PARTS, dim),
        "slopes": (PARTS, dim * (dim - 1) // 2),
    }
    return Law(**{name: jnp.asarray(0.7 * rng.normal(size=size), "float32") for name, size in sizes.items()})


def exact_parts(law):
    """Give shares, means and covariances: an entry is its regression on those before plus noise of its own."""
    shares = np.exp(law.logits) / np.exp(law.logits).sum()
    covariances = []
    for log_scale, slopes in zip(np.asarray(law.log_scale, float), np.asarray(law.slopes, float), strict=True):
        dim = len(log_scale)
        regression = np.zeros((dim, dim))
        regression[np.tril_indices(dim, -1)] = slopes
        factor = np.linalg.inv(np.eye(dim) - regression) @ np.diag(np.exp(log_scale))
        covariances.append(factor @ factor.T)
    return shares, np.asarray(law.loc, float), np.stack(covariances)


def exact_density(law, values, known=None):
    known = np.ones(values.shape[-1], bool) if known is None else known
    parts = [
        share * stats.multivariate_normal(mean[known], cov[np.ix_(known, known)]).pdf(values[:, known])
        for share, mean, cov in zip(*exact_parts(law), strict=True)
    ]
    return np.log(np.sum(parts, axis=0))


def some_values(number=5, dim=DIM):
    return np.random.default_rng(1).normal(size=(number, dim)).astype("float32")


@pytest.mark.parametrize("dim", [1, 3])
def test_the_density_is_that_of_a_mixture(dim):
    law, values = make_law(dim), some_values(dim=dim)
    found = law.given(jnp.zeros((5, FEATURES)), CONFIG).log_prob(jnp.asarray(values))
    np.testing.assert_allclose(found, exact_density(law, values), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        covariance(law.given(jnp.zeros((1, FEATURES)), CONFIG).parts)[0], exact_parts(law)[2], rtol=1e-4
    )


@pytest.mark.parametrize("known", [(True, False, True), (False, True, False), (True, True, True)])
def test_what_is_missing_is_integrated_out(known):
    law, values = make_law(), some_values()
    expected = exact_density(law, values, np.asarray(known))
    # A missing value must not matter, whatever stands in its place.
    values = np.where(known, values, 1e3).astype("float32")
    mask = jnp.broadcast_to(jnp.asarray(known), values.shape)
    found = law.given(jnp.zeros((5, FEATURES)), CONFIG).log_prob(jnp.asarray(values), mask)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_nothing_known_has_no_density():
    mixture = make_law().given(jnp.zeros((5, FEATURES)), CONFIG)
    found = mixture.log_prob(jnp.asarray(some_values()), jnp.zeros((5, DIM), bool))
    np.testing.assert_allclose(found, np.zeros(5), atol=1e-5)


def test_samples_and_moments_are_those_of_the_mixture():
    law, number = make_law(), 20_000
    mixture = law.given(jnp.zeros((1, FEATURES)), CONFIG)
    draws = np.asarray(mixture.sample(jax.random.key(0), (number,)), float)
    shares, means, covariances = exact_parts(law)
    mean = shares @ means
    gap = means - mean
    total = np.einsum("k,kij->ij", shares, covariances + gap[:, :, None] * gap[:, None, :])
    z = stats.norm.isf(FALSE_ALARM / 2 / (DIM + DIM**2))
    assert np.all(np.abs(draws.mean(0) - mean) < z * np.sqrt(np.diag(total) / number))
    products = (draws - mean)[:, :, None] * (draws - mean)[:, None, :]
    assert np.all(np.abs(products.mean(0) - total) < z * products.std(0) / np.sqrt(number))
    # Log densities of draws average to those of exact draws.
    rng = np.random.default_rng(2)
    exact = np.stack([rng.multivariate_normal(means[k], covariances[k]) for k in rng.choice(PARTS, number, p=shares)])
    own, other = exact_density(law, draws), exact_density(law, exact)
    assert abs(own.mean() - other.mean()) < z * np.sqrt((own.var() + other.var()) / number)
    found = mixture.moments()
    np.testing.assert_allclose(found[0][0], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1][0], np.sqrt(np.diag(total)), rtol=1e-4)


def test_a_mixture_moves_with_location_and_scale():
    mixture, values = make_law().given(jnp.zeros((5, FEATURES)), CONFIG), jnp.asarray(some_values())
    location, log_scale = jnp.asarray(some_values() + 1.0), jnp.asarray(0.3 * some_values()[::-1])
    moved = mixture.move(location, log_scale)
    found = moved.log_prob(location + jnp.exp(log_scale) * values)
    np.testing.assert_allclose(found, mixture.log_prob(values) - jnp.sum(log_scale, axis=-1), rtol=1e-4, atol=1e-4)


def test_a_network_changes_what_it_drives_and_nothing_else():
    size = 1 + 2 * DIM + DIM * (DIM - 1) // 2
    scale_of_second, slope_of_last = size + 1 + DIM, 2 * size - 1
    plain = make_law()
    driven = (scale_of_second, slope_of_last)
    law = Law(active=driven, logits=plain.logits, loc=plain.loc, log_scale=plain.log_scale, slopes=plain.slopes)
    features = jnp.asarray(np.random.default_rng(3).normal(size=(5, FEATURES)), "float32")
    weights = random_weights(law.module(CONFIG), np.zeros((2, FEATURES), np.float32))
    mixture = jax.tree.map(np.asarray, Law(**{**vars(law), "net": weights}).given(features, CONFIG))
    before = jax.tree.map(np.asarray, plain.given(features, CONFIG))
    np.testing.assert_allclose(mixture.log_weights, np.broadcast_to(before.log_weights, (5, PARTS)), atol=1e-6)
    np.testing.assert_allclose(mixture.parts.loc, np.broadcast_to(before.parts.loc, (5, PARTS, DIM)), atol=1e-6)
    changed = np.abs(mixture.parts.log_scale - before.parts.log_scale) > 1e-4
    assert np.all(changed == (np.arange(PARTS * DIM).reshape(PARTS, DIM) == DIM))
    # Slopes by row are those of (1, 0), (2, 0) and (2, 1).
    assert np.all(np.abs(mixture.parts.lower - before.parts.lower)[:, 0] < 1e-5)
    assert np.all(np.abs(mixture.parts.lower - before.parts.lower)[:, 1, 2, 1] > 1e-4)
    assert isinstance(mixture, Mixture)

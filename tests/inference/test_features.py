"""Features of parameters and inputs by hand."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from hsbi.inference.features import find_bound, fit_features, flatten_parameters


def test_positive_columns_bring_their_logarithms():
    rng = np.random.default_rng(0)
    parameters = jnp.asarray(np.stack([rng.normal(size=201), rng.uniform(1, 3, size=201)], axis=-1), "float32")
    features = fit_features(("a", "b"), parameters, None)
    assert features.positive == (1,)
    found = features(parameters)
    raw = np.concatenate([parameters, np.log(parameters[:, 1:])], axis=-1)
    expected = (raw - np.asarray(features.scaling.loc)) / np.asarray(features.scaling.scale)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.median(found, axis=0), np.zeros(3), atol=1e-5)


def test_a_constant_column_stays_finite():
    features = fit_features(("a",), jnp.full((20, 1), 4.0), None)
    np.testing.assert_allclose(features(jnp.full((3, 1), 4.0)), np.zeros((3, 2)), atol=1e-6)


def test_far_rows_weigh_less():
    features = fit_features((), jnp.zeros((5, 2)), None)
    weights = features.weights(jnp.asarray([[0.0, 0.0], [4.0, 0.0], [1.0, -8.0]]))
    np.testing.assert_allclose(weights, [1.0, 0.5, 1.0 / 65.0], rtol=1e-5)
    no_features = features.weights(jnp.zeros((3, 0)))
    np.testing.assert_allclose(no_features, np.ones(3))


def test_on_a_logarithmic_scale_a_positive_parameter_is_far_only_if_its_logarithm_is_too():
    features = fit_features((), jnp.asarray([[1.0, -1.0], [2.0, 1.0], [3.0, 0.0]]), None)
    # Columns: a positive one, a real one, the logarithm of the first.
    rows = jnp.asarray([[8.0, 0.0, 1.0], [8.0, 0.0, 4.0], [0.0, 8.0, 0.0]])
    weights = features.weights(rows, logarithmic=True)
    np.testing.assert_allclose(weights, [1.0 / (1.0 + 0.25**6), 0.5, 1.0 / 65.0], rtol=1e-5)
    np.testing.assert_allclose(features.weights(rows), np.full(3, 1.0 / 65.0), rtol=1e-5)


def test_inputs_are_scaled_over_the_simulated_range():
    inputs = jnp.asarray(np.stack([np.linspace(2, 6, 5), np.full(5, 7.0)], axis=-1), "float32")[None]
    features = fit_features((), jnp.zeros((5, 0)), inputs)
    np.testing.assert_allclose(features.scale_inputs(inputs)[0, :, 0], np.linspace(0, 1, 5), atol=1e-6)
    np.testing.assert_allclose(features.scale_inputs(inputs)[0, :, 1], np.zeros(5), atol=1e-6)
    found = np.asarray(features.of_inputs(inputs))
    unit = 2 * np.asarray(features.scale_inputs(inputs)) - 1
    np.testing.assert_allclose(found[..., :4], np.concatenate([unit, unit**2], axis=-1), atol=1e-5)
    waves = found[..., 4:]
    half = waves.shape[-1] // 2
    np.testing.assert_allclose(waves[..., :half] ** 2 + waves[..., half:] ** 2, np.ones((1, 5, half)), atol=1e-5)


def test_shared_parameters_are_repeated_and_covariates_come_last():
    values = {"shared": jnp.asarray([1.0, 2.0]), "own": jnp.arange(6.0).reshape(3, 2)}
    found = flatten_parameters(("own", "shared"), values, jnp.asarray([[7.0], [8.0], [9.0]]), shared=("shared",))
    np.testing.assert_array_equal(found, [[0, 1, 1, 2, 7], [2, 3, 1, 2, 8], [4, 5, 1, 2, 9]])


def test_a_covariate_that_bounds_counts_is_found():
    trials = jnp.asarray([5.0, 9.0, 7.0])
    covariates = jnp.stack([jnp.asarray([1.0, 2.0, 3.0]), trials], axis=-1)
    assert find_bound(dist.Binomial(trials, 0.5).support, covariates) == 1
    # Another bound, one that all sites share, and none at all.
    assert find_bound(dist.Binomial(trials + 1, 0.5).support, covariates) is None
    assert find_bound(dist.Binomial(9, 0.5).support, covariates) is None
    assert find_bound(dist.Poisson(trials).support, covariates) is None

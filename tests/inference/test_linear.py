"""Location-scale regression against the theory of maximum likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.linear import Linear, fit_linear

# The chance that a correct fit fails any one of these tests.
FALSE_ALARM = 2e-5
ROWS, FEATURES, DIM = 4000, 3, 2
LOCATION = np.array([[1.0, -2.0], [0.5, 0.0], [0.0, 3.0], [0.3, -0.7]])
LOG_SCALE = np.array([[0.4, 0.0], [-0.3, 0.2], [0.0, 0.5], [-1.0, 0.4]])
_fit = jax.jit(fit_linear)


def problem(seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(ROWS, FEATURES))
    design = np.concatenate([features, np.ones((ROWS, 1))], axis=-1)
    targets = design @ LOCATION + np.exp(design @ LOG_SCALE) * rng.normal(size=(ROWS, DIM))
    return features, design, targets


def standard_errors(design, weights, column):
    """Give asymptotic errors of weighted maximum likelihood, A^-1 B A^-1 with A the mean Hessian, B that of scores.

    Location: A = X' w X / s^2, B = X' w^2 X / s^2. Log scale: A = 2 X' w X, B = 2 X' w^2 X. With unit weights both are
    the inverse Fisher information.
    """
    precision = np.exp(-2 * design @ LOG_SCALE[:, column])

    def sandwich(information, factor):
        bread = np.linalg.inv(design.T @ (design * (weights * information * factor)[:, None]))
        filling = design.T @ (design * (weights**2 * information * factor)[:, None])
        return np.sqrt(np.diag(bread @ filling @ bread))

    return sandwich(precision, 1.0), sandwich(np.ones(ROWS), 2.0)


@pytest.mark.parametrize("weighted", [False, True], ids=["unit weights", "weights by features"])
def test_recovers_heteroscedastic_coefficients(weighted):
    features, design, targets = problem()
    weights = 1.0 / (1.0 + (np.abs(features).max(axis=-1) / 2.0) ** 6) if weighted else np.ones(ROWS)
    found = _fit(features.astype("float32"), targets.astype("float32"), weights.astype("float32"))
    bound = stats.norm.isf(FALSE_ALARM / (2 * 2 * LOCATION.size))
    for column in range(DIM):
        location_error, scale_error = standard_errors(design, weights, column)
        assert np.all(np.abs(found.location[:, column] - LOCATION[:, column]) < bound * location_error)
        assert np.all(np.abs(found.log_scale[:, column] - LOG_SCALE[:, column]) < bound * scale_error)
    # Negative control: a coefficient left out would be seen.
    assert np.abs(LOCATION[0, 0]) > bound * standard_errors(design, weights, 0)[0][0]
    assert np.abs(LOG_SCALE[0, 0]) > bound * standard_errors(design, weights, 0)[1][0]


@pytest.mark.parametrize("scales", [(1e-3, 1.0, 1e3), (1e3, 1e3, 1e-3)], ids=str)
def test_units_of_features_do_not_matter(scales):
    """Scaling a column divides its coefficients, to a tenth of their standard error."""
    features, design, targets = problem()
    weights = np.ones(ROWS)
    base = _fit(features.astype("float32"), targets.astype("float32"), weights.astype("float32"))
    scaled = _fit((features * scales).astype("float32"), targets.astype("float32"), weights.astype("float32"))
    units = np.array([*scales, 1.0])[:, None]
    for column in range(DIM):
        location_error, scale_error = standard_errors(design, weights, column)
        difference = np.abs(np.asarray(scaled.location) * units - base.location)[:, column]
        assert np.all(difference < 0.1 * location_error)
        difference = np.abs(np.asarray(scaled.log_scale) * units - base.log_scale)[:, column]
        assert np.all(difference < 0.1 * scale_error)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_units_of_targets_do_not_matter(unit):
    features, _, targets = problem()
    weights = np.ones(ROWS, np.float32)
    base = _fit(features.astype("float32"), targets.astype("float32"), weights)
    scaled = _fit(features.astype("float32"), (unit * targets).astype("float32"), weights)
    np.testing.assert_allclose(scaled.location / unit, base.location, atol=1e-3)
    shift = np.zeros_like(LOG_SCALE)
    shift[-1] = np.log(unit)
    np.testing.assert_allclose(scaled.log_scale - shift, base.log_scale, atol=1e-3)


def test_collinear_columns_predict_as_one():
    features, design, targets = problem()
    weights = np.ones(ROWS)
    doubled = np.concatenate([features, 2.0 * features[:, :1]], axis=-1)
    base = _fit(features.astype("float32"), targets.astype("float32"), weights.astype("float32"))
    found = _fit(doubled.astype("float32"), targets.astype("float32"), weights.astype("float32"))
    for ours, theirs, which in zip(found, base, (0, 1), strict=True):
        together = np.asarray(ours)[0] + 2.0 * np.asarray(ours)[3]
        merged = np.concatenate([together[None], np.asarray(ours)[[1, 2, 4]]])
        for column in range(DIM):
            error = standard_errors(design, weights, column)[which]
            assert np.all(np.abs(merged - theirs)[:, column] < 0.1 * error)


def test_scales_over_many_decades_are_found():
    """Scales from about 1e-3 to 1e3 in one problem: exact up to standard errors of the log scale."""
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, size=(ROWS, 1))
    targets = features + np.exp(7.0 * features) * rng.normal(size=(ROWS, 1))
    found = _fit(features.astype("float32"), targets.astype("float32"), np.ones(ROWS, np.float32))
    design = np.concatenate([features, np.ones((ROWS, 1))], axis=-1)
    bound = stats.norm.isf(FALSE_ALARM / 8)
    scale_error = np.sqrt(np.diag(np.linalg.inv(2 * design.T @ design)))
    location_error = np.sqrt(np.diag(np.linalg.inv(design.T @ (design * np.exp(-14.0 * features)))))
    assert np.all(np.abs(np.asarray(found.log_scale)[:, 0] - [7.0, 0.0]) < bound * scale_error)
    assert np.all(np.abs(np.asarray(found.location)[:, 0] - [1.0, 0.0]) < bound * location_error)


def test_predict_by_hand():
    linear = Linear(jnp.asarray([[2.0], [-1.0], [0.5]]), jnp.asarray([[0.0], [1.0], [-2.0]]))
    location, log_scale = linear.predict(jnp.asarray([[[1.0, 2.0]], [[0.0, -1.0]]]))
    np.testing.assert_allclose(location, [[[0.5]], [[1.5]]])
    np.testing.assert_allclose(log_scale, [[[0.0]], [[-3.0]]])

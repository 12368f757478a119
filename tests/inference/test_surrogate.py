"""Surrogates against normal densities, normalization, and the rule by which networks are kept."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.arrays import ObservationShape
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.gains import helps
from hsbi.inference.linear import Linear
from hsbi.inference.rows import Rows
from hsbi.inference.surrogate import Surrogate
from hsbi.inference.surrogate_fit import fit_surrogate, select_rows
from tests.inference.linear_gaussian import TINY, identity, transform
from tests.networks.weights import quick, random_weights

# The chance that correct code fails any one of the statistical tests.
FALSE_ALARM = 2e-5
FEATURES = 2


@functools.cache
def make_surrogate(points=1, width=1):
    """Give a linear surrogate with features as they are."""
    features = ParameterFeatures(
        names=("x",), positive=(), scaling=identity(FEATURES), input_low=jnp.zeros(0), input_range=jnp.zeros(0)
    )
    shape = ObservationShape(name="y", replicates=1, points=points, width=width, parents=("x",))
    surrogate = Surrogate.unfitted(shape, TINY, features, transform(0.0, 1.0, width))
    rng = np.random.default_rng(0)
    location, log_scale = rng.normal(size=(2, FEATURES + 1, width)).astype(np.float32)
    return dataclasses.replace(surrogate, linear=Linear(jnp.asarray(location), 0.5 * jnp.asarray(log_scale)))


def with_random_flow(surrogate):
    shape = surrogate.shape
    lead = (2, shape.points) if shape.points > 1 else (2,)
    x, seen = np.zeros((*lead, shape.width), np.float32), np.zeros((*lead, FEATURES), np.float32)
    weights = random_weights(surrogate.networks.field, x, np.zeros(2, np.float32), seen)
    return dataclasses.replace(surrogate, flow=weights)


def with_random_correction(surrogate):
    seen = np.zeros((2, surrogate.shape.points, FEATURES), np.float32)
    shapes = jax.eval_shape(surrogate.networks.initial_correction, jax.random.key(0), seen)
    rng = np.random.default_rng(1)
    weights = jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)
    return dataclasses.replace(surrogate, correction=weights)


def rows(number, points=1, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(number, points, FEATURES)), "float32")


@pytest.mark.parametrize("corrected", [False, True], ids=["linear", "corrected"])
def test_density_without_flow_is_normal(corrected):
    surrogate = make_surrogate(points=3, width=2)
    surrogate = with_random_correction(surrogate) if corrected else surrogate
    features = rows(5, points=3)
    values = jnp.asarray(np.random.default_rng(2).normal(size=(5, 3, 2)), "float32")
    location, log_scale = surrogate.predict(features)
    expected = stats.norm(location, np.exp(log_scale)).logpdf(values).sum(axis=(-2, -1))
    np.testing.assert_allclose(surrogate.log_prob(features, values), expected, rtol=1e-4, atol=1e-4)
    linear = make_surrogate(points=3, width=2).linear.predict(features)
    assert (np.max(np.abs(location - linear[0])) > 1e-2) == corrected


def test_a_correction_moves_by_scales():
    """Its first half shifts the location in units of the linear scale; its second is added to the log scale."""
    surrogate = with_random_correction(make_surrogate(width=2))
    features = rows(4)
    shift, log_factor = surrogate.networks.correct(surrogate.correction, features)
    location, log_scale = surrogate.linear.predict(features)
    found = surrogate.predict(features)
    np.testing.assert_allclose(found[0], location + shift * np.exp(log_scale), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], log_scale + log_factor, rtol=1e-4, atol=1e-5)


def test_log_scales_are_bounded():
    surrogate = make_surrogate()
    steep = dataclasses.replace(surrogate, linear=surrogate.linear._replace(log_scale=jnp.full((FEATURES + 1, 1), 1e4)))
    _, log_scale = steep.predict(jnp.ones((2, 1, FEATURES)))
    np.testing.assert_array_equal(log_scale, np.full((2, 1, 1), 9.0))


@functools.cache
def flowed_density():
    """Give a grid of standardized values, the flow's density there, and many draws, all at one set of features."""
    surrogate = with_random_flow(with_random_correction(make_surrogate()))
    one = rows(1)
    location, log_scale = (float(part[0, 0, 0]) for part in surrogate.predict(one))
    grid = location + np.exp(log_scale) * np.linspace(-9.0, 9.0, 1201)
    values = jnp.asarray(grid, "float32").reshape(-1, 1, 1)

    @quick
    def run(key):
        features = jnp.broadcast_to(one, (values.shape[0], 1, FEATURES))
        density = surrogate.log_prob(features, values)
        return density, surrogate.sample(key, jnp.broadcast_to(one, (3000, 1, FEATURES)))

    log_density, draws = run(jax.random.key(0))
    return grid, np.exp(np.asarray(log_density, float)), np.asarray(draws, float).reshape(-1)


def test_a_random_flow_has_a_density_that_integrates_to_one():
    grid, density, _ = flowed_density()
    assert density[0] < 1e-4 * density.max() > density[-1]
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=2e-3)
    # It is not the normal that it started from.
    surrogate = with_random_correction(make_surrogate())
    location, log_scale = (float(part[0, 0, 0]) for part in surrogate.predict(rows(1)))
    assert np.max(np.abs(density - stats.norm(location, np.exp(log_scale)).pdf(grid))) > 0.05 * density.max()


def test_draws_of_a_flow_follow_its_density():
    grid, density, draws = flowed_density()
    steps = np.diff(grid) * (density[1:] + density[:-1]) / 2
    cdf = np.concatenate([[0.0], np.cumsum(steps)])
    result = stats.kstest(draws, lambda x: np.interp(x, grid, cdf / cdf[-1]))
    assert result.pvalue > FALSE_ALARM


def test_points_have_a_joint_density_that_integrates_to_one():
    surrogate = with_random_flow(make_surrogate(points=2))
    one = rows(1, points=2)
    location, log_scale = (np.asarray(part)[0, :, 0] for part in surrogate.predict(one))
    ticks = np.linspace(-7.0, 7.0, 57)
    axes = [location[k] + np.exp(log_scale[k]) * ticks for k in (0, 1)]
    values = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2, 1).astype("float32")
    features = jnp.broadcast_to(one, (values.shape[0], 2, FEATURES))
    density = np.exp(np.asarray(quick(surrogate.log_prob)(features, values), float)).reshape(57, 57)
    total = np.trapezoid(np.trapezoid(density, axes[1], axis=1), axes[0])
    assert total == pytest.approx(1.0, abs=5e-3)


def test_draws_without_flow_have_predicted_location_and_scale():
    surrogate = with_random_correction(make_surrogate(width=2))
    number = 4000
    one = rows(1)
    location, log_scale = (np.asarray(part)[0, 0] for part in surrogate.predict(one))
    draws = surrogate.sample(jax.random.key(0), jnp.broadcast_to(one, (number, 1, FEATURES)))[:, 0]
    residual = (np.asarray(draws) - location) / np.exp(log_scale)
    assert np.all(np.abs(residual.mean(0)) < stats.norm.isf(FALSE_ALARM / 8) / np.sqrt(number))
    chance = stats.chi2(number - 1).cdf((number - 1) * residual.var(0, ddof=1))
    assert np.all((chance > FALSE_ALARM / 8) & (chance < 1 - FALSE_ALARM / 8))


def test_features_are_prepared_for_replicates_and_points():
    surrogate = make_surrogate()
    shape = dataclasses.replace(surrogate.shape, replicates=3, points=2)
    surrogate = dataclasses.replace(surrogate, shape=shape)
    parameters = rows(4)[:, 0]
    found = surrogate.prepare(parameters, None)
    assert found.shape == (4, 3, 2, FEATURES)
    np.testing.assert_array_equal(found[:, 2, 1], parameters)


NUM_ROWS = 1600


def simulations(residual, seed):
    surrogate = make_surrogate()
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(NUM_ROWS, 1, FEATURES)).astype("float32")
    location, log_scale = surrogate.linear.predict(jnp.asarray(features))
    values = np.asarray(location) + np.exp(np.asarray(log_scale)) * residual(rng, (NUM_ROWS, 1, 1))
    return Rows(jnp.asarray(features), jnp.asarray(values, "float32"), jnp.ones(NUM_ROWS), jnp.arange(NUM_ROWS))


def bimodal(rng, shape):
    """Draw from two narrow peaks, standardized."""
    return rng.choice([-1.0, 1.0], size=shape) * 0.98 + 0.2 * rng.normal(size=shape)


@pytest.mark.slow
def test_gaussian_data_need_no_network():
    """A network for nothing passes a rule of two standard errors now and then: once in four at most is allowed."""
    kept = []
    for seed in range(4):
        data = simulations(lambda rng, shape: rng.normal(size=shape), seed)
        fitted, losses = fit_surrogate(jax.random.key(seed), make_surrogate(), data)
        kept.append(any(part is not None for part in (fitted.correction, fitted.law, fitted.flow)))
        assert {"location, scale", "law"} <= set(losses)
    assert sum(kept) <= 1


def test_bimodal_residuals_keep_their_flow(monkeypatch):
    monkeypatch.setattr("hsbi.inference.surrogate_fit.can_have_law", lambda _: False)
    data = simulations(bimodal, 0)
    fitted, _ = fit_surrogate(jax.random.key(0), make_surrogate(), data)
    assert fitted.flow is not None
    # Fresh simulations are likelier under the flow than under the normal it grew from.
    fresh = simulations(bimodal, 1)
    normal = dataclasses.replace(fitted, flow=None)
    gain = np.asarray(fitted.log_prob(fresh.features, fresh.values) - normal.log_prob(fresh.features, fresh.values))
    assert gain.mean() > stats.norm.isf(FALSE_ALARM) * gain.std() / np.sqrt(NUM_ROWS)


def test_failed_simulations_are_left_out():
    data = simulations(lambda rng, shape: rng.normal(size=shape), 0)
    broken = data._replace(values=data.values.at[jnp.asarray([5, 9])].set(jnp.nan).at[11].set(jnp.inf))
    with pytest.warns(UserWarning, match="3 of 1600 simulations of 'y' are not finite"):
        found = select_rows(broken, make_surrogate(), jax.random.key(0))
    np.testing.assert_array_equal(found, np.delete(np.arange(NUM_ROWS), [5, 9, 11]))
    np.testing.assert_array_equal(select_rows(data, make_surrogate(), jax.random.key(0)), np.arange(NUM_ROWS))


def test_failures_that_are_known_are_no_news():
    data = simulations(lambda rng, shape: rng.normal(size=shape), 0)
    broken = data._replace(values=data.values.at[jnp.asarray([5, 9])].set(jnp.nan).at[11].set(jnp.inf))
    failed = np.isin(np.arange(NUM_ROWS), [5, 9, 11, 12])
    # Row 12 is usable whatever was said of it.
    found = select_rows(broken, make_surrogate(), jax.random.key(0), failed)
    np.testing.assert_array_equal(found, np.delete(np.arange(NUM_ROWS), [5, 9, 11]))
    with pytest.warns(UserWarning, match="1 of 1598 simulations of 'y' are not finite"):
        select_rows(broken, make_surrogate(), jax.random.key(0), np.isin(np.arange(NUM_ROWS), [5, 9]))


def test_simulations_that_all_failed_are_refused():
    data = simulations(lambda rng, shape: rng.normal(size=shape), 0)
    with pytest.raises(ValueError, match="No simulation of 'y' is finite"):
        fit_surrogate(jax.random.key(0), make_surrogate(), data._replace(values=data.values * jnp.nan))


def test_a_few_held_out_rows_keep_no_network(monkeypatch):
    """However large the gain: the standard error of a few rows means nothing."""
    for number, kept in ((7, False), (8, True)):
        monkeypatch.setattr("hsbi.inference.gains.gains", lambda *_, n=number: np.linspace(1.0, 1.1, n))
        rows_held_out = Rows(np.zeros((number, 1, 1)), np.zeros((number, 1, 1)), np.ones(number), np.arange(number))
        assert helps(None, None, None, {"held_out": rows_held_out}) is kept


@pytest.mark.slow
def test_a_bent_location_keeps_its_correction():
    surrogate = make_surrogate()
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_ROWS, 1, FEATURES)).astype("float32")
    values = np.abs(features[..., :1]) + 0.2 * rng.normal(size=(NUM_ROWS, 1, 1))
    data = Rows(jnp.asarray(features), jnp.asarray(values, "float32"), jnp.ones(NUM_ROWS), jnp.arange(NUM_ROWS))
    fitted, _ = fit_surrogate(jax.random.key(0), surrogate, data)
    assert fitted.correction is not None


def test_covariates_of_replicates_act_on_coefficients_by_products():
    """A level and a slope, y = x0 + x1 u with u in [0, 1], are linear in such features; those of a curve have none."""
    rng = np.random.default_rng(3)
    parameters, inputs = rng.normal(size=(40, FEATURES)), rng.uniform(size=(40, 3, 1, 1))
    expected = parameters[:, 0, None] + parameters[:, 1, None] * inputs[..., 0, 0]
    features = dataclasses.replace(make_surrogate().features, input_low=jnp.zeros(1), input_range=jnp.ones(1))
    left = []
    for points in (1, 3):
        surrogate = dataclasses.replace(make_surrogate(points), features=features)
        seen = surrogate.prepare(
            jnp.asarray(parameters), jnp.asarray(inputs.reshape(40, -1, points, 1)), (3 // points, points)
        )
        design = np.concatenate([np.asarray(seen, float).reshape(120, -1), np.ones((120, 1))], axis=1)
        fitted = design @ np.linalg.lstsq(design, expected.ravel(), rcond=None)[0]
        left.append(np.abs(fitted - expected.ravel()).max())
    assert left[0] < 1e-4
    assert left[1] > 0.1

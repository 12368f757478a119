"""Laws of residuals: kept where noise is not normal or correlates by the features, dropped where it is normal."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.arrays import ObservationShape
from hsbi.inference.features import ParameterFeatures, add_logarithms, fit_features
from hsbi.inference.law_fit import _choose_size, _depend, _standard_errors, can_have_law
from hsbi.inference.linear import Linear, fit_linear
from hsbi.inference.rows import Raw, Rows
from hsbi.inference.surrogate import Surrogate, SurrogateConfig
from hsbi.inference.surrogate_fit import fit_surrogate
from hsbi.training import FitConfig
from tests.inference.linear_gaussian import identity, transform

# The chance that correct code fails any one of the statistical tests.
FALSE_ALARM = 2e-5
NUM_ROWS = 4000
BRIEF = SurrogateConfig(
    width=8,
    flow_width=16,
    batch_size=128,
    held_out=0.25,
    correction=FitConfig(num_steps=2000, epoch_steps=100, learning_rate=5e-3, warmup_steps=10, weight_decay=1e-2),
    flow=FitConfig(num_steps=50, epoch_steps=50),
)


def make_surrogate(width=1, features=1):
    given = ParameterFeatures(
        names=("x",), positive=(), scaling=identity(features), input_low=jnp.zeros(0), input_range=jnp.zeros(0)
    )
    shape = ObservationShape(name="y", replicates=1, points=1, width=width, parents=("x",))
    return Surrogate.unfitted(shape, BRIEF, given, transform(0.0, 1.0, width))


def simulate(noise, seed, width=1):
    """Give rows of y = x + noise(x)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_ROWS, 1, 1))
    values = np.broadcast_to(x, (NUM_ROWS, 1, width)) + noise(rng, x)
    number = jnp.arange(NUM_ROWS)
    return Rows(jnp.asarray(x, "float32"), jnp.asarray(values, "float32"), jnp.ones(NUM_ROWS), number)


def core(rng, x):
    """Draw narrow or wide noise, half of each."""
    return rng.normal(size=x.shape) * rng.choice([1.0, 0.1], size=x.shape)


def correlated(rng, x):
    """Draw two numbers whose correlation is tanh(x), so none on average."""
    first, second = rng.normal(size=(2, *x.shape))
    return np.concatenate([first, np.tanh(x) * first + second / np.cosh(x)], axis=-1)


@pytest.mark.slow
def test_noise_with_a_narrow_core_has_a_law_of_its_own():
    fitted, losses = fit_surrogate(jax.random.key(0), make_surrogate(), simulate(core, 0))
    assert fitted.law is not None
    assert fitted.law.net is None
    assert fitted.flow is None
    assert "law" in losses
    fresh = simulate(core, 1)
    gap = np.asarray(fresh.values - fresh.features, float)[:, 0, 0]
    exact = np.logaddexp(stats.norm(0, 1.0).logpdf(gap), stats.norm(0, 0.1).logpdf(gap)) - np.log(2)
    loss = exact - np.asarray(fitted.log_prob(fresh.features, fresh.values))
    # About ten parameters lose 10 / 2n, 0.003; a normal would lose 0.4.
    assert loss.mean() < 0.02


@pytest.mark.slow
def test_correlation_that_follows_the_features_is_learned():
    fitted, _ = fit_surrogate(jax.random.key(0), make_surrogate(width=2), simulate(correlated, 0, width=2))
    assert fitted.law is not None
    assert fitted.law.net is not None
    x = jnp.asarray([[[-1.5]], [[0.0]], [[1.5]]])
    draws = np.asarray(fitted.sample(jax.random.key(1), jnp.broadcast_to(x, (3, 4000, 1))), float)
    found = [np.corrcoef(own.T)[0, 1] for own in draws]
    # A wrong sign or none at all would be off by 0.9.
    np.testing.assert_allclose(found, np.tanh([-1.5, 0.0, 1.5]), atol=0.15)


def test_normal_noise_has_no_law():
    kept = []
    for seed in range(3):
        data = simulate(lambda rng, x: rng.normal(size=x.shape), seed)
        kept.append(fit_surrogate(jax.random.key(seed), make_surrogate(), data)[0].law is not None)
    assert not any(kept)


def test_integers_coupled_points_and_wide_events_have_none():
    surrogate = make_surrogate()
    assert can_have_law(surrogate)
    assert can_have_law(make_surrogate(width=12))
    assert not can_have_law(make_surrogate(width=13))
    networks = dataclasses.replace(surrogate.networks, coupled=True)
    assert not can_have_law(dataclasses.replace(surrogate, networks=networks))
    binary = dataclasses.replace(surrogate.transform, kind="binary")
    assert not can_have_law(dataclasses.replace(surrogate, transform=binary))


def test_a_larger_mixture_has_to_be_better():
    rng = np.random.default_rng(0)
    base, noise = rng.normal(size=400), 0.1 * rng.normal(size=400)
    losses = np.stack([base, base - 0.2 + noise, base - 0.2 + 2 * noise, base + 1.0, base - 0.5 + noise])
    assert _choose_size(losses, np.ones(400)) == 4
    assert _choose_size(losses[:4], np.ones(400)) == 1


def test_pairs_are_found_that_depend_by_the_features():
    """Of three entries the last is noise; a correlation that is the same everywhere needs no network."""
    surrogate = dataclasses.replace(make_surrogate(width=3), linear=Linear(jnp.zeros((2, 3)), jnp.zeros((2, 3))))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 1, 1))
    pair = correlated(rng, x)
    third = 0.8 * pair[..., :1] + 0.6 * rng.normal(size=x.shape)
    values = jnp.asarray(np.concatenate([pair, third], axis=-1), "float32")
    data = Rows(jnp.asarray(x, "float32"), values, jnp.ones(NUM_ROWS), jnp.arange(NUM_ROWS))
    # Pairs by row: (1, 0), (2, 0), (2, 1); the last follows from the first two.
    np.testing.assert_array_equal(_depend(surrogate, data), [True, False, True])


def test_locations_move_in_units_of_their_standard_errors():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_ROWS, 1, 2)) * [1.0, 5.0] + [0.0, 3.0]
    log_scale = np.array([[0.5, 0.0], [0.0, 0.1], [0.2, -1.0]])
    surrogate = dataclasses.replace(
        make_surrogate(2, 2), linear=Linear(jnp.zeros((3, 2)), jnp.asarray(log_scale, "float32"))
    )
    weights = rng.uniform(0.5, 1.0, size=NUM_ROWS)
    data = Rows(
        jnp.asarray(features, "float32"), jnp.zeros((NUM_ROWS, 1, 2)), jnp.asarray(weights), jnp.arange(NUM_ROWS)
    )
    found = np.asarray(_standard_errors(surrogate, data), float)
    design = np.concatenate([features[:, 0], np.ones((NUM_ROWS, 1))], axis=1)
    for column in range(2):
        precision = weights * np.exp(-2 * design @ log_scale[:, column])
        expected = np.linalg.inv(design.T @ (design * precision[:, None]))
        np.testing.assert_allclose(found[column] @ found[column].T, expected, rtol=1e-2, atol=1e-6)


@pytest.mark.slow
def test_a_scale_that_follows_the_size_of_a_signed_parameter_is_found():
    rng = np.random.default_rng(0)
    parameters = rng.uniform(-3, 3, size=(NUM_ROWS, 2)).astype("float32")
    values = parameters[:, 1:] + parameters[:, :1] ** 2 * rng.normal(size=(NUM_ROWS, 1))
    features = fit_features(("a", "b"), jnp.asarray(parameters), None)
    wider = add_logarithms(features, jnp.asarray(parameters))
    assert wider is not None
    assert wider.positive == (0, 1)
    seen = np.asarray(wider(jnp.asarray(parameters)))
    linear = fit_linear(jnp.asarray(seen), jnp.asarray(values, "float32"), wider.weights(jnp.asarray(seen)))
    slope = float(linear.log_scale[2, 0] / wider.scaling.scale[2])
    # The information on a coefficient of the log scale is two per row.
    error = 1 / np.sqrt(2 * NUM_ROWS * np.log(np.abs(parameters[:, 0])).var())
    assert abs(slope - 2.0) < stats.norm.isf(FALSE_ALARM / 2) * 1.5 * error
    shape = ObservationShape(name="y", replicates=1, points=1, width=1, parents=("a", "b"))
    start = Surrogate.unfitted(shape, BRIEF, features, transform(0.0, 1.0))
    raw = Raw(
        parameters=jnp.asarray(parameters),
        site=jnp.zeros(NUM_ROWS, int),
        inputs=None,
        values=jnp.asarray(values, "float32")[:, None],
        weights=jnp.ones(NUM_ROWS),
    )
    fitted, _ = fit_surrogate(jax.random.key(0), start, raw)
    assert fitted.features.positive == (0, 1)
    plain = raw._replace(values=jnp.asarray(parameters[:, 1:] + rng.normal(size=(NUM_ROWS, 1)), "float32")[:, None])
    assert fit_surrogate(jax.random.key(0), start, plain)[0].features.positive == ()


def test_parameters_of_one_sign_get_no_further_logarithms():
    parameters = jnp.asarray([[1.0, 0.0, -1.0], [2.0, 1.0, -2.0], [3.0, -1.0, -3.0]])
    assert add_logarithms(fit_features(("a",), parameters, None), parameters) is None

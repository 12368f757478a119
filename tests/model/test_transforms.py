"""Bijections, standardization and observation transforms against identities and automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints

from hsbi.model.transforms import (
    constrain,
    fit_standardizer,
    log_jacobian,
    observation_transform,
    unconstrain,
    unconstrained_shape,
)

SIZE = 4
STRICT = np.tril_indices(SIZE, -1)
LOWER = np.tril_indices(SIZE)


def whole(value):
    return value.ravel()


def all_but_last(value):
    return value[..., :-1].ravel()


def strict_lower(value):
    return value[STRICT]


def lower(value):
    return value[LOWER]


def parts(value):
    return jnp.stack([value.real, value.imag])


# Support, event shape, shape of its coordinates, the free entries of a value.
SUPPORTS = {
    "real": (constraints.real, (), (), whole),
    "real_vector": (constraints.real_vector, (3,), (3,), whole),
    "real_matrix": (constraints.real_matrix, (3, 2), (3, 2), whole),
    "positive": (constraints.positive, (), (), whole),
    "nonnegative": (constraints.nonnegative, (), (), whole),
    "softplus_positive": (constraints.softplus_positive, (), (), whole),
    "greater_than": (constraints.greater_than(-2.5), (), (), whole),
    "greater_than_eq": (constraints.greater_than_eq(1.0), (), (), whole),
    "less_than": (constraints.less_than(3.0), (), (), whole),
    "less_than_eq": (constraints.less_than_eq(3.0), (), (), whole),
    "unit_interval": (constraints.unit_interval, (), (), whole),
    "interval": (constraints.interval(-3.0, 5.0), (), (), whole),
    "open_interval": (constraints.open_interval(2.0, 2.5), (), (), whole),
    "interval above": (constraints.interval(1.0, np.inf), (), (), whole),
    "interval below": (constraints.interval(-np.inf, 1.0), (), (), whole),
    "line": (constraints.interval(-np.inf, np.inf), (), (), whole),
    "circular": (constraints.circular, (), (), whole),
    "independent": (constraints.independent(constraints.positive, 2), (3, 2), (3, 2), whole),
    "vector bounds": (
        constraints.independent(constraints.interval(np.zeros(3), np.array([1.0, 2.0, 4.0])), 1),
        (3,),
        (3,),
        whole,
    ),
    "simplex": (constraints.simplex, (SIZE,), (SIZE - 1,), all_but_last),
    "ordered": (constraints.ordered_vector, (SIZE,), (SIZE,), whole),
    "positive_ordered": (constraints.positive_ordered_vector, (SIZE,), (SIZE,), whole),
    "l1_ball": (constraints.l1_ball, (SIZE,), (SIZE,), whole),
    "corr_cholesky": (constraints.corr_cholesky, (SIZE, SIZE), (6,), strict_lower),
    "corr_matrix": (constraints.corr_matrix, (SIZE, SIZE), (6,), strict_lower),
    "lower_cholesky": (constraints.lower_cholesky, (SIZE, SIZE), (10,), lower),
    "softplus_lower_cholesky": (constraints.softplus_lower_cholesky, (SIZE, SIZE), (10,), lower),
    "scaled_unit_lower_cholesky": (constraints.scaled_unit_lower_cholesky, (SIZE, SIZE), (10,), lower),
    "positive_definite": (constraints.positive_definite, (SIZE, SIZE), (10,), lower),
    "positive_semidefinite": (constraints.positive_semidefinite, (SIZE, SIZE), (10,), lower),
    "complex": (constraints.complex, (), (2,), parts),
}
CASES = pytest.mark.parametrize(("support", "event_shape", "shape", "free"), SUPPORTS.values(), ids=SUPPORTS.keys())


# Wider coordinates reach values that float32 cannot hold: sums of exponentials of exponentials, singular matrices.
def coordinates(shape, spread=0.8):
    return spread * jax.random.normal(jax.random.key(3), (20, *shape))


@CASES
def test_bijection_round_trips_with_its_jacobian(support, event_shape, shape, free):
    bounded = "inf" not in repr(support)
    count = int(np.prod(shape))

    @jax.jit
    def everything(z):
        value = constrain(support, z)
        back = unconstrain(support, value)
        matrices = jax.vmap(jax.jacfwd(lambda row: free(constrain(support, row))))(z)
        determinants = jnp.linalg.slogdet(jnp.reshape(matrices, (20, count, count)))[1]
        # NumPyro's own interval needs finite bounds.
        theirs = biject_to(support)(z) if bounded else value
        return value, back, constrain(support, back), log_jacobian(support, z), determinants, theirs

    z = coordinates(shape)
    value, back, again, ours, determinants, theirs = everything(z)
    assert value.shape == (20, *event_shape)
    assert unconstrained_shape(support, event_shape) == shape
    np.testing.assert_allclose(again, value, rtol=1e-5, atol=1e-6 * jnp.max(jnp.abs(value)))
    # What float32 keeps of a value near a bound limits how well its coordinate is known, not the other way round.
    np.testing.assert_allclose(back, z, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours, determinants, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(value, theirs, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    "support",
    [
        constraints.positive,
        constraints.greater_than(-2.5),
        constraints.less_than(3.0),
        constraints.unit_interval,
        constraints.open_interval(2.0, 2.5),
        constraints.circular,
    ],
)
def test_far_coordinates_stay_inside_the_support(support):
    # A naive exp overflows here and a naive sigmoid saturates.
    value = constrain(support, jnp.asarray([-200.0, -60.0, 0.0, 60.0, 200.0]))
    assert bool(jnp.all(support(value)))
    assert bool(jnp.all(jnp.isfinite(value)))
    assert bool(jnp.all(jnp.isfinite(unconstrain(support, value))))


@pytest.mark.parametrize("event_dim", [1, 2])
def test_zero_sum_is_an_isometry(event_dim):
    support, shape = constraints.zero_sum(event_dim), (5, 4)[-event_dim:]
    z = jax.random.normal(jax.random.key(0), (7, *shape))
    value = constrain(support, z)
    assert value.shape[1:] == tuple(size + 1 for size in shape)
    assert unconstrained_shape(support, value.shape[1:]) == shape
    np.testing.assert_allclose(unconstrain(support, value), z, atol=1e-5)
    matrix = jax.jacfwd(lambda row: constrain(support, row).ravel())(z[0]).reshape(-1, z[0].size)
    np.testing.assert_allclose(log_jacobian(support, z)[0], 0.5 * jnp.linalg.slogdet(matrix.T @ matrix)[1], atol=1e-5)


def test_cat_joins_scalar_supports():
    support = constraints.cat([constraints.real, constraints.positive], dim=-1, lengths=[2, 3])
    z = jax.random.normal(jax.random.key(0), (7, 5))
    value = constrain(support, z)
    np.testing.assert_allclose(value[:, 2:], jnp.exp(z[:, 2:]), rtol=1e-6)
    np.testing.assert_allclose(unconstrain(support, value), z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("support", "value"),
    [
        (constraints.positive, [1e-37, 1e-20, 1e-7, 1.0, 1e30, 3e38]),
        (constraints.unit_interval, [1e-37, 1e-20, 0.5, 1 - 2.0**-23, 1 - 2.0**-24]),
        (constraints.interval(-1.0, 0.0), [-1.0 + 2.0**-24, -0.5, -1e-20, -1e-30]),
        (constraints.less_than(0.0), [-1e30, -1.0, -1e-30]),
        (constraints.greater_than(2.0), [2.0 + 2.0**-22, 3.0, 1e20]),
    ],
)
def test_round_trip_near_bounds_keeps_relative_precision(support, value):
    # Coordinates reach 88 here, where neighbors in float32 are 7.6e-6 apart; two roundings make 1.5e-5.
    value = jnp.asarray(value, jnp.float32)
    np.testing.assert_allclose(constrain(support, unconstrain(support, value)), value, rtol=2e-5, atol=0)


def test_round_trip_near_corners_keeps_relative_precision():
    value = jnp.asarray([[1 - 3e-7, 1e-7, 2e-7], [1e-20, 1 - 2e-20, 1e-20], [1e-12, 1e-30, 1.0]], jnp.float32)
    again = constrain(constraints.simplex, unconstrain(constraints.simplex, value))
    np.testing.assert_allclose(again, value, rtol=2e-5, atol=0)
    angle = 1e-4
    row = [np.cos(angle), np.sin(angle)]
    factor = jnp.asarray([[1.0, 0.0], row], jnp.float32)
    again = constrain(constraints.corr_cholesky, unconstrain(constraints.corr_cholesky, factor))
    np.testing.assert_allclose(again, factor, rtol=1e-5)


@pytest.mark.parametrize(
    ("support", "value", "tolerance"),
    [
        (constraints.positive, 0.0, 2e-38),
        (constraints.unit_interval, 0.0, 1e-7),
        (constraints.unit_interval, 1.0, 1e-7),
        (constraints.interval(2.0, 10.0), 10.0, 1e-6),
        (constraints.interval(2.0, 10.0), 2.0 - 1e-6, 2e-6),
        (constraints.simplex, [0.0, 1.0, 0.0], 1e-7),
        (constraints.ordered_vector, [1.0, 1.0, 2.0], 1e-6),
    ],
)
def test_values_on_a_bound_move_inside(support, value, tolerance):
    value = jnp.asarray(value, jnp.float32)
    z = unconstrain(support, value)
    assert bool(jnp.all(jnp.isfinite(z)))
    np.testing.assert_allclose(constrain(support, z), value, rtol=0, atol=tolerance)


def test_missing_stays_missing():
    for support in (constraints.positive, constraints.unit_interval, constraints.real, constraints.interval(0.0, 3.0)):
        assert bool(jnp.isnan(unconstrain(support, jnp.nan)))


def test_traced_bounds_carry_gradients():
    slope = jax.grad(lambda high: constrain(constraints.interval(0.0, high), jnp.asarray(0.7)))(2.0)
    np.testing.assert_allclose(slope, jax.nn.sigmoid(0.7), rtol=1e-6)


def test_density_in_coordinates_integrates_to_one():
    z = jnp.linspace(-30.0, 8.0, 20_001)
    for prior in (dist.Gamma(2.0, 1.5), dist.Beta(0.5, 2.0), dist.Uniform(-1.0, 4.0)):
        density = jnp.exp(prior.log_prob(constrain(prior.support, z)) + log_jacobian(prior.support, z))
        np.testing.assert_allclose(jnp.trapezoid(density, z), 1.0, atol=2e-3)


@pytest.mark.parametrize("support", [constraints.sphere, constraints.positive_definite_circulant_vector])
def test_supports_without_bijection_are_refused(support):
    with pytest.raises(NotImplementedError, match=r"The support (sphere|positive_definite_circ.*) has no bijection"):
        unconstrain(support, jnp.ones(3) / jnp.sqrt(3.0))


def test_discrete_supports_are_refused():
    with pytest.raises(ValueError, match="support nonnegative_integer is discrete and has no unconstrained space"):
        unconstrain(constraints.nonnegative_integer, 3)


def test_mixed_infinite_bounds_are_refused():
    with pytest.raises(ValueError, match="some are infinite and some are not"):
        constrain(constraints.interval(np.array([0.0, -np.inf]), np.array([1.0, 1.0])), jnp.zeros(2))


def test_too_short_an_event_is_refused():
    with pytest.raises(ValueError, match=r"event of shape \(3,\) cannot lie in the support corr_matrix"):
        unconstrained_shape(constraints.corr_matrix, (3,))


def test_standardizer_is_the_normal_one_for_normals():
    draws = jnp.asarray([5.0, -2.0, 0.0]) + jnp.asarray([3.0, 0.1, 20.0]) * jax.random.normal(
        jax.random.key(0), (20_000, 3)
    )
    fitted = fit_standardizer(draws)
    # The median's standard error is 1.25 sd / sqrt(n), the quantile spread's 0.93 sd / sqrt(n); five of them allowed.
    sd = jnp.asarray([3.0, 0.1, 20.0])
    np.testing.assert_array_less(jnp.abs(fitted.loc - jnp.asarray([5.0, -2.0, 0.0])) / sd, 5 * 1.25 / 20_000**0.5)
    np.testing.assert_array_less(jnp.abs(fitted.scale / sd - 1.0), 5 * 0.93 / 20_000**0.5)
    np.testing.assert_allclose(fitted.unstandardize(fitted.standardize(draws)), draws, rtol=1e-6, atol=1e-5)


def test_standardizer_withstands_tails_constants_and_missing():
    normal = jax.random.normal(jax.random.key(1), (5_000,))
    heavy = jnp.where(jnp.arange(5_000) < 50, 1e30, normal)
    missing = jnp.where(jnp.arange(5_000) % 7 == 0, jnp.nan, normal)
    constant = jnp.full(5_000, 0.3)
    spike = jnp.where(jnp.arange(5_000) % 10 == 0, 4.0 + normal, 0.0)
    nothing = jnp.full(5_000, jnp.nan)
    fitted = fit_standardizer(jnp.stack([heavy, missing, constant, spike, nothing], axis=1))
    np.testing.assert_allclose(fitted.scale[:2], 1.0, atol=0.1)
    assert fitted.scale[2] == 1.0
    assert fitted.loc[2] == jnp.float32(0.3)
    assert 0.5 < fitted.scale[3] < 4.0
    assert (fitted.loc[4], fitted.scale[4]) == (0.0, 1.0)


OBSERVATIONS = {
    "real": (constraints.real, "real", dist.StudentT(2.0, 100.0, 5.0)),
    "circular": (constraints.circular, "real", dist.VonMises(0.0, 1.0)),
    "positive": (constraints.positive, "positive", dist.LogNormal(3.0, 2.0)),
    "greater_than": (constraints.greater_than(4.0), "positive", dist.Pareto(4.0, 1.5)),
    "less_than": (
        constraints.less_than(1.0),
        "negative",
        dist.TransformedDistribution(
            dist.LogNormal(0.0, 1.0), dist.transforms.AffineTransform(1.0, -1.0, domain=constraints.positive)
        ),
    ),
    "unit_interval": (constraints.unit_interval, "interval", dist.Beta(0.7, 2.0)),
    "interval": (constraints.interval(-5.0, 5.0), "interval", dist.Uniform(-5.0, 5.0)),
    "nonnegative_integer": (constraints.nonnegative_integer, "count", dist.Poisson(3.0)),
    "positive_integer": (constraints.positive_integer, "count", dist.Poisson(900.0)),
    "integer_interval": (constraints.integer_interval(0, 12), "count", dist.Binomial(12, 0.3)),
    "boolean": (constraints.boolean, "binary", dist.Bernoulli(0.3)),
    "binary interval": (constraints.integer_interval(0, 1), "binary", dist.Bernoulli(0.8)),
}
OBSERVED = pytest.mark.parametrize(("support", "kind", "source"), OBSERVATIONS.values(), ids=OBSERVATIONS.keys())


def simulations(source, shape=(400, 3)):
    return source.sample(jax.random.key(5), shape)


@OBSERVED
def test_observation_transform_round_trips_with_its_derivative(support, kind, source):
    @jax.jit
    def everything(draws):
        transform = observation_transform(constraints.independent(support, 1), draws)
        encoded = transform.encode(jax.random.key(6), draws)

        def continuous(one):
            mapped = one * transform.scale[0] + transform.loc[0]
            spread = {"count": jnp.expm1, "binary": lambda value: 2 * value}.get(kind)
            return spread(mapped) if spread else transform.decode(jnp.full(3, one))[0]

        slopes = jax.vmap(jax.grad(continuous))(encoded[:, 0])
        features = jnp.quantile(transform.features(draws), jnp.asarray([0.16, 0.5, 0.84]), axis=0)
        return transform, transform.decode(encoded), slopes, transform.log_derivative(encoded)[:, 0], features

    draws = simulations(source)
    transform, decoded, slopes, log_derivative, features = everything(draws)
    assert transform.kind == kind
    assert transform.loc.shape == (3,)
    if support.is_discrete:
        assert jnp.issubdtype(decoded.dtype, jnp.integer)
        np.testing.assert_array_equal(decoded, draws)
    else:
        np.testing.assert_allclose(decoded, draws, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(log_derivative, jnp.log(jnp.abs(slopes)), rtol=1e-4, atol=1e-4)
    # Binary features take two values only, so their quantiles say nothing.
    if kind != "binary":
        np.testing.assert_allclose(features[1], 0.0, atol=0.02)
        np.testing.assert_allclose(features[2] - features[0], 1.9, atol=0.7)


def test_large_counts_come_back():
    counts = jnp.asarray([0, 1, 2, 17, 999, 12_345, 65_536, 99_999])
    transform = observation_transform(constraints.nonnegative_integer, counts)
    for seed in range(20):
        np.testing.assert_array_equal(transform.decode(transform.encode(jax.random.key(seed), counts)), counts)
    huge = jnp.asarray([10_000_000, 2_000_000_000])
    np.testing.assert_allclose(transform.decode(transform.encode(jax.random.key(0), huge)), huge, rtol=1e-5)


def test_decoded_counts_stay_in_bounds():
    transform = observation_transform(constraints.integer_interval(2, 9), jnp.arange(2, 10))
    decoded = transform.decode(jnp.asarray([-50.0, -3.0, 0.0, 3.0, 50.0]))
    assert (decoded.min(), decoded.max()) == (2, 9)
    unbounded = observation_transform(constraints.nonnegative_integer, jnp.arange(30))
    assert unbounded.decode(jnp.asarray([500.0]))[0] > 2_000_000_000


def test_noise_is_uniform_in_the_cell():
    transform = observation_transform(constraints.boolean, jnp.asarray([0, 1] * 50))
    zeros = jnp.zeros(4_000, int)
    encoded = transform.encode(jax.random.key(0), zeros) * transform.scale + transform.loc
    # Zero fills (0, 1/2): mean 1/4, and a uniform's mean has standard error width / sqrt(12 n).
    np.testing.assert_allclose(encoded.mean(), 0.25, atol=4.3 * 0.5 / (12 * 4_000) ** 0.5)
    assert float(encoded.min()) > 0.0
    assert float(encoded.max()) < 0.5


def test_extreme_observations_give_moderate_features():
    draws = jax.random.normal(jax.random.key(0), (500,))
    for support, scale in ((constraints.real, 1e-12), (constraints.positive, 1.0), (constraints.real, 1e10)):
        values = jnp.abs(draws) * scale if support is constraints.positive else draws * scale
        transform = observation_transform(support, values)
        features = transform.features(jnp.asarray([1e30, 1e-30, 3e38]))
        assert bool(jnp.all(jnp.abs(features) < 300.0))
    near = jnp.asarray([-0.5, 0.0, 0.5])
    unit = observation_transform(constraints.real, draws)
    np.testing.assert_allclose(unit.features(near), (near - unit.loc) / unit.scale, rtol=0.01)


def test_what_is_outside_the_support_is_missing():
    cases = {
        constraints.positive.__class__: (constraints.positive, [1.0, 2.0, 5.0], -1.0),
        "count": (constraints.nonnegative_integer, [1, 2, 5], -3.0),
        "fraction": (constraints.nonnegative_integer, [1, 2, 5], 1.5),
        "interval": (constraints.unit_interval, [0.1, 0.2, 0.5], 1.5),
        "binary": (constraints.boolean, [0, 1, 1], 2.0),
    }
    for support, good, bad in cases.values():
        transform = observation_transform(support, jnp.asarray(good))
        with_bad = observation_transform(support, jnp.asarray([*good, bad, jnp.nan], float))
        assert bool(jnp.isnan(transform.features(bad)))
        np.testing.assert_allclose(with_bad.loc, transform.loc)
        np.testing.assert_allclose(with_bad.scale, transform.scale)


def test_exact_bounds_are_read_at_half_the_smallest_distance():
    transform = observation_transform(constraints.nonnegative, jnp.asarray([0.0, 0.5, 2.0, 8.0]))
    encoded = transform.encode(jax.random.key(0), jnp.asarray([0.0, 0.5]))
    np.testing.assert_allclose(transform.decode(encoded), [0.25, 0.5], rtol=1e-5)


def test_bounds_per_site_become_the_widest():
    transform = observation_transform(constraints.integer_interval(0, np.array([5, 9, 7])), jnp.arange(10))
    assert (transform.lower, transform.upper) == (0.0, 9.0)


def test_transform_passes_through_jit_and_vmap():
    draws = jnp.arange(20)
    transform = observation_transform(constraints.nonnegative_integer, draws)
    encoded = jax.jit(lambda t, k, v: t.encode(k, v))(transform, jax.random.key(0), draws)
    np.testing.assert_array_equal(jax.jit(lambda t, z: t.decode(z))(transform, encoded), draws)
    rows = jnp.stack([draws, draws + 3])
    np.testing.assert_allclose(jax.vmap(transform.features)(rows), transform.features(rows), rtol=1e-6)


def test_unknown_observation_supports_are_refused():
    with pytest.raises(NotImplementedError, match="no observation transform for the support simplex"):
        observation_transform(constraints.simplex, jnp.ones((5, 2)) / 2)


def test_no_implicit_rank_promotion():
    with jax.numpy_rank_promotion("raise"):
        for name in ("positive", "interval", "vector bounds", "simplex", "corr_cholesky", "corr_matrix"):
            support, _, shape, _ = SUPPORTS[name]
            z = jnp.zeros((20, *shape))
            assert jax.eval_shape(lambda z, s=support: unconstrain(s, constrain(s, z)), z).shape == z.shape
            assert jax.eval_shape(lambda z, s=support: log_jacobian(s, z), z).shape == (20,)
        for support, _, _ in OBSERVATIONS.values():

            def use(draws, support=support):
                transform = observation_transform(support, draws)
                encoded = transform.encode(jax.random.key(0), draws[None])
                return transform.decode(encoded), transform.features(draws[None]), transform.log_derivative(encoded)

            shapes = [out.shape for out in jax.eval_shape(use, jnp.zeros((7, 3)))]
            assert shapes == [(1, 7, 3)] * 3

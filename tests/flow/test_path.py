"""The path against its definition and the Gaussian field against its exact flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.flow import align, conditional_velocity, gaussian_velocity, integrate, interpolate, target_velocity


@pytest.fixture
def ends():
    key0, key1 = jax.random.split(jax.random.key(0))
    return jax.random.normal(key0, (4, 3, 2)), 2.0 + jax.random.normal(key1, (4, 3, 2))


@pytest.mark.parametrize("sigma_min", [0.0, 1e-3, 0.2])
def test_path_starts_at_base_and_ends_around_data(ends, sigma_min):
    x0, x1 = ends
    np.testing.assert_array_equal(interpolate(x0, x1, 0.0, sigma_min=sigma_min), x0)
    np.testing.assert_allclose(interpolate(x0, x1, 1.0, sigma_min=sigma_min), x1 + sigma_min * x0, atol=1e-6)


@pytest.mark.parametrize("sigma_min", [1e-3, 0.2])
def test_velocities_are_the_time_derivative_of_the_path(ends, sigma_min):
    x0, x1 = ends
    t = jnp.array([0.0, 0.3, 0.7, 0.95])
    x, derivative = jax.jvp(lambda t: interpolate(x0, x1, t, sigma_min=sigma_min), (t,), (jnp.ones(4),))
    np.testing.assert_allclose(target_velocity(x0, x1, sigma_min=sigma_min), derivative, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(conditional_velocity(x, x1, t, sigma_min=sigma_min), derivative, rtol=1e-4, atol=1e-4)


def test_times_of_members_equal_scalar_times(ends):
    x0, x1 = ends
    t = jnp.array([0.1, 0.4, 0.6, 0.9])
    for function in (
        lambda x0, x1, t: interpolate(x0, x1, t),
        lambda x0, x1, t: conditional_velocity(x0, x1, t),
        lambda x0, x1, t: gaussian_velocity(x0, t),
    ):
        together = function(x0, x1, t)
        apart = jnp.stack([function(x0[i], x1[i], t[i]) for i in range(4)])
        np.testing.assert_allclose(together, apart, rtol=1e-6)
        np.testing.assert_allclose(together, jax.vmap(function)(x0, x1, t), rtol=1e-6)


@pytest.mark.parametrize("sigma_min", [0.0, 1e-3, 0.3])
def test_gaussian_velocity_is_half_the_log_derivative_of_the_variance(sigma_min):
    x = jnp.linspace(-2.0, 2.0, 5)

    def log_variance(t):
        return jnp.log((1.0 - (1.0 - sigma_min) * t) ** 2 + t**2)

    for t in (0.0, 0.25, 0.5, 0.8, 1.0):
        expected = 0.5 * jax.grad(log_variance)(t) * x
        np.testing.assert_allclose(gaussian_velocity(x, t, sigma_min=sigma_min), expected, rtol=1e-5, atol=1e-6)


def test_gaussian_velocity_is_the_regression_of_the_target_on_the_point(double_precision):
    num_draws, t, sigma_min = 200_000, 0.4, 0.1
    x0, x1 = jax.random.normal(jax.random.key(1), (2, num_draws))
    x = interpolate(x0, x1, t, sigma_min=sigma_min)
    residual = target_velocity(x0, x1, sigma_min=sigma_min) - gaussian_velocity(x, t, sigma_min=sigma_min)
    # A conditional mean leaves a residual uncorrelated with every function of x; 4.27 sd is a false-alarm rate of 2e-5.
    for feature in (x, x**3, jnp.sin(2.0 * x)):
        product = residual * feature
        assert abs(product.mean()) < 4.27 * product.std() / np.sqrt(num_draws)


@pytest.mark.parametrize("sigma_min", [1e-3, 0.5])
def test_gaussian_flow_maps_the_base_to_variance_one_plus_sigma_min_squared(double_precision, sigma_min):
    x0 = jax.random.normal(jax.random.key(2), (7, 3))
    x1 = integrate(lambda x, t: gaussian_velocity(x, t, sigma_min=sigma_min), x0, num_steps=64, method="rk4")
    np.testing.assert_allclose(x1, np.sqrt(1.0 + sigma_min**2) * x0, rtol=1e-6)


def test_align_appends_axes_and_keeps_scalars():
    like = jnp.zeros((4, 3, 2))
    assert align(0.5, like).shape == ()
    assert align(jnp.zeros(4), like).shape == (4, 1, 1)
    assert align(jnp.zeros((1, 3)), like).shape == (1, 3, 1)
    assert align(like, like).shape == (4, 3, 2)


@pytest.mark.parametrize("shape", [(3,), (4, 2), (4, 3, 2, 1)])
def test_align_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match=r"does not match the leading axes of values of shape \(4, 3, 2\)"):
        align(jnp.zeros(shape), jnp.zeros((4, 3, 2)))

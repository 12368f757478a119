"""The loss against sums by hand and against its closed form on Gaussian data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.flow import draw_times, flow_matching_loss, gaussian_velocity, masked_loss


@pytest.fixture
def arrays():
    keys = jax.random.split(jax.random.key(0), 4)
    predicted = jax.random.normal(keys[0], (5, 4, 3))
    target = jax.random.normal(keys[1], (5, 4, 3))
    mask = jax.random.bernoulli(keys[2], 0.6, (5, 4, 3)).at[2].set(False)
    weights = jax.random.uniform(keys[3], (5, 4, 3), minval=0.5, maxval=2.0)
    return predicted, target, mask, weights


def test_without_mask_it_is_the_mean_squared_error(arrays):
    predicted, target, _, _ = arrays
    loss = masked_loss(predicted, target)
    assert loss.per_sample.shape == (5, 4)
    np.testing.assert_allclose(loss.per_sample, ((predicted - target) ** 2).mean(-1), rtol=1e-5)
    np.testing.assert_allclose(loss.mean, ((predicted - target) ** 2).mean(), rtol=1e-5)


@pytest.mark.parametrize("event_ndim", [1, 2])
def test_means_run_over_real_entries_with_weights(arrays, event_ndim):
    predicted, target, mask, weights = map(np.asarray, arrays)
    loss = masked_loss(*map(jnp.asarray, (predicted, target)), mask=mask, weights=weights, event_ndim=event_ndim)
    for index in np.ndindex(loss.per_sample.shape):
        real = mask[index]
        expected = 0.0
        if real.any():
            expected = np.average((predicted[index][real] - target[index][real]) ** 2, weights=weights[index][real])
        np.testing.assert_allclose(loss.per_sample[index], expected, rtol=1e-5)
    np.testing.assert_allclose(
        loss.mean, np.average((predicted[mask] - target[mask]) ** 2, weights=weights[mask]), rtol=1e-5
    )


def test_a_common_factor_in_the_weights_changes_nothing(arrays):
    predicted, target, mask, weights = arrays
    once = masked_loss(predicted, target, mask=mask, weights=weights)
    thrice = masked_loss(predicted, target, mask=mask, weights=3.0 * weights)
    np.testing.assert_allclose(once.per_sample, thrice.per_sample, rtol=1e-5)


def test_padding_contributes_exactly_zero_to_loss_and_gradient(arrays):
    predicted, target, mask, weights = arrays
    spoiled = jnp.where(mask, target, jnp.nan)

    def mean(predicted, target):
        return masked_loss(predicted, target, mask=mask, weights=weights).mean

    clean, clean_grad = jax.value_and_grad(mean)(predicted, target)
    dirty, dirty_grad = jax.value_and_grad(mean)(predicted, spoiled)
    assert clean == dirty
    np.testing.assert_array_equal(clean_grad, dirty_grad)
    assert np.all(np.asarray(dirty_grad)[~np.asarray(mask)] == 0.0)


def test_padded_batch_has_the_loss_of_the_batch_without_padding():
    x1 = jax.random.normal(jax.random.key(1), (6, 3))
    padded = jnp.concatenate([x1, jnp.full((6, 2), jnp.nan)], axis=1)
    mask = jnp.array([[True, True, True, False, False]])
    seen = []

    def velocity(x, t):
        seen.append(x)
        return 0.3 * x + t[:, None]

    loss = flow_matching_loss(jax.random.key(2), velocity, padded, mask=mask)
    np.testing.assert_array_equal(seen[0][:, 3:], 0.0)
    refilled = flow_matching_loss(jax.random.key(2), velocity, jnp.where(mask, padded, 7.0), mask=mask)
    np.testing.assert_array_equal(loss.per_sample, refilled.per_sample)
    assert np.isfinite(loss.mean)


@pytest.mark.parametrize("sigma_min", [0.0, 0.2])
def test_loss_on_gaussian_data_has_its_closed_form(sigma_min):
    num_draws, slope = 100_000, 1.0 - sigma_min
    x1 = jax.random.normal(jax.random.key(3), (num_draws, 2))
    t = np.linspace(0.0, 1.0, 4001)
    spread = 1.0 - slope * t
    # With u = x1 - slope x0: E|u|^2 = 1 + slope^2, of which the exact field explains cov(u, x_t)^2 / var(x_t).
    total = 1.0 + slope**2
    explained = np.trapezoid((t - spread * slope) ** 2 / (spread**2 + t**2), t)
    for velocity, expected in (
        (lambda x, t: jnp.zeros_like(x), total),
        (lambda x, t: gaussian_velocity(x, t, sigma_min=sigma_min), total - explained),
    ):
        loss = flow_matching_loss(jax.random.key(4), velocity, x1, sigma_min=sigma_min)
        # Even times only lower the variance below that of independent samples; 4.27 sd is a rate of 2e-5.
        assert abs(loss.mean - expected) < 4.27 * loss.per_sample.std() / np.sqrt(num_draws)


def test_the_same_key_gives_the_same_loss_under_jit_and_another_key_another():
    x1 = jax.random.normal(jax.random.key(5), (8, 3, 2))
    loss = lambda key: flow_matching_loss(key, lambda x, t: -x, x1, event_ndim=2).per_sample  # noqa: E731
    first = loss(jax.random.key(6))
    assert first.shape == (8,)
    np.testing.assert_array_equal(first, loss(jax.random.key(6)))
    np.testing.assert_allclose(first, jax.jit(loss)(jax.random.key(6)), rtol=1e-6)
    assert not np.allclose(first, loss(jax.random.key(7)))


def test_times_are_even_together_and_uniform_each():
    times = jax.vmap(lambda key: draw_times(key, 5))(jax.random.split(jax.random.key(8), 20_000))
    assert times.min() >= 0.0
    assert times.max() < 1.0
    np.testing.assert_allclose(np.diff(np.sort(times, axis=1), axis=1), 0.2, atol=1e-6)
    # Moments of the uniform: E t^k = 1/(k+1), var t^k = 1/(2k+1) - 1/(k+1)^2; 5 sd over ten comparisons.
    for power in (1, 2):
        bound = 5.0 * np.sqrt((1.0 / (2 * power + 1) - 1.0 / (power + 1) ** 2) / 20_000)
        np.testing.assert_allclose((times**power).mean(0), 1.0 / (power + 1), atol=bound)


def test_refuses_a_velocity_of_another_shape():
    with pytest.raises(ValueError, match=r"velocity has shape \(6, 2\), but its target has \(6, 3\)"):
        flow_matching_loss(jax.random.key(0), lambda x, t: x[:, :2], jnp.zeros((6, 3)))


def test_refuses_more_event_axes_than_there_are():
    with pytest.raises(ValueError, match="event_ndim is 3, but"):
        masked_loss(jnp.zeros((6, 3)), jnp.zeros((6, 3)), event_ndim=3)

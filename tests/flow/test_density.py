"""Densities against closed forms, normalization and the exact variance of Hutchinson's estimate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.flow import integrate, log_prob, push_forward

MEAN = np.array([1.0, -0.5, 0.3])
FACTOR = np.array([[0.6, 0.0, 0.2], [0.3, 1.4, 0.0], [-0.2, 0.1, 0.9]])


def affine(x, t):
    """Return the field of x_t = M_t x0 + t MEAN with M_t = (1 - t) I + t FACTOR, which ends at MEAN + FACTOR x0."""
    moved = (1.0 - t) * jnp.eye(3) + t * jnp.asarray(FACTOR, x.dtype)
    mean = jnp.broadcast_to(jnp.asarray(MEAN, x.dtype), x.shape)
    base = jnp.linalg.solve(moved, (x - t * mean).reshape(-1, 3).T).T.reshape(x.shape)
    return mean + base @ (jnp.asarray(FACTOR, x.dtype) - jnp.eye(3)).T


def affine_log_prob(x):
    return stats.multivariate_normal(MEAN, FACTOR @ FACTOR.T).logpdf(x)


def sine(x, t):
    """Return a field with flow tan(x_t / 2) = e^t tan(x_0 / 2) on (-pi, pi)."""
    del t
    return jnp.sin(x)


def whirl(x, t):
    """Return a nonlinear, non-autonomous field in two dimensions without symmetry or gradient structure."""
    a, b = x[..., 0], x[..., 1]
    return jnp.stack([jnp.tanh(2.0 * a * t - b) + 0.3, jnp.sin(a + b) * (1.0 - t) + 0.5 * a], axis=-1)


@pytest.fixture
def points():
    return 1.5 * jax.random.normal(jax.random.key(0), (5, 4, 3))


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"num_steps": 24, "method": "rk4"}, 2e-5),
        ({"num_steps": 64}, 5e-3),
        ({"num_steps": None}, 5e-4),
    ],
    ids=["rk4", "midpoint", "adaptive"],
)
def test_affine_field_has_its_gaussian_density(points, options, tolerance):
    result = log_prob(affine, points, **options)
    assert result.shape == (5, 4)
    np.testing.assert_allclose(result, affine_log_prob(np.asarray(points)), rtol=tolerance, atol=tolerance)


def test_affine_field_maps_the_base_exactly(points):
    x1 = integrate(affine, points, num_steps=24, method="rk4")
    np.testing.assert_allclose(x1, MEAN + np.asarray(points) @ FACTOR.T, atol=1e-5)


def test_sine_field_has_its_closed_form_density():
    x = np.linspace(-3.0, 3.0, 41)
    x0 = 2.0 * np.arctan(np.exp(-1.0) * np.tan(x / 2.0))
    jacobian = np.exp(-1.0) / np.cos(x / 2.0) ** 2 / (1.0 + np.exp(-2.0) * np.tan(x / 2.0) ** 2)
    expected = stats.norm.logpdf(x0) + np.log(jacobian)
    result = log_prob(sine, jnp.asarray(x, jnp.float32)[:, None], num_steps=32, method="rk4")
    np.testing.assert_allclose(result, expected, atol=2e-5)


@pytest.mark.parametrize("num_steps", [32, None])
def test_density_integrates_to_one_in_one_dimension(num_steps):
    # The field pushes by at most 1, so the base mass left outside is below P(|z| > 7).
    x = np.linspace(-8.0, 8.0, 3001)
    density = np.exp(log_prob(sine, jnp.asarray(x, jnp.float32)[:, None], num_steps=num_steps, method="rk4"))
    assert abs(np.trapezoid(density, x) - 1.0) < 1e-4


def test_density_integrates_to_one_in_two_dimensions():
    axis = np.linspace(-8.0, 8.0, 161)
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1), jnp.float32)
    density = np.exp(log_prob(whirl, grid, num_steps=24, method="rk4"))
    mass = np.trapezoid(np.trapezoid(density, axis), axis)
    assert abs(mass - 1.0) < 1e-3
    # Negative control: the divergence is what normalizes.
    x0 = integrate(whirl, grid, num_steps=24, method="rk4", reverse=True)
    without = np.trapezoid(np.trapezoid(np.exp(stats.norm.logpdf(x0).sum(-1)), axis), axis)
    assert abs(without - 1.0) > 0.05


def test_push_forward_agrees_with_integrate_and_log_prob():
    x0 = jax.random.normal(jax.random.key(1), (6, 2))
    draws = push_forward(whirl, x0, num_steps=40, method="rk4")
    np.testing.assert_allclose(draws.value, integrate(whirl, x0, num_steps=40, method="rk4"), atol=1e-6)
    np.testing.assert_allclose(draws.log_prob, log_prob(whirl, draws.value, num_steps=40, method="rk4"), atol=2e-5)
    adaptive = push_forward(whirl, x0, num_steps=None)
    np.testing.assert_allclose(adaptive.log_prob, draws.log_prob, atol=5e-4)


def test_each_draw_has_its_own_density_under_jit_and_vmap(points):
    flat = points.reshape(20, 3)
    evaluate = lambda x: log_prob(affine, x, num_steps=6)  # noqa: E731
    together = evaluate(flat)
    np.testing.assert_allclose(together, jnp.concatenate([evaluate(flat[:7]), evaluate(flat[7:])]), rtol=1e-5)
    np.testing.assert_allclose(together, jax.jit(evaluate)(flat), rtol=1e-5)
    np.testing.assert_allclose(together, jax.vmap(evaluate)(flat), rtol=1e-5)


def test_events_of_two_axes_are_flat_events_in_another_shape():
    x = jax.random.normal(jax.random.key(2), (5, 3, 2))
    flat = lambda x, t: jnp.tanh(x @ jnp.arange(36.0).reshape(6, 6) / 36.0 - t)  # noqa: E731
    shaped = lambda x, t: flat(x.reshape(5, 6), t).reshape(5, 3, 2)  # noqa: E731
    expected = log_prob(flat, x.reshape(5, 6), num_steps=5)
    np.testing.assert_allclose(log_prob(shaped, x, num_steps=5, event_ndim=2), expected, rtol=1e-5)


def test_masked_entries_have_no_density_and_stay_put():
    x = jax.random.normal(jax.random.key(3), (6, 2))
    padded = jnp.concatenate([x, jnp.full((6, 3), 9.0)], axis=1)
    mask = jnp.array([[True, True, False, False, False]])

    def padded_whirl(x, t):
        return jnp.concatenate([whirl(x[..., :2], t), 5.0 * x[..., 2:]], axis=-1)

    np.testing.assert_allclose(
        log_prob(padded_whirl, padded, num_steps=8, mask=mask), log_prob(whirl, x, num_steps=8), rtol=1e-5
    )
    draws = push_forward(padded_whirl, padded, num_steps=8, mask=mask)
    np.testing.assert_array_equal(draws.value[:, 2:], 9.0)
    np.testing.assert_allclose(draws.log_prob, push_forward(whirl, x, num_steps=8).log_prob, rtol=1e-5)


@pytest.mark.parametrize("num_probes", [1, 4])
def test_hutchinson_is_unbiased_with_the_variance_of_theory(num_probes):
    num_draws, dim = 20_000, 5
    matrix = 0.3 * jax.random.normal(jax.random.key(4), (dim, dim))
    field = lambda x, t: x @ matrix.T  # noqa: E731
    x1 = jnp.broadcast_to(jnp.linspace(-1.0, 1.0, dim), (num_draws, dim))
    exact = log_prob(field, x1[:1], num_steps=4, method="rk4")[0]
    estimate = log_prob(field, x1, num_steps=4, method="rk4", key=jax.random.key(5), num_probes=num_probes, max_exact=0)
    deviations = np.asarray(estimate - exact)
    # For random signs e, e.Ae has mean tr A and variance 2 (|S|^2 - sum S_ii^2) with S the symmetric part of A.
    symmetric = np.asarray(matrix + matrix.T) / 2.0
    variance = 2.0 * ((symmetric**2).sum() - (np.diag(symmetric) ** 2).sum()) / num_probes
    # 4.27 sd is a false-alarm rate of 2e-5; the sd of the variance comes from the sampled fourth moment.
    assert abs(deviations.mean()) < 4.27 * np.sqrt(variance / num_draws)
    assert abs((deviations**2).mean() - variance) < 4.27 * (deviations**2).std() / np.sqrt(num_draws)


def test_hutchinson_is_exact_for_separable_fields_and_repeats_with_its_key(points):
    options = {"num_steps": 8, "method": "rk4", "max_exact": 2}
    exact = log_prob(sine, points, num_steps=8, method="rk4")
    np.testing.assert_allclose(log_prob(sine, points, key=jax.random.key(6), **options), exact, rtol=1e-5)
    first = log_prob(affine, points, key=jax.random.key(6), **options)
    np.testing.assert_array_equal(first, log_prob(affine, points, key=jax.random.key(6), **options))
    assert not np.allclose(first, log_prob(affine, points, key=jax.random.key(7), **options))


def test_large_events_need_a_key():
    with pytest.raises(ValueError, match="The event has 65 entries, more than max_exact=64"):
        log_prob(sine, jnp.zeros((3, 65)))
    with pytest.raises(ValueError, match="Pass a random key"):
        push_forward(sine, jnp.zeros((3, 4)), max_exact=3)


def test_refuses_more_event_axes_than_there_are():
    with pytest.raises(ValueError, match="event_ndim is 3, but"):
        log_prob(sine, jnp.zeros((3, 4)), event_ndim=3)

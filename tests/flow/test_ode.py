"""Solvers against exact solutions, known stability polynomials and theoretical rates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.flow import integrate, integrate_adaptive, integrate_with_error

ORDERS = {"midpoint": 2, "rk4": 4}


def swing(x, t):
    """Return a non-autonomous field whose flow is x0 exp(sin 2t)."""
    return 2.0 * jnp.cos(2.0 * t) * x


def swing_end(x0):
    return x0 * np.exp(np.sin(2.0))


def logistic(x, t):
    """Return a nonlinear field with flow x0 e^t / (1 - x0 + x0 e^t)."""
    del t
    return x * (1.0 - x)


def logistic_end(x0):
    return x0 * np.e / (1.0 - x0 + x0 * np.e)


@pytest.fixture
def x0():
    return jnp.linspace(0.1, 2.0, 6).reshape(3, 2)


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("num_steps", [1, 5])
def test_linear_field_gives_the_stability_polynomial(double_precision, method, num_steps):
    rates = jnp.array([-1.5, 0.4, 2.0])
    z = np.asarray(rates) / num_steps
    factor = sum(z**k / math.factorial(k) for k in range(ORDERS[method] + 1)) ** num_steps
    x0 = jnp.array([[1.0, 2.0, -1.0], [0.5, -3.0, 4.0]])
    x1 = integrate(lambda x, t: rates[None] * x, x0, num_steps=num_steps, method=method)
    np.testing.assert_allclose(x1, factor * np.asarray(x0), rtol=1e-12)


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize(("field", "end"), [(swing, swing_end), (logistic, logistic_end)])
def test_error_falls_at_the_theoretical_rate(double_precision, method, field, end, x0):
    x0 = x0.astype(jnp.float64)
    errors = [
        np.abs(integrate(field, x0, num_steps=n, method=method) - end(np.asarray(x0))).max() for n in (80, 160, 320)
    ]
    rates = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    np.testing.assert_allclose(rates, ORDERS[method], atol=0.15)


@pytest.mark.parametrize("method", ORDERS)
def test_reverse_undoes_forward(double_precision, method, x0):
    x1 = integrate(swing, x0, num_steps=200, method=method)
    back = integrate(swing, x1, num_steps=200, method=method, reverse=True)
    np.testing.assert_allclose(back, x0, atol=1e-3 if method == "midpoint" else 1e-8)
    # From the end, the exact flow runs backwards too.
    exact = integrate(swing, jnp.asarray(swing_end(np.asarray(x0))), num_steps=200, method="rk4", reverse=True)
    np.testing.assert_allclose(exact, x0, atol=1e-8)


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("reverse", [False, True])
def test_estimated_error_is_the_error(double_precision, method, reverse, x0):
    start, end = jnp.asarray(x0, jnp.float64), swing_end(np.asarray(x0, np.float64))
    if reverse:
        start, end = jnp.asarray(end), np.asarray(start)
    solution = integrate_with_error(swing, start, num_steps=32, method=method, reverse=reverse)
    np.testing.assert_array_equal(solution.value, integrate(swing, start, num_steps=64, method=method, reverse=reverse))
    # Richardson's estimate is right to first order in the step.
    np.testing.assert_allclose(solution.error, np.abs(solution.value - end), rtol=0.2)


@pytest.mark.parametrize("reverse", [False, True])
def test_adaptive_solver_meets_its_tolerance(reverse, x0):
    for field, end in ((swing, swing_end), (logistic, logistic_end)):
        start, expected = np.asarray(x0), end(np.asarray(x0))
        if reverse:
            start, expected = expected, start
        result = integrate_adaptive(field, jnp.asarray(start), reverse=reverse)
        # A few steps, each within rtol = atol = 1e-5 of values up to 2, stretched by the flow by less than 3.
        np.testing.assert_allclose(result, expected, atol=3e-4)


def test_adaptive_error_follows_its_tolerance(double_precision, x0):
    errors = [
        np.abs(integrate_adaptive(swing, x0, rtol=tol, atol=tol) - swing_end(np.asarray(x0))).max()
        for tol in (1e-3, 1e-6, 1e-9)
    ]
    assert errors[2] < 1e-7
    assert errors[0] > 10.0 * errors[1] > 100.0 * errors[2]


def test_padding_does_not_change_the_adaptive_solution(x0):
    padded = jnp.concatenate([x0, jnp.zeros((40, 2))])
    np.testing.assert_array_equal(integrate_adaptive(swing, padded)[:3], integrate_adaptive(swing, x0))


def test_adaptive_solver_says_when_steps_run_out(x0):
    with pytest.raises(RuntimeError, match="maximum number of solver steps"):
        jax.block_until_ready(integrate_adaptive(swing, x0, rtol=1e-6, atol=1e-6, max_steps=2))


@pytest.mark.parametrize("solve", [lambda f, x: integrate(f, x, num_steps=9), integrate_adaptive])
def test_states_may_be_pytrees(solve, x0):
    flat = jnp.concatenate([x0.reshape(-1), x0[:, 0]])
    tree = {"a": x0, "b": x0[:, 0]}
    together = solve(swing, flat)
    apart = solve(lambda s, t: jax.tree.map(lambda x: swing(x, t), s), tree)
    np.testing.assert_allclose(together, jnp.concatenate([apart["a"].reshape(-1), apart["b"]]), rtol=1e-6)


@pytest.mark.parametrize("method", ORDERS)
def test_jit_and_vmap_change_nothing(method, x0):
    solve = lambda x: integrate(logistic, x, num_steps=7, method=method)  # noqa: E731
    expected = solve(x0)
    np.testing.assert_allclose(jax.jit(solve)(x0), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(solve)(x0), expected, rtol=1e-6)
    assert expected.dtype == x0.dtype


def test_the_field_is_traced_once_per_stage_whatever_the_steps(x0):
    calls = []

    def counted(x, t):
        calls.append(t.shape)
        return x

    jax.jit(lambda x: integrate(counted, x, num_steps=50))(x0)
    assert calls == [(), ()]


def test_gradients_flow_through_the_solver(double_precision):
    rate = jnp.asarray(0.7)
    slope = jax.grad(lambda r: integrate(lambda x, t: r * x, jnp.asarray(2.0), num_steps=40, method="rk4"))(rate)
    np.testing.assert_allclose(slope, 2.0 * np.exp(0.7), rtol=1e-6)


def test_refuses_no_steps_and_unknown_methods(x0):
    with pytest.raises(ValueError, match="num_steps is 0, but at least one"):
        integrate(swing, x0, num_steps=0)
    with pytest.raises(ValueError, match=r"Unknown method 'euler'\. Choose one of 'midpoint', 'rk4'"):
        integrate(swing, x0, num_steps=3, method="euler")

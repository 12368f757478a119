"""Solve dx/dt = velocity(x, t) between the base at time 0 and the data at time 1."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

State = TypeVar("State")
Method = Literal["midpoint", "rk4"]

_ORDER: dict[str, int] = {"midpoint": 2, "rk4": 4}


class Solution(NamedTuple):
    """A solution of known accuracy.

    Attributes:
        value: The state at the end.
        error: An estimate of its absolute error, entry by entry.
    """

    value: jax.Array
    error: jax.Array


def integrate(
    velocity: Callable[[State, jax.Array], State],
    x0: State,
    *,
    num_steps: int,
    method: Method = "midpoint",
    reverse: bool = False,
) -> State:
    """Integrate with equal steps.

    Every draw takes the same steps, so a draw does not depend on the others in its batch.

    Args:
        velocity: Called with a state and a scalar time; returns the state's time derivative.
        x0: The state to start from, an array or a pytree of arrays.
        num_steps: How many steps to take, static.
        method: `midpoint` (order 2, two evaluations a step) or `rk4` (order 4, four).
        reverse: Whether to go from time 1 to time 0.

    Returns:
        The state at the other end, shaped like `x0`.

    Raises:
        ValueError: If `num_steps` is not positive or `method` is unknown.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}, but at least one step is needed.")
    if method not in _ORDER:
        raise ValueError(f"Unknown method {method!r}. Choose one of {', '.join(map(repr, _ORDER))}.")
    dtype = jnp.result_type(*jax.tree.leaves(x0))
    start, step = (1.0, -1.0 / num_steps) if reverse else (0.0, 1.0 / num_steps)
    advance = _midpoint_step if method == "midpoint" else _rk4_step

    def body(state: State, index: jax.Array) -> tuple[State, None]:
        return advance(velocity, state, start + index * step, step), None

    return jax.lax.scan(body, x0, jnp.arange(num_steps, dtype=dtype))[0]


def integrate_with_error(
    velocity: Callable[[jax.Array, jax.Array], jax.Array],
    x0: jax.Array,
    *,
    num_steps: int,
    method: Method = "midpoint",
    reverse: bool = False,
) -> Solution:
    """Integrate with `num_steps` and with twice as many, and estimate the error by Richardson's rule.

    With order p, the finer solution is off by about |fine - coarse| / (2^p - 1). The finer one is returned; the error
    of the coarser, which `integrate` with `num_steps` gives, is 2^p times as large.

    Args:
        velocity: Called with a state and a scalar time.
        x0: The state to start from.
        num_steps: Steps of the coarser solution.
        method: As for `integrate`.
        reverse: Whether to go from time 1 to time 0.
    """
    coarse = integrate(velocity, x0, num_steps=num_steps, method=method, reverse=reverse)
    fine = integrate(velocity, x0, num_steps=2 * num_steps, method=method, reverse=reverse)
    return Solution(value=fine, error=jnp.abs(fine - coarse) / (2 ** _ORDER[method] - 1))


def integrate_adaptive(
    velocity: Callable[[State, jax.Array], State],
    x0: State,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    max_steps: int = 4096,
    reverse: bool = False,
) -> State:
    """Integrate with diffrax's Dopri5 and adaptive steps.

    Steps are common to the batch and their size is set by the largest error in it, not by the mean, so that tolerances
    hold for every draw and padding does not loosen them.

    Args:
        velocity: Called with a state and a scalar time.
        x0: The state to start from, an array or a pytree of arrays.
        rtol: Relative tolerance of a step.
        atol: Absolute tolerance of a step.
        max_steps: Steps after which the solve fails.
        reverse: Whether to go from time 1 to time 0.

    Returns:
        The state at the other end, shaped like `x0`.

    Raises:
        RuntimeError: From diffrax, if `max_steps` did not suffice.
    """
    import diffrax

    start, end = (1.0, 0.0) if reverse else (0.0, 1.0)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, state, _: velocity(state, jnp.asarray(t))),
        diffrax.Dopri5(),
        t0=start,
        t1=end,
        dt0=None,
        y0=x0,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol, norm=_max_norm),
        max_steps=max_steps,
    )
    assert solution.ys is not None
    return jax.tree.map(lambda leaf: leaf[-1], solution.ys)


def _midpoint_step(velocity: Callable, state: State, t: jax.Array, step: float) -> State:
    middle = _move(state, 0.5 * step, velocity(state, t))
    return _move(state, step, velocity(middle, t + 0.5 * step))


def _rk4_step(velocity: Callable, state: State, t: jax.Array, step: float) -> State:
    k1 = velocity(state, t)
    k2 = velocity(_move(state, 0.5 * step, k1), t + 0.5 * step)
    k3 = velocity(_move(state, 0.5 * step, k2), t + 0.5 * step)
    k4 = velocity(_move(state, step, k3), t + step)
    slope = jax.tree.map(lambda a, b, c, d: (a + 2.0 * b + 2.0 * c + d) / 6.0, k1, k2, k3, k4)
    return _move(state, step, slope)


def _move(state: State, step: float, slope: State) -> State:
    return jax.tree.map(lambda value, change: value + step * change, state, slope)


def _max_norm(error: object) -> jax.Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(error)]))

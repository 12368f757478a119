"""Log-densities of a flow by the instantaneous change of variables, one per draw.

Along a solution of dx/dt = v(x, t), d log p_t(x_t) / dt = -div v(x_t, t), hence

    log p_1(x_1) = log N(x_0; 0, I) - int_0^1 div v(x_t, t) dt.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hsbi.flow.ode import Method, integrate, integrate_adaptive
from hsbi.flow.path import align

# The exact divergence costs one Jacobian-vector product per dimension; beyond this the estimate is the cheaper answer.
MAX_EXACT = 64

Velocity = Callable[[jax.Array, jax.Array], jax.Array]


class Draws(NamedTuple):
    """Draws of a flow with their log-densities.

    Attributes:
        value: The draws, [*batch, *event].
        log_prob: Their log-densities, [*batch].
    """

    value: jax.Array
    log_prob: jax.Array


def log_prob(
    velocity: Velocity,
    x1: jax.Array,
    *,
    num_steps: int | None = 32,
    method: Method = "midpoint",
    rtol: float = 1e-5,
    atol: float = 1e-5,
    key: jax.Array | None = None,
    num_probes: int = 1,
    max_exact: int = MAX_EXACT,
    mask: ArrayLike | None = None,
    event_ndim: int = 1,
) -> jax.Array:
    """Return the log-density of each draw by integrating back to the base.

    The velocity must treat the axes in front of the event independently, as a batch.

    Args:
        velocity: The field, called with values shaped like `x1` and a scalar time.
        x1: Where to evaluate, [*batch, *event].
        num_steps: Steps of the fixed-step solver, or None for the adaptive one.
        method: Method of the fixed-step solver.
        rtol: Relative tolerance of the adaptive solver.
        atol: Absolute tolerance of the adaptive solver.
        key: A random key for the Hutchinson estimate; needed when the event has more than `max_exact` entries.
        num_probes: Rademacher probes per draw in the Hutchinson estimate. Its result is unbiased and keeps one set of
            probes through the solve.
        max_exact: The largest event for which the divergence is exact.
        mask: True where an entry is real, the leading axes of `x1`; masked entries stay put and have no density.
        event_ndim: How many trailing axes make up the event.

    Returns:
        Log-densities, [*batch].

    Raises:
        ValueError: If the event is larger than `max_exact` and no key is given, or `event_ndim` exceeds the rank.
    """
    field, real = _mask_field(velocity, x1, mask)
    flow = _augment(field, x1, key, num_probes, max_exact, event_ndim)
    start = (x1, jnp.zeros(x1.shape[: x1.ndim - event_ndim], x1.dtype))
    x0, change = _solve(flow, start, num_steps, method, rtol, atol, reverse=True)
    return _base_log_prob(x0, real, event_ndim) + change


def push_forward(
    velocity: Velocity,
    x0: jax.Array,
    *,
    num_steps: int | None = 32,
    method: Method = "midpoint",
    rtol: float = 1e-5,
    atol: float = 1e-5,
    key: jax.Array | None = None,
    num_probes: int = 1,
    max_exact: int = MAX_EXACT,
    mask: ArrayLike | None = None,
    event_ndim: int = 1,
) -> Draws:
    """Carry base draws to the data and return them with their log-densities, in one solve.

    Args:
        velocity: The field, called with values shaped like `x0` and a scalar time.
        x0: Draws of the base N(0, I), [*batch, *event].
        num_steps: As for `log_prob`, like all that follow.
        method: Method of the fixed-step solver.
        rtol: Relative tolerance of the adaptive solver.
        atol: Absolute tolerance of the adaptive solver.
        key: A random key for the Hutchinson estimate.
        num_probes: Rademacher probes per draw in the Hutchinson estimate.
        max_exact: The largest event for which the divergence is exact.
        mask: True where an entry is real, the leading axes of `x0`.
        event_ndim: How many trailing axes make up the event.
    """
    field, real = _mask_field(velocity, x0, mask)
    flow = _augment(field, x0, key, num_probes, max_exact, event_ndim)
    start = (x0, jnp.zeros(x0.shape[: x0.ndim - event_ndim], x0.dtype))
    x1, change = _solve(flow, start, num_steps, method, rtol, atol, reverse=False)
    return Draws(value=x1, log_prob=_base_log_prob(x0, real, event_ndim) - change)


def _mask_field(velocity: Velocity, x: jax.Array, mask: ArrayLike | None) -> tuple[Velocity, jax.Array]:
    if mask is None:
        return velocity, jnp.ones(x.shape, bool)
    real = jnp.broadcast_to(align(mask, x).astype(bool), x.shape)
    return lambda x, t: jnp.where(real, velocity(x, t), 0.0), real


def _augment(
    velocity: Velocity, like: jax.Array, key: jax.Array | None, num_probes: int, max_exact: int, event_ndim: int
) -> Callable:
    """Return the field of the pair (x, integral of the divergence)."""
    if not 0 <= event_ndim <= like.ndim:
        raise ValueError(f"event_ndim is {event_ndim}, but values of shape {like.shape} have {like.ndim} axes.")
    event_shape = like.shape[like.ndim - event_ndim :]
    size = math.prod(event_shape)
    exact = size <= max_exact
    if exact:
        basis = jnp.eye(size, dtype=like.dtype).reshape(size, *(1,) * (like.ndim - event_ndim), *event_shape)
        probes = jnp.broadcast_to(basis, (size, *like.shape))
    elif key is None:
        raise ValueError(
            f"The event has {size} entries, more than max_exact={max_exact} for an exact divergence. "
            "Pass a random key for the Hutchinson estimate, or a larger max_exact."
        )
    else:
        probes = jax.random.rademacher(key, (num_probes, *like.shape), like.dtype)
    axes = tuple(range(like.ndim - event_ndim, like.ndim))

    def flow(state: tuple[jax.Array, jax.Array], t: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, push = jax.linearize(lambda x: velocity(x, t), state[0])
        # A probe e gives e.Je: their sum over the basis is the trace, their mean over random signs its estimate.
        forms = jax.vmap(lambda probe: jnp.sum(probe * push(probe), axis=axes))(probes)
        return value, jnp.sum(forms, axis=0) if exact else jnp.mean(forms, axis=0)

    return flow


def _solve(
    flow: Callable, start: tuple, num_steps: int | None, method: Method, rtol: float, atol: float, *, reverse: bool
) -> tuple[jax.Array, jax.Array]:
    if num_steps is None:
        return integrate_adaptive(flow, start, rtol=rtol, atol=atol, reverse=reverse)
    return integrate(flow, start, num_steps=num_steps, method=method, reverse=reverse)


def _base_log_prob(x0: jax.Array, real: jax.Array, event_ndim: int) -> jax.Array:
    axes = tuple(range(x0.ndim - event_ndim, x0.ndim))
    terms = -0.5 * (x0**2 + math.log(2.0 * math.pi))
    return jnp.sum(jnp.where(real, terms, 0.0), axis=axes)

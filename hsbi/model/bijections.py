"""Bijections between a continuous support and its unconstrained coordinates."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from numpyro.util import not_jax_tracer


class _Bijection(NamedTuple):
    """A map from unconstrained coordinates to values, over the last `event_dim` axes."""

    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    log_jacobian: Callable[[Array], Array]


def unconstrain(support: constraints.Constraint, value: ArrayLike) -> Array:
    """Map values of a continuous support to unconstrained coordinates.

    It is NumPyro's `biject_to` in formulas that hold up in float32 near the bounds. A value on an open bound (or
    beyond it by rounding) is moved inside first: by half a machine epsilon of the width in an interval, to the
    smallest normal number from a half-line's bound, a simplex face, or a tie of an ordered vector. All others stay as
    they are.

    Args:
        support: The support of one event; axes in front of the event are batch.
        value: Values in the support.
    """
    return _bijection(support).inverse(as_inexact(value))


def constrain(support: constraints.Constraint, coordinates: ArrayLike) -> Array:
    """Map unconstrained coordinates to the support, the inverse of `unconstrain`."""
    return _bijection(support).forward(as_inexact(coordinates))


def log_jacobian(support: constraints.Constraint, coordinates: ArrayLike) -> Array:
    """Give log |det d constrain(z) / dz| per event.

    Where values have more entries than coordinates the determinant is that of the free entries, as in NumPyro's
    densities: all but the last of a simplex, the lower triangle of a Cholesky factor or covariance, the strictly lower
    one of a correlation. A zero-sum array is an isometry, with volume log sqrt det(J^T J) = 0.
    """
    base, extra = strip_independent(support)
    result = _bijection(base).log_jacobian(as_inexact(coordinates))
    return jnp.sum(result, axis=tuple(range(result.ndim - extra, result.ndim)))


def unconstrained_shape(support: constraints.Constraint, event_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Give the shape of the unconstrained coordinates of one event, without computing anything."""
    if len(event_shape) < support.event_dim:
        raise ValueError(
            f"An event of shape {event_shape} cannot lie in {describe_support(support)}, which has {support.event_dim} "
            "dimensions. Pass the whole event shape."
        )
    inverse = _bijection(support).inverse
    dtype = jnp.result_type(complex if isinstance(strip_independent(support)[0], type(constraints.complex)) else float)
    return tuple(jax.eval_shape(inverse, jax.ShapeDtypeStruct(tuple(event_shape), dtype)).shape)


def _bijection(support: constraints.Constraint) -> _Bijection:
    base, _ = strip_independent(support)
    if base.is_discrete:
        raise ValueError(
            f"A variable on {describe_support(support)} is discrete and has no unconstrained space. "
            "Only continuous latents can be inferred: sum the discrete variable out of the model."
        )
    if isinstance(base, type(constraints.simplex)):
        return _Bijection(_simplex_forward, _simplex_inverse, _simplex_log_jacobian)
    if isinstance(base, type(constraints.corr_cholesky)):
        return _Bijection(_corr_forward, _corr_inverse, _corr_log_jacobian)
    if isinstance(base, type(constraints.corr_matrix)):
        return _Bijection(_corr_matrix_forward, _corr_matrix_inverse, _corr_matrix_log_jacobian)
    softplus = isinstance(base, type(constraints.softplus_positive))
    if isinstance(base, constraints.greater_than) and not softplus:
        return _half_line(base.lower_bound, 1.0)
    if isinstance(base, constraints.less_than):
        return _half_line(base.upper_bound, -1.0)
    if isinstance(base, constraints.interval):
        return _interval(base.lower_bound, base.upper_bound)
    return _registered(base, support)


def _registered(base: constraints.Constraint, support: constraints.Constraint) -> _Bijection:
    """Take NumPyro's bijection as it is."""
    try:
        transform = biject_to(base)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{describe_support(support).capitalize()} has no bijection to an unconstrained space. Write the variable "
            "as a deterministic function of unconstrained ones, such as a direction as normals divided by their norm."
        ) from error

    def inverse(value: Array) -> Array:
        coordinates = transform.inv(value)
        return jnp.where(jnp.isneginf(coordinates), math.log(jnp.finfo(coordinates.dtype).tiny), coordinates)

    def log_det(coordinates: Array) -> Array:
        return jnp.real(transform.log_abs_det_jacobian(coordinates, transform(coordinates)))

    return _Bijection(transform, inverse, log_det)


def _half_line(bound: ArrayLike, sign: float) -> _Bijection:
    """Take y = bound + sign exp(z)."""

    def forward(coordinates: Array) -> Array:
        edge = front(bound, coordinates)
        value = edge + sign * bounded_exp(coordinates)
        inner = jnp.nextafter(jax.lax.stop_gradient(edge), jnp.full_like(edge, sign * jnp.inf))
        return jnp.maximum(value, inner) if sign > 0 else jnp.minimum(value, inner)

    def inverse(value: Array) -> Array:
        distance = sign * (value - front(bound, value))
        return jnp.log(jnp.maximum(distance, jnp.finfo(distance.dtype).tiny))

    return _Bijection(forward, inverse, lambda coordinates: coordinates)


def _interval(lower: ArrayLike, upper: ArrayLike) -> _Bijection:
    """Take y = lower + (upper - lower) sigmoid(z); with an infinite bound it is a half-line or the line."""
    open_low, open_high = _all_infinite(lower), _all_infinite(upper)
    if open_low and open_high:
        return _registered(constraints.real, constraints.real)
    if open_low or open_high:
        return _half_line(upper, -1.0) if open_low else _half_line(lower, 1.0)

    def forward(coordinates: Array) -> Array:
        return interval_forward(coordinates, front(lower, coordinates), front(upper, coordinates))

    def inverse(value: Array) -> Array:
        low, high = front(lower, value), front(upper, value)
        nudge = jnp.finfo(value.dtype).eps / 2 * (high - low)
        below = jnp.where(value <= low, nudge, value - low)
        above = jnp.where(value >= high, nudge, high - value)
        return jnp.log(below) - jnp.log(above)

    def log_det(coordinates: Array) -> Array:
        width = front(upper, coordinates) - front(lower, coordinates)
        return jnp.log(width) + jax.nn.log_sigmoid(coordinates) + jax.nn.log_sigmoid(-coordinates)

    return _Bijection(forward, inverse, log_det)


def _all_infinite(bound: ArrayLike) -> bool:
    if not not_jax_tracer(bound):
        return False
    infinite = np.isinf(np.asarray(bound))
    if infinite.any() and not infinite.all():
        raise ValueError(
            f"An interval has the bounds {np.asarray(bound)}, of which some are infinite and some are not. "
            "Write the variables with and without a bound as two sites."
        )
    return bool(infinite.all())


def interval_forward(coordinates: Array, lower: Array, upper: Array) -> Array:
    """Map the line to an open interval, measuring from the nearer bound so that no digits are lost there."""
    width = upper - lower
    from_low = lower + width * jax.nn.sigmoid(coordinates)
    from_high = upper - width * jax.nn.sigmoid(-coordinates)
    # No gradient through the guard: JAX has no derivative of nextafter.
    low, high = jax.lax.stop_gradient((lower, upper))
    value = jnp.where(coordinates < 0, from_low, from_high)
    return jnp.clip(value, jnp.nextafter(low, high), jnp.nextafter(high, low))


def bounded_exp(value: Array) -> Array:
    """Give exp without under- or overflow, within the normal numbers of the dtype."""
    info = jnp.finfo(value.dtype)
    return jnp.clip(jnp.exp(value), info.tiny, info.max)


def front(array: ArrayLike, like: Array) -> Array:
    """Align an array to the trailing axes of another by leading axes of one."""
    array = jnp.asarray(array, like.dtype)
    return jnp.reshape(array, (1,) * (like.ndim - array.ndim) + array.shape)


def as_inexact(value: ArrayLike) -> Array:
    """Make an array of at least the default float type."""
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.result_type(float))


def strip_independent(support: constraints.Constraint) -> tuple[constraints.Constraint, int]:
    """Separate a support into that of one independent part and the number of axes of such parts."""
    if isinstance(support, constraints.independent):
        return support.base_constraint, support.reinterpreted_batch_ndims
    return support, 0


def describe_support(support: constraints.Constraint) -> str:
    """Name a support as users know it, such as `the support positive`."""
    base, extra = strip_independent(support)
    for name in constraints.__all__:
        if getattr(constraints, name) is base:
            return f"the support {name}"
    return f"the support {base!r}" if not extra else f"the support {support!r}"


def _sum_before(value: Array) -> Array:
    """Sum all entries in front of each one along the last axis, without subtracting it from a sum that has it."""
    total = jnp.cumsum(value[..., :-1], axis=-1)
    return jnp.concatenate([jnp.zeros_like(value[..., :1]), total], axis=-1)


def _stick_offsets(coordinates: Array) -> Array:
    """Give NumPyro's shift of stick-breaking logits, under which zero coordinates are the centre of the simplex."""
    length = coordinates.shape[-1]
    return front(jnp.log(length - jnp.arange(length, dtype=coordinates.dtype)), coordinates)


def _simplex_forward(coordinates: Array) -> Array:
    logits = coordinates - _stick_offsets(coordinates)
    rest = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
    none = jnp.zeros_like(rest[..., :1])
    pieces = jnp.concatenate([jax.nn.log_sigmoid(logits), none], axis=-1)
    return jnp.exp(jnp.concatenate([none, rest], axis=-1) + pieces)


def _simplex_inverse(value: Array) -> Array:
    value = jnp.maximum(value, jnp.finfo(value.dtype).tiny)
    # Summing what is left of the stick, instead of subtracting from one, keeps small entries to full precision.
    rest = jnp.flip(jnp.cumsum(jnp.flip(value, axis=-1), axis=-1), axis=-1)[..., 1:]
    logits = jnp.log(value[..., :-1]) - jnp.log(rest)
    return logits + _stick_offsets(logits)


def _simplex_log_jacobian(coordinates: Array) -> Array:
    # dy_k / dz_k = y_k (1 - sigmoid(logit_k)), and the matrix is triangular.
    logits = coordinates - _stick_offsets(coordinates)
    broken, kept = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    return jnp.sum(_sum_before(kept) + broken + kept, axis=-1)


def _strict_lower(coordinates: Array) -> Array:
    """Fill the strictly lower triangle of a square matrix, row by row."""
    size = round((1 + math.sqrt(1 + 8 * coordinates.shape[-1])) / 2)
    rows, columns = np.tril_indices(size, -1)
    return jnp.zeros((*coordinates.shape[:-1], size, size), coordinates.dtype).at[..., rows, columns].set(coordinates)


def _log_sech(value: Array) -> Array:
    size = jnp.abs(value)
    return math.log(2.0) - size - jax.nn.softplus(-2.0 * size)


def _corr_forward(coordinates: Array) -> Array:
    # Row i: y_ij = tanh(z_ij) prod_{k<j} sech(z_ik), and the diagonal takes the rest of the unit length.
    matrix = _strict_lower(coordinates)
    before = _sum_before(_log_sech(matrix))
    identity = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)
    return (jnp.tanh(matrix) + identity) * jnp.exp(before)


def _corr_inverse(value: Array) -> Array:
    # arctanh(t) = arcsinh(t / sqrt(1 - t^2)), and that ratio is the entry over the length of the row after it.
    after = jnp.flip(_sum_before(jnp.flip(value * value, axis=-1)), axis=-1)
    rows, columns = np.tril_indices(value.shape[-1], -1)
    rest = jnp.maximum(jnp.sqrt(after[..., rows, columns]), jnp.finfo(value.dtype).tiny)
    return jnp.arcsinh(value[..., rows, columns] / rest)


def _corr_log_jacobian(coordinates: Array) -> Array:
    matrix = _strict_lower(coordinates)
    log_sech = _log_sech(matrix)
    rows, columns = np.tril_indices(matrix.shape[-1], -1)
    return jnp.sum((_sum_before(log_sech) + 2.0 * log_sech)[..., rows, columns], axis=-1)


def _corr_matrix_forward(coordinates: Array) -> Array:
    factor = _corr_forward(coordinates)
    return jnp.matmul(factor, jnp.swapaxes(factor, -2, -1))


def _corr_matrix_inverse(value: Array) -> Array:
    return _corr_inverse(jnp.linalg.cholesky(value))


def _corr_matrix_log_jacobian(coordinates: Array) -> Array:
    # dR_ij / dL_ij = L_jj for i > j, and the matrix is triangular in this order: sum_j (size - 1 - j) log L_jj.
    factor = _corr_forward(coordinates)
    size = factor.shape[-1]
    powers = front(size - 1 - jnp.arange(size, dtype=factor.dtype), factor[..., 0])
    diagonal = jnp.diagonal(factor, axis1=-2, axis2=-1)
    return _corr_log_jacobian(coordinates) + jnp.sum(powers * jnp.log(diagonal), axis=-1)

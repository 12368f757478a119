"""Linear algebra of many small matrices, written as array operations.

LAPACK is called once per matrix, which is slow for thousands of 5 x 5 matrices, and batched calls inside compiled loops
were seen to hang on CPUs with two cores.
"""

import jax
import jax.numpy as jnp
from jax import Array


def cholesky(matrix: Array, min_eigenvalue: float = 0.0) -> Array:
    """Factor positive definite matrices `[..., d, d]` as L L^T with L lower triangular, column by column.

    Squares of the diagonal of L are never below the smallest eigenvalue. Where that is known, cancellation in a matrix
    that is nearly singular relative to its size cannot make them so.
    """
    dim = matrix.shape[-1]
    rows = jnp.arange(dim)

    def factor_column(column: Array, factor: Array) -> Array:
        own = jax.lax.dynamic_index_in_dim(factor, column, axis=-2, keepdims=False)
        target = jax.lax.dynamic_index_in_dim(matrix, column, axis=-1, keepdims=False)
        rest = target - jnp.sum(factor * own[..., None, :], axis=-1)
        rest = jnp.where(jnp.broadcast_to(rows == column, rest.shape), jnp.maximum(rest, min_eigenvalue), rest)
        pivot = jnp.sqrt(jax.lax.dynamic_index_in_dim(rest, column, axis=-1))
        below = jnp.broadcast_to(rows >= column, rest.shape)
        return jax.lax.dynamic_update_index_in_dim(factor, jnp.where(below, rest / pivot, 0.0), column, axis=-1)

    return jax.lax.fori_loop(0, dim, factor_column, jnp.zeros_like(matrix))


def solve_lower(factor: Array, target: Array) -> Array:
    """Solve L x = b by forward substitution, L `[..., d, d]` lower triangular and b `[..., d]`."""
    return _substitute(factor, target, jnp.arange(target.shape[-1]))


def solve_upper(factor: Array, target: Array) -> Array:
    """Solve L^T x = b by backward substitution, L lower triangular."""
    return _substitute(jnp.swapaxes(factor, -1, -2), target, jnp.arange(target.shape[-1])[::-1])


def _substitute(matrix: Array, target: Array, order: Array) -> Array:
    def solve_row(solution: Array, row: Array) -> tuple[Array, None]:
        own = jax.lax.dynamic_index_in_dim(matrix, row, axis=-2, keepdims=False)
        diagonal = jax.lax.dynamic_index_in_dim(own, row, axis=-1)
        wanted = jax.lax.dynamic_index_in_dim(target, row, axis=-1)
        # Entries not yet solved are zero.
        value = (wanted - jnp.sum(own * solution, axis=-1, keepdims=True)) / diagonal
        return jax.lax.dynamic_update_index_in_dim(solution, value[..., 0], row, axis=-1), None

    start = jnp.zeros(jnp.broadcast_shapes(matrix.shape[:-1], target.shape), target.dtype)
    return jax.lax.scan(solve_row, start, order)[0]

"""Distances between two sets of draws: maximum mean discrepancy and sliced Wasserstein."""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

_PERMUTATION_CHUNK = 100


class Mmd(NamedTuple):
    """Maximum mean discrepancy of two samples.

    Attributes:
        squared: Unbiased estimate of the squared discrepancy; it may be negative.
        bandwidth: The kernel's length scale.
    """

    squared: float
    bandwidth: float


class MmdTest(NamedTuple):
    """Maximum mean discrepancy of two samples with its significance.

    Attributes:
        squared: Unbiased estimate of the squared discrepancy.
        bandwidth: The kernel's length scale.
        p_value: Share of relabelings with as large an estimate.
    """

    squared: float
    bandwidth: float
    p_value: float


def as_samples(x: ArrayLike, y: ArrayLike, least: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Check two samples `[draws, ...]` of the same quantities, and flatten each draw to a vector."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.ndim < 1 or y.ndim < 1 or x.shape[1:] != y.shape[1:] or min(x.shape[0], y.shape[0]) < least:
        raise ValueError(
            f"Samples have shapes {x.shape} and {y.shape}; expected [draws, ...] with equal shapes of a draw and at "
            f"least {least} draws each."
        )
    if not (np.all(np.isfinite(x)) and np.all(np.isfinite(y))):
        raise ValueError("Samples hold values that are not finite. Find out where they come from, or leave them out.")
    return x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1)


def mmd(x: ArrayLike, y: ArrayLike, *, bandwidth: float | None = None) -> Mmd:
    r"""Estimate the squared maximum mean discrepancy of two samples without bias.

    .. math::

        \widehat{\mathrm{MMD}}^2 = \frac{1}{n(n-1)} \sum_{i \ne j} k(x_i, x_j) + \frac{1}{m(m-1)} \sum_{i \ne j}
        k(y_i, y_j) - \frac{2}{nm} \sum_{i, j} k(x_i, y_j), \qquad k(a, b) = e^{-|a - b|^2 / (2 h^2)}

    Distances are Euclidean in the units given: scale the columns first if they differ.

    Args:
        x: Draws, `[n, ...]`.
        y: Draws of the same quantities, `[m, ...]`.
        bandwidth: The length scale h; by default the median distance between two draws of the pooled sample.

    Returns:
        The estimate, which is zero in expectation for samples of one distribution, and the bandwidth.
    """
    x, y = as_samples(x, y)
    kernel, bandwidth = _kernel(np.concatenate([x, y]), bandwidth)
    is_x = (np.arange(len(kernel)) < len(x))[None].astype(float)
    return Mmd(float(_unbiased(kernel, is_x)[0]), bandwidth)


def mmd_test(
    key: Array, x: ArrayLike, y: ArrayLike, *, bandwidth: float | None = None, num_permutations: int = 500
) -> MmdTest:
    """Test whether two samples have one distribution, by permutations of the maximum mean discrepancy.

    Args:
        key: A random key for the permutations.
        x: Independent draws, `[n, ...]`.
        y: Independent draws of the same quantities, `[m, ...]`.
        bandwidth: The kernel's length scale; by default the median distance in the pooled sample.
        num_permutations: Random relabelings; no p-value is below 1 / (num_permutations + 1).

    Returns:
        The estimate of `mmd` with its p-value.
    """
    x, y = as_samples(x, y)
    if num_permutations < 1:
        raise ValueError(f"num_permutations is {num_permutations}, expected 1 or more.")
    kernel, bandwidth = _kernel(np.concatenate([x, y]), bandwidth)
    is_x = (np.arange(len(kernel)) < len(x)).astype(float)
    observed = _unbiased(kernel, is_x[None])[0]
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), "uint32")))
    exceeding = 0
    for start in range(0, num_permutations, _PERMUTATION_CHUNK):
        count = min(_PERMUTATION_CHUNK, num_permutations - start)
        labels = rng.permuted(np.tile(is_x, (count, 1)), axis=1)
        exceeding += int(np.sum(_unbiased(kernel, labels) >= observed))
    return MmdTest(float(observed), bandwidth, (1 + exceeding) / (1 + num_permutations))


def sliced_wasserstein(
    key: Array, x: ArrayLike, y: ArrayLike, *, num_projections: int = 200, order: float = 2.0
) -> float:
    r"""Estimate the sliced Wasserstein distance of two samples.

    .. math::

        \mathrm{SW}_p = \left( \frac1K \sum_{k=1}^{K} W_p^p(\langle v_k, x \rangle, \langle v_k, y \rangle)
        \right)^{1/p}, \qquad W_p^p = \int_0^1 |F_x^{-1}(t) - F_y^{-1}(t)|^p\, dt

    with random unit vectors :math:`v_k`. The one-dimensional distances are exact for any two sample sizes. In one
    dimension there is nothing to slice, and one projection is used.

    Args:
        key: A random key for the directions.
        x: Draws, `[n, ...]`.
        y: Draws of the same quantities, `[m, ...]`.
        num_projections: The number K of directions.
        order: The order p, 1 or more.

    Returns:
        The distance, in the units of the draws.
    """
    x, y = as_samples(x, y, least=1)
    if order < 1 or num_projections < 1:
        raise ValueError(f"order is {order} and num_projections {num_projections}, expected 1 or more for both.")
    if x.shape[1] == 1:
        directions = np.ones((1, 1))
    else:
        directions = np.asarray(jax.random.normal(key, (num_projections, x.shape[1])), float)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sorted_x, sorted_y = np.sort(x @ directions.T, axis=0), np.sort(y @ directions.T, axis=0)
    # Quantile functions are steps; between two neighboring steps of either the difference is constant.
    steps = np.union1d(np.arange(len(x) + 1) / len(x), np.arange(len(y) + 1) / len(y))
    middle, width = (steps[1:] + steps[:-1]) / 2, np.diff(steps)
    gap = np.abs(sorted_x[(middle * len(x)).astype(int)] - sorted_y[(middle * len(y)).astype(int)])
    return float(np.mean(width @ gap**order) ** (1 / order))


def _kernel(pooled: np.ndarray, bandwidth: float | None) -> tuple[np.ndarray, float]:
    """Give the kernel matrix without its diagonal, and the bandwidth."""
    centered = pooled - pooled.mean(0)
    norms = np.sum(centered**2, axis=1)
    squared = np.maximum(norms[:, None] + norms - 2 * centered @ centered.T, 0.0)
    if bandwidth is None:
        bandwidth = float(np.sqrt(np.median(squared[np.triu_indices(len(squared), 1)])))
        if bandwidth == 0:
            raise ValueError(
                "More than half of all pairs of draws are equal, so their median distance is zero. Pass bandwidth=..."
            )
    elif bandwidth <= 0:
        raise ValueError(f"bandwidth is {bandwidth}, expected a positive number.")
    kernel = np.exp(-squared / (2 * bandwidth**2))
    np.fill_diagonal(kernel, 0.0)
    return kernel, bandwidth


def _unbiased(kernel: np.ndarray, is_x: np.ndarray) -> np.ndarray:
    """Evaluate the estimate for each row of labels, `[labelings, draws]`."""
    num_x = is_x.sum(1)
    num_y = is_x.shape[1] - num_x
    to_x = is_x @ kernel
    within_x = np.sum(to_x * is_x, axis=1)
    between = np.sum(to_x, axis=1) - within_x
    within_y = kernel.sum() - within_x - 2 * between
    return within_x / (num_x * (num_x - 1)) + within_y / (num_y * (num_y - 1)) - 2 * between / (num_x * num_y)

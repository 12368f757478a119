"""Posteriors of a few globals on grids that zoom in on the mass, and exact draws from them."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

# Cells whose log density is this far below the largest hold less than a millionth of its mass each.
_DROP = 16.0
# Cells kept around what a coarse grid finds: its best cell is next to the peak, not always on it.
_MARGIN = 2
_MAX_CLIMBS = 60
# Relative to a cell. A ridge across axes of different scales can be followed by small steps only; one axis has none.
_FINEST_STEPS = (1 / 8, 1 / 1024)
_LEAST_SHRINKAGE = 0.8
_NUM_PROPOSALS = 500
_CLIPPED = 1e-3

Axes = list[np.ndarray]


def zoom(
    evaluate: Callable[[Axes], np.ndarray],
    low: Sequence[float],
    high: Sequence[float],
    *,
    coarse: int,
    final: int,
    num_rounds: int = 10,
) -> tuple[Axes, np.ndarray]:
    """Find the box that holds the mass of a density, and evaluate the density there.

    Args:
        evaluate: Gives the log density on the product of axes, `[len(axis) for axis in axes]`.
        low: Lower end of each axis.
        high: Upper end of each axis.
        coarse: Cells per axis while zooming.
        final: Cells per axis at last.
        num_rounds: Most rounds of zooming; it ends when the box neither shrinks nor grows.

    Returns:
        The centers of equal cells along each axis, and the log density there.
    """
    bounds = np.array([low, high], float)
    box = bounds.copy()
    for _ in range(num_rounds):
        axes = _centers(box, coarse)
        values = evaluate(axes)
        before, width = box.copy(), (box[1] - box[0]) / coarse
        peak, height = _climb(evaluate, axes, values, width, bounds)
        # What the grid misses at the peak it may miss along a narrow ridge as well.
        kept = values > 2 * values.max() - height - _DROP
        for position, axis in enumerate(axes):
            inside = axis[kept.any(axis=tuple(other for other in range(len(axes)) if other != position))]
            margin = (_MARGIN + 0.5) * width[position]
            box[0, position] = max(bounds[0, position], min(inside[0], peak[position]) - margin)
            box[1, position] = min(bounds[1, position], max(inside[-1], peak[position]) + margin)
        grown = (box[0] < before[0]) | (box[1] > before[1])
        if not grown.any() and np.prod((box[1] - box[0]) / (before[1] - before[0])) > _LEAST_SHRINKAGE:
            break
    axes = _centers(box, final)
    return axes, evaluate(axes)


def _climb(
    evaluate: Callable[[Axes], np.ndarray], axes: Axes, values: np.ndarray, width: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, float]:
    """Climb from the best cell of a grid, by the best neighbor at steps that halve; give the point and its height."""
    index = np.unravel_index(np.argmax(values), values.shape)
    peak, height = np.array([axis[k] for axis, k in zip(axes, index, strict=True)]), float(values.max())
    step = width / 2
    for _ in range(_MAX_CLIMBS):
        around = [
            np.clip(center + h * np.array([-1.0, 0.0, 1.0]), *ends)
            for center, h, ends in zip(peak, step, bounds.T, strict=True)
        ]
        found = evaluate(around)
        if found.max() > height:
            index = np.unravel_index(np.argmax(found), found.shape)
            peak, height = np.array([axis[k] for axis, k in zip(around, index, strict=True)]), float(found.max())
        elif step[0] > width[0] * _FINEST_STEPS[len(step) > 1]:
            step = step / 2
        else:
            break
    return peak, height


def on_points(log_density: Callable[..., np.ndarray]) -> Callable[[Axes], np.ndarray]:
    """Turn a log density of points into one of the product of axes."""

    def evaluate(axes: Axes) -> np.ndarray:
        grids = np.meshgrid(*axes, indexing="ij")
        return log_density(*(grid.ravel() for grid in grids)).reshape(grids[0].shape)

    return evaluate


def sample_cells(rng: np.random.Generator, axes: Axes, values: np.ndarray, num_draws: int) -> np.ndarray:
    """Draw cells of a grid by their mass, and a point in each at random, `[draws, axes]`."""
    return _propose(rng, axes, values, num_draws)[0]


def sample_density(
    rng: np.random.Generator,
    axes: Axes,
    values: np.ndarray,
    log_density: Callable[..., np.ndarray],
    num_draws: int,
) -> np.ndarray:
    """Draw from a density that was evaluated on a grid, `[draws, axes]`.

    Points from the grid's cells are accepted with probability proportional to the ratio of the density there to that at
    the center, so that the width of the cells leaves no trace, but for a thousandth of the mass.
    """
    accepted: list[np.ndarray] = []
    bound, count = None, 0
    while count < num_draws:
        points, centers = _propose(rng, axes, values, max(_NUM_PROPOSALS, num_draws))
        ratio = log_density(*points.T) - centers
        bound = _bound(ratio) if bound is None else bound
        taken = points[np.log(rng.random(len(points))) < ratio - bound]
        accepted.append(taken)
        count += len(taken)
    return np.concatenate(accepted)[:num_draws]


def _bound(ratio: np.ndarray) -> float:
    """Give the least log bound of ratios that cuts off no more than `_CLIPPED` of their mass.

    The largest ratio of all would make acceptance depend on single points in the corners of cells.
    """
    weights = np.sort(np.exp(ratio - ratio.max()))[::-1]
    # Mass above the k-th largest weight.
    excess = np.cumsum(weights) - weights * np.arange(1, len(weights) + 1)
    last = np.flatnonzero(excess <= _CLIPPED * weights.sum())[-1]
    return float(np.log(weights[last]) + ratio.max())


def sample_truncated(
    rng: np.random.Generator, location: np.ndarray, scale: np.ndarray, low: float, high: float
) -> np.ndarray:
    """Draw normal values between two bounds, by inverting the distribution function in its left tail."""
    location, scale = np.broadcast_arrays(location, scale)
    flip = location < (low + high) / 2
    start = np.where(flip, location - high, low - location) / scale
    end = np.where(flip, location - low, high - location) / scale
    log_start, log_mass = log_ndtr(start), log_box_mass(start, end)
    # Rounding may leave the bounds by an ulp where they are far out in the tail.
    value = ndtri_exp(np.logaddexp(log_start, np.log(rng.random(location.shape)) + log_mass))
    value = location + np.where(flip, -1.0, 1.0) * scale * np.clip(value, start, end)
    return np.clip(value, low, high)


def log_box_mass(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Give the log probability that a standard normal value lies between two ends."""
    # In the left half the distribution function keeps its digits, so intervals on the right are mirrored.
    mirrored = start > 0
    start, end = np.where(mirrored, -end, start), np.where(mirrored, -start, end)
    log_end = log_ndtr(end)
    return log_end + np.log1p(-np.exp(np.minimum(log_ndtr(start) - log_end, -1e-300)))


def _centers(box: np.ndarray, count: int) -> Axes:
    return [start + (np.arange(count) + 0.5) * (end - start) / count for start, end in box.T]


def _propose(rng: np.random.Generator, axes: Axes, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw points from the cells of a grid; give them with the log density at the centers."""
    cumulative = np.cumsum(np.exp(values.ravel() - values.max()))
    flat = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    flat = np.minimum(flat, values.size - 1)
    chosen = np.unravel_index(flat, values.shape)
    noise = rng.random((count, len(axes))) - 0.5
    points = [
        axis[index] + noise[:, k] * (axis[1] - axis[0])
        for k, (axis, index) in enumerate(zip(axes, chosen, strict=True))
    ]
    return np.stack(points, axis=1), values.ravel()[flat]

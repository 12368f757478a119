"""Tests of accuracy with random points (TARP), with references that may depend on the data."""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.diagnostics.rank_tests import uniformity
from hsbi.diagnostics.ranks import as_truths_and_draws, sbc_ranks

_LEVELS = np.linspace(0.0, 1.0, 101)
_NUM_FOLDS = 5
# Relative to the number of rows; enough to keep the regression defined when data columns are collinear.
_RIDGE = 1e-3


class Tarp(NamedTuple):
    """Outcome of a test of accuracy with reference points.

    Attributes:
        levels: Nominal coverage, from 0 to 1.
        coverage: Share of data sets whose distance rank is below each level; equal to `levels` if exact.
        ranks: Randomized rank of the truth's distance among those of the draws, `[datasets]`.
        p_value: p-value of `uniformity` on the ranks.
    """

    levels: np.ndarray
    coverage: np.ndarray
    ranks: np.ndarray
    p_value: float


def tarp(
    key: Array,
    truths: ArrayLike,
    draws: ArrayLike,
    *,
    references: ArrayLike | None = None,
    data: ArrayLike | None = None,
) -> Tarp:
    r"""Test the joint posterior of all quantities by distances to reference points.

    With a reference point :math:`r_i`, the truth :math:`\theta_i` and its L draws :math:`\theta_{ij}`, all quantities
    scaled by the standard deviation of the truths,

    .. math:: f_i = \frac{\#\{j : |\theta_{ij} - r_i| < |\theta_i - r_i|\} + U}{L + 1}

    is uniform under the exact posterior if the reference does not depend on the truth beyond the data, and the expected
    coverage at level a is the share of :math:`f_i < a`. References that ignore the data pass an estimator that
    returns the prior, so pass `data` as well, or references of your own that are a function of the data.

    Args:
        key: A random key for the references and the ranks.
        truths: True values, `[datasets, ...]`; trailing axes form one vector.
        draws: Posterior draws, `[datasets, draws, ...]`.
        references: Reference points in the parameters' own units, of the shape of `truths`.
        data: Data or summaries of each data set, `[datasets, ...]`, from which `data_references` makes references.
            Without either, references are uniform over the range of the truths.

    Returns:
        Expected coverage, ranks and the p-value of their uniformity.
    """
    truths, draws = as_truths_and_draws(truths, draws)
    if references is not None and data is not None:
        raise ValueError("Both references and data were given. Pass one of them; data makes references of its own.")
    key_references, key_ranks = jax.random.split(key)
    num_rows, num_draws = draws.shape[:2]
    vectors = truths.reshape(num_rows, -1).astype(float)
    if references is not None:
        points = np.asarray(references, float)
        if points.shape != truths.shape:
            raise ValueError(
                f"References have shape {points.shape}, expected {truths.shape} as the true values have. "
                "Pass one point per data set."
            )
        points = points.reshape(num_rows, -1)
    elif data is not None:
        points = data_references(truths, data).reshape(num_rows, -1)
    else:
        noise = np.asarray(jax.random.uniform(key_references, vectors.shape), float)
        points = vectors.min(0) + noise * np.ptp(vectors, axis=0)
    scale = vectors.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    distance = np.linalg.norm((vectors - points) / scale, axis=-1)
    shifted = (draws.reshape(num_rows, num_draws, -1) - points[:, None]) / scale
    ranks = sbc_ranks(key_ranks, distance, np.linalg.norm(shifted, axis=-1))
    coverage = np.mean(ranks[:, None] < _LEVELS, axis=0)
    return Tarp(_LEVELS.copy(), coverage, ranks, float(uniformity(ranks).p_value))


def data_references(
    truths: ArrayLike, data: ArrayLike, *, offset: float = 1.0, folds: ArrayLike | None = None
) -> np.ndarray:
    r"""Make reference points that depend on the data.

    The point of data set i is :math:`\hat\theta(y_i) + c\, s`: a linear ridge regression of true values on data and
    their squares, fitted without the fold that i belongs to, plus `offset` times its residual standard deviation s.
    Being off the center lets distances tell a shift from none, at the first order.

    Args:
        truths: True values, `[datasets, ...]`.
        data: Data or summaries of each data set, `[datasets, ...]`.
        offset: The offset c.
        folds: Which of five folds, 0 to 4, each row belongs to; dealt in turns by default. Rows that share parameters,
            such as sites of one data set, belong in one fold.

    Returns:
        Points of the shape of `truths`.
    """
    truths, data = np.asarray(truths, float), np.asarray(data, float)
    num_rows = truths.shape[0] if truths.ndim else 0
    if data.ndim < 1 or data.shape[0] != num_rows or num_rows < 2 * _NUM_FOLDS:
        raise ValueError(
            f"Data have shape {data.shape} and true values {truths.shape}; expected the same number of data sets, "
            f"{2 * _NUM_FOLDS} or more, along the first axis."
        )
    if not np.all(np.isfinite(data)):
        raise ValueError("Some data are not finite. Pass summaries that are, or leave those data sets out.")
    targets = truths.reshape(num_rows, -1)
    inputs = _standardize(data.reshape(num_rows, -1))
    features = np.concatenate([inputs, _standardize(inputs**2)], axis=1)
    folds = np.arange(num_rows) % _NUM_FOLDS if folds is None else np.asarray(folds)
    if folds.shape != (num_rows,) or not np.isin(folds, np.arange(_NUM_FOLDS)).all():
        raise ValueError(f"Folds have shape {folds.shape}, expected a whole number below {_NUM_FOLDS} for each row.")
    points = np.empty_like(targets)
    for fold in range(_NUM_FOLDS):
        held, rest = folds == fold, folds != fold
        predict, spread = _fit_ridge(features[rest], targets[rest])
        points[held] = predict(features[held]) + offset * spread
    return points.reshape(truths.shape)


def _fit_ridge(features: np.ndarray, targets: np.ndarray):
    """Fit a ridge regression; give its prediction and the residual standard deviation of each target."""
    center, level = features.mean(0), targets.mean(0)
    x, y = features - center, targets - level
    # The ridge grows with the features, so that more columns than rows still give a smooth fit.
    ridge = _RIDGE * len(x) + (x.shape[1] if x.shape[1] > len(x) // 4 else 0)
    weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    return lambda new: (new - center) @ weights + level, (y - x @ weights).std(0)


def _standardize(values: np.ndarray) -> np.ndarray:
    scale = values.std(0)
    return (values - values.mean(0)) / np.where(scale > 0, scale, 1.0)

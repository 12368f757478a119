r"""Evidence from ranks: a p-value beside the size of what is wrong, in units that a person can judge.

Under the exact posterior a randomized rank u is uniform, and its normal score :math:`z = \Phi^{-1}(u)` standard normal.
If draws are Gaussian with a mean that is too high by b standard deviations and a standard deviation that is r times the
right one, :math:`z \sim N(-b / r, 1 / r^2)`. So the mean and standard deviation of the scores estimate both errors, for
any scale of the quantity and however heavy its tails.
"""

from typing import NamedTuple

import numpy as np
from jax.scipy.special import betainc, ndtri
from jax.typing import ArrayLike

from hsbi.diagnostics.rank_tests import uniformity

# Scores beyond about 4.8 standard deviations say no more than these do.
_CLIP = 1e-6
# Where the empirical distribution of clustered ranks is compared with a uniform one.
_GRID = np.array([0.25, 0.5, 0.75])
_SMALLEST = 1e-30
_NORMAL_95 = 1.96


class Evidence(NamedTuple):
    """What one set of ranks says.

    Attributes:
        name: What was ranked.
        p_value: Probability of so large a departure under the exact posterior.
        bias: How far draws are too high, in standard deviations.
        bias_error: Standard error of `bias`.
        ratio: Standard deviation of the draws relative to the right one.
        ratio_low: Lower end of its 95 % interval.
        ratio_high: Upper end.
        derived: Whether a quantity derived from others was ranked, whose errors are in no natural units.
    """

    name: str
    p_value: float
    bias: float
    bias_error: float
    ratio: float
    ratio_low: float
    ratio_high: float
    derived: bool = False

    @property
    def bias_interval(self) -> tuple[float, float]:
        """The 95 % interval of the bias."""
        half = _NORMAL_95 * self.bias_error
        return self.bias - half, self.bias + half

    def describe(self) -> str:
        """Say the larger of the two errors in words."""
        if abs(np.log(self.ratio)) > abs(self.bias):
            return f"{self.name}: sd x {self.ratio:.2f} [{self.ratio_low:.2f}, {self.ratio_high:.2f}]"
        low, high = self.bias_interval
        return f"{self.name}: off by {self.bias:+.2f} sd [{low:+.2f}, {high:+.2f}]"


def weigh_ranks(name: str, ranks: np.ndarray) -> Evidence:
    """Weigh independent ranks, `[datasets]`, by the exact test of `uniformity`."""
    return _with_effects(name, float(uniformity(ranks).p_value), ranks[:, None], np.ones((len(ranks), 1), bool))


def weigh_clusters(name: str, ranks: np.ndarray, mask: np.ndarray | None = None) -> Evidence:
    r"""Weigh ranks that depend on each other within a data set, such as those of one local over all sites.

    Averages over a data set's sites, of :math:`u - 1/2`, of :math:`(u - 1/2)^2 - 1/12` and of :math:`1[u < t] - t` at
    three points t, are independent between data sets and have mean zero under the exact posterior, whatever the
    dependence within. Each is put to a t-test, and the smallest p-value is multiplied by their number.

    Args:
        name: What was ranked.
        ranks: `[datasets, sites]`.
        mask: Which of them count; all by default.
    """
    mask = np.ones(ranks.shape, bool) if mask is None else mask
    used = mask.any(1)
    ranks, mask = ranks[used], mask[used]
    parts = [ranks - 0.5, (ranks - 0.5) ** 2 - 1 / 12, *((ranks < t) - t for t in _GRID)]
    averages = np.stack([average(part, mask) for part in parts], axis=1)
    p_value = min(1.0, len(parts) * float(np.min(t_test(averages))))
    return _with_effects(name, p_value, ranks, mask)


def average(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Average over the second axis where the mask says so."""
    return np.sum(np.where(mask, values, 0.0), axis=1) / np.sum(mask, axis=1)


def t_test(values: np.ndarray) -> np.ndarray:
    """Give two-sided p-values of mean zero for every column of independent rows."""
    degrees = len(values) - 1
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    statistic = np.abs(values.mean(0)) / np.where(error > 0, error, 1.0)
    p_value = np.asarray(betainc(degrees / 2, 0.5, degrees / (degrees + statistic**2)), float)
    return np.where(error > 0, np.maximum(p_value, _SMALLEST), 1.0)


def normal_scores(ranks: ArrayLike) -> np.ndarray:
    """Map ranks in (0, 1) to quantiles of the standard normal distribution."""
    return np.asarray(ndtri(np.clip(np.asarray(ranks, np.float32), _CLIP, 1 - _CLIP)), float)


def _with_effects(name: str, p_value: float, ranks: np.ndarray, mask: np.ndarray) -> Evidence:
    """Estimate bias and ratio from the scores, with errors from the scatter between data sets."""
    scores = normal_scores(ranks)
    first, second = average(scores, mask), average(scores**2, mask)
    mean, root = first.mean(), np.sqrt(len(first))
    variance = max(second.mean() - mean**2, _CLIP)
    ratio = 1 / np.sqrt(variance)
    # Delta method: the variance is the mean of (z - mean)^2, and log ratio is -log(variance) / 2.
    log_error = np.std(second - 2 * mean * first, ddof=1) / root / variance / 2
    low, high = ratio * np.exp(np.array([-1, 1]) * _NORMAL_95 * log_error)
    error = ratio * first.std(ddof=1) / root
    return Evidence(name, max(p_value, _SMALLEST), float(-ratio * mean), float(error), ratio, float(low), float(high))

"""Ranks of true values among posterior draws, and the coverage that follows from them."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

DEFAULT_LEVELS = (0.5, 0.8, 0.9, 0.95)


class Coverage(NamedTuple):
    """How often central posterior intervals hold the true value.

    Attributes:
        levels: Nominal probabilities, `[levels]`.
        observed: Share of data sets whose interval holds the truth, `[levels, ...]`.
        low: Lower end of the 95 % Wilson interval of that share.
        high: Upper end of it.
    """

    levels: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray


def as_truths_and_draws(truths: ArrayLike, draws: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Check that every data set has true values and draws of the same quantities, and that all are finite.

    Args:
        truths: True values, `[datasets, ...]`.
        draws: Posterior draws for the same data sets, `[datasets, draws, ...]`.
    """
    truths, draws = np.asarray(truths), np.asarray(draws)
    if truths.ndim < 1 or draws.ndim < 2 or draws.shape[:1] + draws.shape[2:] != truths.shape:
        expected = (*truths.shape[:1], "draws", *truths.shape[1:])
        raise ValueError(
            f"Draws have shape {draws.shape} and true values {truths.shape}; expected draws of shape "
            f"({', '.join(map(str, expected))}). Stack the draws of each data set along the first axis."
        )
    if draws.shape[0] < 1 or draws.shape[1] < 1:
        raise ValueError(f"Draws have shape {draws.shape}; expected at least one data set and one draw of each.")
    for name, values in (("true values", truths), ("draws", draws)):
        wrong = int(np.sum(~np.isfinite(values)))
        if wrong:
            raise ValueError(
                f"{wrong} of {values.size} {name} are not finite. Ranks of them mean nothing: find out where they come "
                "from, or leave those data sets out."
            )
    return truths, draws


def sbc_ranks(key: Array, truths: ArrayLike, draws: ArrayLike) -> np.ndarray:
    r"""Give randomized ranks of true values among posterior draws, for simulation-based calibration.

    With L draws, r of them below the true value and e equal to it,

    .. math:: u = \frac{r + U (e + 1)}{L + 1}, \qquad U \sim \mathrm{Uniform}(0, 1).

    If parameters come from the prior, data from the model, and draws from the exact posterior, u is exactly uniform on
    (0, 1) for every L, ties or not. Ranks r / L are not, and tests of them raise false alarms.

    A test quantity that depends on the data, such as the log-likelihood of each draw, goes in like a parameter:
    evaluate it at the truth and at the draws. Ranks of parameters alone pass an estimator that returns the prior.

    Args:
        key: A random key for U.
        truths: True values, `[datasets, ...]`.
        draws: Posterior draws for the data of each truth, `[datasets, draws, ...]`.

    Returns:
        Ranks in [0, 1), `[datasets, ...]`.
    """
    truths, draws = as_truths_and_draws(truths, draws)
    below = np.sum(draws < truths[:, None], axis=1)
    equal = np.sum(draws == truths[:, None], axis=1)
    noise = np.asarray(jax.random.uniform(key, truths.shape), float)
    return (below + noise * (equal + 1)) / (draws.shape[1] + 1)


def coverage(key: Array, truths: ArrayLike, draws: ArrayLike, levels: Sequence[float] = DEFAULT_LEVELS) -> Coverage:
    r"""Measure how often central posterior intervals hold the true value.

    The interval of level a holds the truth when its randomized rank u has :math:`|u - 1/2| \le a / 2`, which happens
    with probability a exactly under the exact posterior, for any number of draws.

    Args:
        key: A random key for the ranks.
        truths: True values, `[datasets, ...]`.
        draws: Posterior draws for the data of each truth, `[datasets, draws, ...]`.
        levels: Nominal probabilities between 0 and 1.

    Returns:
        Observed shares with 95 % intervals of their Monte-Carlo error.
    """
    wanted = np.asarray(levels, float)
    if wanted.ndim != 1 or not np.all((wanted > 0) & (wanted < 1)):
        raise ValueError(f"Levels are {levels!r}, expected a list of probabilities between 0 and 1.")
    ranks = sbc_ranks(key, truths, draws)
    inside = np.abs(ranks - 0.5) <= wanted.reshape(-1, *(1 for _ in ranks.shape)) / 2
    observed = inside.mean(axis=1)
    return Coverage(wanted, observed, *_wilson_interval(observed, ranks.shape[0]))


def _wilson_interval(share: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Give the 95 % Wilson score interval of a binomial share."""
    z = NormalDist().inv_cdf(0.975)
    center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return center - half, center + half

"""Checks of one level of a hierarchy on plain arrays: true values, draws and data of many simulated data sets.

Nothing here knows a model or a network, so draws of any tool can be checked. Ranks alone would pass an estimator that
ignores the data, so every level is also ranked in quantities that depend on them.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from hsbi.diagnostics.distance_ranks import data_references
from hsbi.diagnostics.evidence import Evidence, weigh_clusters, weigh_ranks
from hsbi.diagnostics.ranks import as_truths_and_draws, sbc_ranks

COVERAGE_LEVELS = np.array([0.5, 0.8, 0.9, 0.95])
# Data sets are dealt to these folds; references for one fold are learned from the others.
_NUM_FOLDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class LevelCheck:
    """What was found of one level.

    Attributes:
        level: `globals`, `locals` or `joint`.
        columns: Names of the quantities, one per scalar.
        truths: True values, `[datasets, sites, columns]`; globals have one site.
        ranks: Ranks of the true values among the draws, of the same shape.
        distance_ranks: Ranks of the distance to reference points that depend on the data, `[datasets, sites]`.
        mask: Which sites are real, `[datasets, sites]`.
        mean: Posterior means, of the shape of `truths`.
        contraction: One minus the squared width of the draws relative to that of the prior, likewise.
        recovery: Rank correlation of true values and posterior means, `[columns]`.
        coverage: Share of true values in central intervals of `COVERAGE_LEVELS`, `[levels, columns]`.
        evidence: The tests, one per set of ranks.
    """

    level: str
    columns: tuple[str, ...]
    truths: np.ndarray
    ranks: np.ndarray
    distance_ranks: np.ndarray
    mask: np.ndarray
    mean: np.ndarray
    contraction: np.ndarray
    recovery: np.ndarray
    coverage: np.ndarray
    evidence: tuple[Evidence, ...]


def check_globals(
    key: Array,
    truths: np.ndarray,
    draws: np.ndarray,
    data: np.ndarray,
    *,
    columns: Sequence[str],
    prior: np.ndarray | None = None,
) -> LevelCheck:
    """Check globals.

    Args:
        key: A random key for the ranks.
        truths: True values, `[datasets, columns]`.
        draws: Posterior draws, `[datasets, draws, columns]`.
        data: Summaries of each data set, `[datasets, features]`.
        columns: Names of the columns.
        prior: Prior draws that contraction is relative to, `[draws, columns]`; the true values by default.
    """
    mask = np.ones((len(truths), 1), bool)
    return _check(key, "globals", truths[:, None], draws[:, :, None], data[:, None], mask, columns, prior)


def check_locals(
    key: Array,
    truths: np.ndarray,
    draws: np.ndarray,
    data: np.ndarray,
    *,
    columns: Sequence[str],
    mask: np.ndarray | None = None,
    prior: np.ndarray | None = None,
) -> LevelCheck:
    """Check locals, pooled over sites.

    Args:
        key: A random key for the ranks.
        truths: True values, `[datasets, sites, columns]`.
        draws: Posterior draws, `[datasets, draws, sites, columns]`.
        data: Summaries of each site's data, `[datasets, sites, features]`.
        columns: Names of the columns.
        mask: Which sites are real, `[datasets, sites]`; all by default.
        prior: Prior draws that contraction is relative to, `[draws, columns]`; the true values by default.
    """
    mask = np.ones(truths.shape[:2], bool) if mask is None else mask
    return _check(key, "locals", truths, draws, data, mask, columns, prior)


def check_joint(
    key: Array,
    truths: np.ndarray,
    draws: np.ndarray,
    data: np.ndarray,
    *,
    columns: Sequence[str],
    log_likelihood: tuple[np.ndarray, np.ndarray] | None = None,
    mask: np.ndarray | None = None,
) -> LevelCheck:
    """Check all levels together: distances in globals and averages of locals, and the log-likelihood of the data.

    The log-likelihood, or anything like it, is a quantity that depends on the data and on latents of every level. Its
    ranks are weighed summed over sites and site by site.

    Args:
        key: A random key for the ranks.
        truths: Globals and averages of locals over sites, `[datasets, columns]`.
        draws: The same of the draws, `[datasets, draws, columns]`.
        data: Summaries of each data set, `[datasets, features]`.
        columns: Names of the columns.
        log_likelihood: Each site's log-likelihood at the true values, `[datasets, sites]`, and at the draws,
            `[datasets, draws, sites]`.
        mask: Which of those sites are real, `[datasets, sites]`; all by default.
    """
    whole = np.ones((len(truths), 1), bool)
    level = _check(key, "joint", truths[:, None], draws[:, :, None], data[:, None], whole, columns)
    evidence = [one for one in level.evidence if one.name == _DISTANCE]
    if log_likelihood is not None:
        at_truths, at_draws = log_likelihood
        real = np.ones(at_truths.shape, bool) if mask is None else mask
        keys = jax.random.split(jax.random.fold_in(key, 2))
        totals = np.where(real, at_truths, 0).sum(1), np.where(real[:, None], at_draws, 0).sum(2)
        evidence.append(weigh_ranks("log p(y|latents)", sbc_ranks(keys[0], *totals))._replace(derived=True))
        if real[0].size > 1:
            by_site = sbc_ranks(keys[1], at_truths, at_draws)
            evidence.append(weigh_clusters("log p(y|latents) of a site", by_site, real)._replace(derived=True))
    return dataclasses.replace(level, evidence=tuple(evidence))


_DISTANCE = "distance to a guess from data"


def _check(
    key: Array,
    level: str,
    truths: np.ndarray,
    draws: np.ndarray,
    data: np.ndarray,
    mask: np.ndarray,
    columns: Sequence[str],
    prior: np.ndarray | None = None,
) -> LevelCheck:
    truths, draws = as_truths_and_draws(truths, draws)
    if truths.shape[2] != len(columns):
        raise ValueError(f"There are {len(columns)} names for {truths.shape[2]} columns of {level}. Name each column.")
    keys = jax.random.split(key, 2)
    ranks = sbc_ranks(keys[0], truths, draws)
    guess = _guess(truths, data, mask)
    scale = robust_width(truths[mask])
    distance_ranks = _distance_ranks(keys[1], truths, draws, guess, scale)
    # A rank counts from the side that the data point to: draws that follow the data too little lag behind.
    ahead = np.where(guess.center >= np.median(truths[mask], axis=0), ranks, 1 - ranks)
    evidence = []
    for column, name in enumerate(columns):
        evidence.append(weigh(name, ranks[..., column], mask))
        evidence.append(weigh(f"{name} towards its data", ahead[..., column], mask))
    evidence.append(weigh(_DISTANCE, distance_ranks, mask)._replace(derived=True))
    mean, prior_width = draws.mean(1), scale if prior is None else robust_width(prior)
    inside = np.abs(ranks[mask] - 0.5) <= COVERAGE_LEVELS[:, None, None] / 2
    return LevelCheck(
        level=level,
        columns=tuple(columns),
        truths=truths,
        ranks=ranks,
        distance_ranks=distance_ranks,
        mask=mask,
        mean=mean,
        contraction=1 - (robust_width(np.moveaxis(draws, 1, 0)) / prior_width) ** 2,
        recovery=np.array([_rank_correlation(truths[mask][:, c], mean[mask][:, c]) for c in range(len(columns))]),
        coverage=inside.mean(1),
        evidence=tuple(evidence),
    )


def weigh(name: str, ranks: np.ndarray, mask: np.ndarray) -> Evidence:
    """Weigh ranks `[datasets, sites]`: by the exact test where each data set has one, else as clusters."""
    return weigh_ranks(name, ranks[:, 0]) if ranks.shape[1] == 1 else weigh_clusters(name, ranks, mask)


def robust_width(values: np.ndarray) -> np.ndarray:
    """Give half the distance of the 16 % and 84 % quantiles along the first axis; 1 where it is zero."""
    low, high = np.quantile(values, [0.16, 0.84], axis=0)
    return np.where(high > low, (high - low) / 2, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Guess:
    """Values that the data point to, learned from other data sets, and points off them by a residual width."""

    center: np.ndarray
    reference: np.ndarray


def _guess(truths: np.ndarray, data: np.ndarray, mask: np.ndarray) -> _Guess:
    folds = np.broadcast_to(np.arange(len(truths))[:, None] % _NUM_FOLDS, mask.shape)[mask]
    # Tails are pulled in: one outlier of a heavy-tailed prior would bend the regression for all others.
    center, scale = np.median(truths[mask], axis=0), robust_width(truths[mask])
    targets = 3 * np.arcsinh((truths[mask] - center) / scale / 3)

    def regress(offset: float) -> np.ndarray:
        points = np.zeros(truths.shape)
        found = data_references(targets, data[mask], offset=offset, folds=folds)
        points[mask] = center + scale * 3 * np.sinh(np.clip(found / 3, -10, 10))
        return points

    return _Guess(center=regress(0.0), reference=regress(1.0))


def _distance_ranks(key: Array, truths: np.ndarray, draws: np.ndarray, guess: _Guess, scale: np.ndarray) -> np.ndarray:
    """Rank the distance of the truth to the reference among those of the draws, `[datasets, sites]`."""
    own = np.linalg.norm((truths - guess.reference) / scale, axis=-1)
    return sbc_ranks(key, own, np.linalg.norm((draws - guess.reference[:, None]) / scale, axis=-1))


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Give Spearman's correlation, 0 for a constant."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (x, y)]
    return 0.0 if np.ptp(x) == 0 or np.ptp(y) == 0 else float(np.corrcoef(np.stack(ranks))[0, 1])

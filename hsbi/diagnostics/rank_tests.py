r"""Tests of whether ranks are uniform, with the kind of departure they find.

Three statistics share the work. With n ranks u, their empirical distribution F and :math:`K(a, b)` the divergence of
two coin flips,

.. math::

    z_1 = \sqrt{12 / n} \sum_i (u_i - \tfrac12), \qquad
    z_2 = \sqrt{180 / n} \sum_i \left( (u_i - \tfrac12)^2 - \tfrac1{12} \right), \qquad
    c = \max_k n K(F(t_k), t_k), \quad t_k = k / 100.

z1 sees a shift, z2 a wrong width, c (Berk and Jones) anything that moves F. Each of z1^2 / 2, z2^2 / 2 and c has a tail
of about exp(-x), so after subtracting a constant that lines up their 95 % points the largest is the test statistic, and
its null distribution is simulated for the very n.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.diagnostics.ranks import as_truths_and_draws

NUM_CELLS = 100
_GRID = np.arange(1, NUM_CELLS) / NUM_CELLS
_NUM_NULLS = 10_000
_NULL_SEED = 20_260_101
_CHUNK = 4_000_000
# Beyond the quantile that this many simulated nulls exceed, p-values follow the exponential tail.
_NUM_TAIL = 20
# A shift or a width is named when it is this many standard errors from what uniform ranks give.
_CLEAR = 2.0


class Uniformity(NamedTuple):
    """Outcome of a test of uniform ranks, with one entry per column.

    Attributes:
        p_value: Probability of so large a departure under uniform ranks.
        shift: z1 in standard errors; positive where true values lie above the draws.
        width: z2 in standard errors; positive where draws are too narrow, negative where they are too wide.
        shape: `"uniform"` unless rejected, else what draws are: `"too low"`, `"too high"`, `"too narrow"`,
            `"too wide"` or `"other"`.
    """

    p_value: np.ndarray
    shift: np.ndarray
    width: np.ndarray
    shape: np.ndarray


class _Sums(NamedTuple):
    """What the statistics need of ranks; sums of them over data sets are sums of these."""

    first: np.ndarray
    second: np.ndarray
    below: np.ndarray


def uniformity(ranks: ArrayLike, *, level: float = 0.05) -> Uniformity:
    """Test whether ranks are uniform, column by column.

    Rows must be independent, one per data set. The p-value is exact up to the simulation of the null, 10,000 times for
    the given number of rows, with the same seed in every call; smaller p-values than it resolves follow an exponential
    tail, which errs on the large side. Columns are tested one by one: with many, compare p-values with `level` divided
    by their number, or pool them by `pooled_uniformity`.

    Args:
        ranks: Randomized ranks in [0, 1], `[datasets, ...]`, as `sbc_ranks` and `tarp` give them.
        level: The p-value below which a shape is named.

    Returns:
        p-values and shapes, each of the shape of one row.
    """
    ranks = np.asarray(ranks, float)
    if ranks.ndim < 1 or ranks.shape[0] < 5:
        raise ValueError(f"Ranks have shape {ranks.shape}; expected at least 5 data sets along the first axis.")
    if not np.all((ranks >= 0) & (ranks <= 1)):
        raise ValueError(
            f"Ranks run from {ranks.min():.3g} to {ranks.max():.3g}, expected values in [0, 1] without NaN. "
            "Divide as sbc_ranks does: (r + U) / (L + 1)."
        )
    num_rows = ranks.shape[0]
    columns = np.moveaxis(ranks, 0, -1).reshape(-1, num_rows)
    null = _null_table(num_rows)
    z1, z2, distance = _statistics(_sums(columns), num_rows, np.ones(2), np.full(len(_GRID), float(num_rows)))
    combined = np.max(_aligned(z1, z2, distance) - null.offsets, axis=-1)
    p_value = _tail_probability(combined, null.sorted_statistics)
    shape = _name_shapes(p_value < level, z1, z2)
    return Uniformity(*(values.reshape(ranks.shape[1:]) for values in (p_value, z1, z2, shape)))


def pooled_uniformity(
    key: Array, truths: ArrayLike, draws: ArrayLike, *, level: float = 0.05, num_nulls: int = 1_000
) -> Uniformity:
    """Test the ranks of many dependent quantities together, such as a local over all sites.

    Ranks of one data set's sites depend on each other through the globals, so a test that takes them for independent
    raises false alarms. Here the null is made from the draws themselves: given the data, the true value and the draws
    are exchangeable under the exact posterior, so the statistic of the truths is compared with that of random members
    of the same sets. This is exact for any dependence between quantities.

    Args:
        key: A random key for the ranks and the null.
        truths: True values, `[datasets, ...]`; all trailing axes are pooled.
        draws: Posterior draws, independent of each other, `[datasets, draws, ...]`.
        level: The p-value below which a shape is named.
        num_nulls: Random members that are compared; no p-value is below 1 / (num_nulls + 1).

    Returns:
        One p-value and shape for all quantities, as arrays without axes.
    """
    truths, draws = as_truths_and_draws(truths, draws)
    num_rows, num_draws = draws.shape[:2]
    seed = np.asarray(jax.random.bits(key, (4,), "uint32"))
    rng = np.random.default_rng(seed)
    totals = _Sums(np.zeros(num_nulls + 1), np.zeros(num_nulls + 1), np.zeros((num_nulls + 1, len(_GRID))))
    for truth, rows in zip(truths.reshape(num_rows, 1, -1), draws.reshape(num_rows, num_draws, -1), strict=True):
        sums = _sums(_member_ranks(rng, np.concatenate([truth, rows])))
        # The first entry is the truth; the others are members drawn at random, the truth among them.
        chosen = np.concatenate([[0], rng.integers(num_draws + 1, size=num_nulls)])
        for total, part in zip(totals, sums, strict=True):
            total += part[chosen]
    count = float(truths.size)
    null_sd = np.stack([np.std(_shift(totals, count)), np.std(_width(totals, count))])
    variance = np.var(totals.below / count, axis=0)
    effective = np.where(variance > 0, _GRID * (1 - _GRID) / np.where(variance > 0, variance, 1.0), 0.0)
    z1, z2, distance = _statistics(totals, count, np.where(null_sd > 0, null_sd, 1.0), effective)
    aligned = _aligned(z1, z2, distance)
    # Scales and offsets treat truth and nulls alike, so that they stay exchangeable and the p-value exact.
    combined = np.max(aligned - (np.quantile(aligned, 0.95, axis=0) - np.log(20.0)), axis=-1)
    p_value = np.asarray(np.mean(combined >= combined[0]))
    shape = _name_shapes((p_value < level)[None], z1[:1], z2[:1])
    return Uniformity(p_value, z1[0], z2[0], shape.reshape(()))


def ecdf_band(num_ranks: int, *, level: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the band that holds the whole empirical distribution of uniform ranks with probability 1 - level.

    Args:
        num_ranks: Number of independent ranks.
        level: Probability that uniform ranks leave the band anywhere.

    Returns:
        Points in (0, 1), and the lowest and highest share of ranks below each of them.
    """
    threshold = np.quantile(_null_table(num_ranks).distances, 1 - level) / num_ranks
    low, high = np.zeros_like(_GRID), np.ones_like(_GRID)
    inside_low, inside_high = _GRID.copy(), _GRID.copy()
    for _ in range(50):
        middle = (low + inside_low) / 2
        outside = _divergence(middle, _GRID) > threshold
        low, inside_low = np.where(outside, middle, low), np.where(outside, inside_low, middle)
        middle = (high + inside_high) / 2
        outside = _divergence(middle, _GRID) > threshold
        high, inside_high = np.where(outside, middle, high), np.where(outside, inside_high, middle)
    return _GRID.copy(), inside_low, inside_high


class _NullTable(NamedTuple):
    """Statistics of uniform ranks: offsets that align the three, the combined one sorted, the distances."""

    offsets: np.ndarray
    sorted_statistics: np.ndarray
    distances: np.ndarray


@functools.lru_cache(maxsize=16)
def _null_table(num_rows: int) -> _NullTable:
    """Simulate the statistics of uniform ranks."""
    rng = np.random.default_rng(_NULL_SEED)
    per_chunk = max(1, min(_NUM_NULLS, _CHUNK // num_rows))
    parts = []
    for start in range(0, _NUM_NULLS, per_chunk):
        ranks = rng.random((min(per_chunk, _NUM_NULLS - start), num_rows))
        parts.append(_statistics(_sums(ranks), num_rows, np.ones(2), np.full(len(_GRID), float(num_rows))))
    z1, z2, distance = (np.concatenate(part) for part in zip(*parts, strict=True))
    aligned = _aligned(z1, z2, distance)
    offsets = np.quantile(aligned, 0.95, axis=0) - np.log(20.0)
    return _NullTable(offsets, np.sort(np.max(aligned - offsets, axis=-1)), distance)


def _sums(ranks: np.ndarray) -> _Sums:
    """Sum over the last axis of `[rows, ranks]`."""
    centered = ranks - 0.5
    cells = np.minimum((ranks * NUM_CELLS).astype(np.int64), NUM_CELLS - 1)
    flat = cells + NUM_CELLS * np.arange(len(ranks))[:, None]
    counts = np.bincount(flat.ravel(), minlength=NUM_CELLS * len(ranks)).reshape(len(ranks), NUM_CELLS)
    below = np.cumsum(counts, axis=1)[:, :-1].astype(float)
    return _Sums(centered.sum(1), (centered**2 - 1 / 12).sum(1), below)


def _shift(sums: _Sums, count: float) -> np.ndarray:
    return np.sqrt(12 / count) * sums.first


def _width(sums: _Sums, count: float) -> np.ndarray:
    return np.sqrt(180 / count) * sums.second


def _statistics(
    sums: _Sums, count: float, null_sd: np.ndarray, effective: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give z1, z2 and c, with null standard deviations and effective numbers of ranks at each grid point."""
    distance = np.max(effective * _divergence(sums.below / count, _GRID), axis=-1)
    return _shift(sums, count) / null_sd[0], _width(sums, count) / null_sd[1], distance


def _aligned(z1: np.ndarray, z2: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Put the three statistics on the scale of a log-likelihood ratio, along a last axis."""
    return np.stack([z1**2 / 2, z2**2 / 2, distance], axis=-1)


def _divergence(share: np.ndarray, nominal: np.ndarray) -> np.ndarray:
    """Give the Kullback-Leibler divergence of two coin flips, in nats."""
    share = np.clip(share, 0.0, 1.0)
    heads = share * np.log(np.where(share > 0, share, 1.0) / nominal)
    tails = (1 - share) * np.log(np.where(share < 1, 1 - share, 1.0) / (1 - nominal))
    return np.maximum(heads + tails, 0.0)


def _tail_probability(statistic: np.ndarray, sorted_null: np.ndarray) -> np.ndarray:
    """Give p-values from the simulated null, and from an exponential beyond its last few."""
    exceeding = len(sorted_null) - np.searchsorted(sorted_null, statistic, side="left")
    p_value = (1 + exceeding) / (len(sorted_null) + 1)
    start = sorted_null[-_NUM_TAIL]
    tail = (1 + _NUM_TAIL) / (len(sorted_null) + 1) * np.exp(np.minimum(start - statistic, 0.0))
    return np.where(statistic > start, tail, p_value)


def _name_shapes(rejected: np.ndarray, z1: np.ndarray, z2: np.ndarray) -> np.ndarray:
    """Say what draws are where uniformity is rejected."""
    shifted = np.abs(z1) >= np.abs(z2)
    named = np.where(shifted, np.where(z1 > 0, "too low", "too high"), np.where(z2 > 0, "too narrow", "too wide"))
    named = np.where(np.maximum(np.abs(z1), np.abs(z2)) > _CLEAR, named, "other")
    return np.where(rejected, named, "uniform")


def _member_ranks(rng: np.random.Generator, members: np.ndarray) -> np.ndarray:
    """Give randomized ranks of every member of a set among the whole set, per column of `[members, columns]`."""
    noise = rng.random(members.shape)
    order = np.lexsort((noise, members), axis=0)
    ranks = np.empty(members.shape)
    np.put_along_axis(ranks, order, np.arange(len(members), dtype=float)[:, None], axis=0)
    return (ranks + rng.random(members.shape)) / len(members)

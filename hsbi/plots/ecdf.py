"""Calibration: empirical distributions of ranks with the band that exact ones stay in, and TARP."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.diagnostics.rank_tests import ecdf_band
from hsbi.plots.style import BAND, FAINT, color, line_style, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GRID = np.linspace(0, 1, 201)
_MAX_NAMED = 8


def calibration(checked: Any, *, names: Sequence[str] | None = None) -> "Figure":
    """Draw how far the empirical distribution of ranks is from a uniform one, with the 95 % band of exact posteriors.

    Args:
        checked: A report of `hsbi.check`, or ranks `[datasets, columns]` as `sbc_ranks` gives them.
        names: Names of the columns, if ranks are given.

    Returns:
        The figure: a panel for each level.
    """
    if hasattr(checked, "levels"):
        levels = {name: checked.levels[name] for name in ("globals", "locals") if name in checked.levels}
        figure, axes = new_figure(4.6 * len(levels), 3.2, 1, len(levels))
        for panel, (name, level) in zip(axes.flat, levels.items(), strict=True):
            draw_ecdf(panel, level.ranks, level.mask, level.columns, title=name)
        return figure
    ranks = np.asarray(checked, float)
    ranks = ranks.reshape(len(ranks), 1, -1)
    names = [f"column {column}" for column in range(ranks.shape[2])] if names is None else names
    figure, axes = new_figure(4.6, 3.2)
    draw_ecdf(axes[0, 0], ranks, np.ones(ranks.shape[:2], bool), names, title="calibration")
    return figure


def tarp(checked: Any) -> "Figure":
    """Draw the expected coverage of distances to reference points against the nominal one.

    Args:
        checked: A report of `hsbi.check`, or what `hsbi.diagnostics.tarp` returned.

    Returns:
        The figure.
    """
    figure, axes = new_figure(4.2, 3.6)
    if hasattr(checked, "levels") and hasattr(checked, "lines"):
        draw_coverage(axes[0, 0], {name: (one.distance_ranks, one.mask) for name, one in checked.levels.items()})
    else:
        ranks = np.asarray(checked.ranks, float)[:, None]
        draw_coverage(axes[0, 0], {"TARP": (ranks, np.ones(ranks.shape, bool))})
    return figure


def draw_ecdf(panel: "Axes", ranks: np.ndarray, mask: np.ndarray, names: Sequence[str], *, title: str) -> None:
    """Draw the distribution of each column's ranks, `[datasets, sites, columns]`, less the uniform one."""
    points, low, high = ecdf_band(len(ranks))
    edges = np.concatenate([[0], points, [1]])
    factor = _relative_error(ranks, mask)
    lower, upper = (factor * np.concatenate([[0], end - points, [0]]) for end in (low, high))
    panel.fill_between(edges, lower, upper, color=BAND, lw=0)
    panel.axhline(0, color=FAINT, lw=0.8)
    for column, name in enumerate(names):
        own = np.sort(ranks[..., column][mask])
        share = np.searchsorted(own, _GRID, side="right") / own.size
        label = name if column < _MAX_NAMED else None
        panel.plot(_GRID, share - _GRID, ls=line_style(column), color=color(column), lw=1.3, label=label)
    polish(panel, title=title, x="rank of the true value", y="share below, less uniform")
    panel.set_xlim(0, 1)
    panel.legend(fontsize=7, frameon=False, ncols=1 + (len(names) > 4), title="gray: 95 % of exact", title_fontsize=7)
    bottom, top = panel.get_ylim()
    rows = min(_MAX_NAMED, len(names)) / (1 + (len(names) > 4))
    panel.set_ylim(bottom, top + (0.12 + 0.07 * rows) * (top - bottom))


def _relative_error(ranks: np.ndarray, mask: np.ndarray) -> float:
    """Give the standard error of the pooled distribution relative to that of one rank per data set."""
    if ranks.shape[1] == 1:
        return 1.0
    grid = np.linspace(0.2, 0.8, 4)
    used = mask.any(1)
    weight = (mask / np.maximum(mask.sum(1, keepdims=True), 1))[used]
    shares = np.einsum("ds,dscg->dcg", weight, ranks[used][..., None] < grid)
    return float(np.sqrt(np.mean(shares.var(0) / (grid * (1 - grid)))))


def draw_coverage(panel: "Axes", ranks: dict[str, tuple[np.ndarray, np.ndarray]], title: str = "TARP") -> None:
    """Draw the share of distance ranks below each level."""
    size = max(len(one) for one, _ in ranks.values())
    points, low, high = ecdf_band(size)
    edges = np.concatenate([[0], points, [1]])
    panel.fill_between(edges, np.concatenate([[0], low, [1]]), np.concatenate([[0], high, [1]]), color=BAND, lw=0)
    panel.plot([0, 1], [0, 1], color=FAINT, lw=0.8)
    for number, (name, (own, mask)) in enumerate(ranks.items()):
        values = np.sort(own[mask])
        share = np.searchsorted(values, _GRID, side="right") / values.size
        panel.plot(_GRID, share, ls=line_style(number), color=color(number), lw=1.5, label=name)
    polish(panel, title=title, x="credibility level", y="expected coverage")
    panel.set(xlim=(0, 1), ylim=(0, 1))
    panel.legend(fontsize=7, frameon=False, loc="upper left", title="gray: 95 % of exact", title_fontsize=7)

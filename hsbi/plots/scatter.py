"""Pair plots of globals, results over each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.plots.draws import pick_names, read_results, read_truths
from hsbi.plots.style import INK, color, line_style, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COLUMNS, _MAX_POINTS, _NUM_CELLS = 8, 600, 40
# The share of draws inside each contour.
_MASSES = (0.9, 0.5)


def pairs(results: Any, *, var_names: Sequence[str] | None = None, truths: Mapping[str, Any] | None = None) -> "Figure":
    """Draw every pair of scalars, with contours that hold half and nine tenths of the draws.

    Args:
        results: One result, or several by name, such as `{"hsbi": lf, "NUTS": hsbi.from_mcmc(mcmc)}`.
        var_names: What to show, eight scalars at most; all scalars by default, which are the globals.
        truths: True values by name.

    Returns:
        The figure.
    """
    draws = read_results(results)
    names = pick_names(draws, var_names, scalars=True)
    labels = next(iter(draws.values())).columns(names)[1]
    if len(labels) > _MAX_COLUMNS:
        raise ValueError(f"There are {len(labels)} scalars to pair, expected {_MAX_COLUMNS} at most. Pass var_names.")
    columns = {label: one.columns(names)[0] for label, one in draws.items()}
    exact = read_truths(truths, draws, names)
    size, pooled = len(labels), np.concatenate(list(columns.values()))
    low, high = np.percentile(pooled, [0.25, 99.75], axis=0)
    if exact is not None:
        low, high = np.fmin(low, exact), np.fmax(high, exact)
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    figure, axes = new_figure(1.1 + 1.9 * size, 0.9 + 1.8 * size, size, size, sharex="col")
    for row in range(size):
        for column in range(size):
            panel = axes[row, column]
            if column > row:
                panel.set_visible(False)
                continue
            window = (low[column], high[column]), (low[row], high[row])
            for number, values in enumerate(columns.values()):
                if row == column:
                    _draw_marginal(panel, values[:, row], window[0], number)
                else:
                    _draw_pair(panel, values[:, column], values[:, row], window, number)
            if exact is not None:
                panel.axvline(exact[column], color=INK, lw=1)
                if row != column:
                    panel.axhline(exact[row], color=INK, lw=1)
            panel.set_xlim(window[0])
            polish(
                panel,
                x=labels[column] if row == size - 1 else "",
                y="density" if row == column else labels[row] if column == 0 else "",
            )
            if row == column or column > 0:
                panel.set_yticks([])
    _add_legend(figure, list(columns), exact is not None)
    return figure


def _draw_marginal(panel: "Axes", values: np.ndarray, window: tuple[float, float], number: int) -> None:
    shade = color(number)
    edges = [float(edge) for edge in np.linspace(*window, 31)]
    panel.hist(values, edges, density=True, histtype="stepfilled", color=shade, alpha=0.2)
    panel.hist(values, edges, density=True, histtype="step", color=shade, lw=1.3, ls=line_style(number))


def _draw_pair(panel: "Axes", x: np.ndarray, y: np.ndarray, window: Any, number: int) -> None:
    shade = color(number)
    every = max(1, len(x) // _MAX_POINTS)
    panel.plot(x[::every], y[::every], ".", color=shade, ms=3, alpha=0.35, mew=0)
    counts, x_edges, y_edges = np.histogram2d(x, y, _NUM_CELLS, range=window)
    density = _smooth(_smooth(counts).T).T
    ordered = np.sort(density.ravel())[::-1]
    share = np.cumsum(ordered) / ordered.sum()
    heights = [ordered[np.searchsorted(share, mass)] for mass in _MASSES]
    centers = [(edges[1:] + edges[:-1]) / 2 for edges in (x_edges, y_edges)]
    if 0 < heights[0] < heights[1]:
        lines = {"colors": shade, "linewidths": 1.2, "linestyles": [line_style(number)]}
        panel.contour(*centers, density.T, levels=heights, **lines)
    panel.set_ylim(window[1])


def _smooth(counts: np.ndarray) -> np.ndarray:
    """Smooth rows by a Gaussian of two cells."""
    kernel = np.exp(-0.5 * (np.arange(-6, 7) / 2) ** 2)
    return np.stack([np.convolve(row, kernel / kernel.sum(), mode="same") for row in counts])


def _add_legend(figure: "Figure", names: list[str], with_truth: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=color(number), lw=2, ls=line_style(number), label=name)
        for number, name in enumerate(names)
    ]
    if with_truth:
        handles.append(Line2D([], [], color=INK, lw=1, label="true value"))
    if len(handles) > 1:
        figure.legend(handles=handles, fontsize=9, frameon=False, loc="outside upper right", ncols=len(handles))

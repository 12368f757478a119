"""How much the data narrow each posterior, and how well true values are recovered."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.plots.style import COLORS, FAINT, INK, color, line_style, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COLUMNS, _MAX_PANELS, _MAX_POINTS = 12, 8, 1500


def contraction(report: Any) -> "Figure":
    """Draw contraction: 0 where a posterior is as wide as the prior, 1 where it is a point.

    Over the number of sites if data sets differ in it, else one column for each quantity.

    Args:
        report: A report of `hsbi.check`.

    Returns:
        The figure.
    """
    figure, axes = new_figure(5.4, 3.4)
    draw_contraction(axes[0, 0], report)
    return figure


def recovery(report: Any) -> "Figure":
    """Draw posterior means against true values, one panel per quantity, eight at most.

    Args:
        report: A report of `hsbi.check`.

    Returns:
        The figure.
    """
    found = [
        (level, column)
        for level in (report.levels.get("globals"), report.levels.get("locals"))
        if level is not None
        for column in range(len(level.columns))
    ][:_MAX_PANELS]
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure, axes = new_figure(2.6 * columns, 2.5 * rows, rows, columns)
    for panel, (level, column) in zip(axes.flat, found, strict=False):
        draw_recovery(panel, level, column)
    for panel in axes.flat[len(found) :]:
        panel.set_visible(False)
    return figure


def draw_contraction(panel: "Axes", report: Any) -> None:
    """Draw contraction of every quantity."""
    levels = [report.levels[name] for name in ("globals", "locals") if name in report.levels]
    panel.axhline(0, color=FAINT, lw=0.8, ls="--")
    if np.ptp(report.num_sites) > 0 and "globals" in report.levels:
        _draw_over_sites(panel, report)
        return
    rows = [(level, column) for level in levels for column in range(len(level.columns))][:_MAX_COLUMNS]
    for place, (level, column) in enumerate(rows):
        values = level.contraction[..., column][level.mask]
        low, lower, middle, upper, high = np.percentile(values, [5, 25, 50, 75, 95])
        shade = COLORS[0 if level.level == "globals" else 1]
        panel.vlines(place, low, high, color=shade, lw=1.5)
        panel.vlines(place, lower, upper, color=shade, lw=5)
        panel.plot(place, middle, "o", color="white", mec=shade, ms=5)
    names = [level.columns[column] for level, column in rows]
    turned = sum(map(len, names)) > 36
    panel.set_xticks(range(len(rows)), names, rotation=45 if turned else 0, ha="right" if turned else "center")
    panel.set_ylim(min(-0.05, panel.get_ylim()[0]), 1.02)
    polish(panel, title="contraction", y="1 - posterior / prior variance")


def _draw_over_sites(panel: "Axes", report: Any) -> None:
    level, sizes = report.levels["globals"], report.num_sites
    for column, name in enumerate(level.columns[: len(COLORS)]):
        values = level.contraction[:, 0, column]
        panel.plot(sizes, values, ".", color=color(column), ms=3, alpha=0.4)
        edges = np.unique(np.quantile(sizes, np.linspace(0, 1, 7)).round())
        place = np.clip(np.searchsorted(edges, sizes, side="right") - 1, 0, len(edges) - 2)
        groups = [(sizes[place == g].mean(), np.median(values[place == g])) for g in np.unique(place)]
        x, y = np.transpose(groups)
        panel.plot(x, y, ls=line_style(column), color=color(column), lw=1.8, label=name)
    panel.legend(fontsize=7, loc="lower right", framealpha=0.85, edgecolor="none")
    panel.locator_params(axis="x", integer=True)
    low = np.percentile(level.contraction, 2)
    panel.set_ylim(min(-0.05, low), 1.02)
    plate = "site" if report.structure.site_plate is None else report.structure.site_plate.name
    polish(panel, title="contraction", x=f"size of plate {plate!r}", y="1 - posterior / prior variance")


def draw_recovery(panel: "Axes", level: Any, column: int) -> None:
    """Draw posterior means of one quantity against its true values."""
    truth, mean = (values[..., column][level.mask] for values in (level.truths, level.mean))
    every = max(1, truth.size // _MAX_POINTS)
    shade = COLORS[0 if level.level == "globals" else 1]
    panel.plot(truth[::every], mean[::every], ".", color=shade, ms=4.5, alpha=0.7, mew=0)
    low, high = np.percentile(np.concatenate([truth, mean]), [0.5, 99.5])
    margin = 0.05 * (high - low)
    ends = (low - margin, high + margin)
    panel.plot(ends, ends, color=INK, lw=0.8, ls="--")
    panel.set(xlim=ends, ylim=ends)
    name = f"{level.columns[column]}, rank correlation {level.recovery[column]:.2f}"
    polish(panel, title=name, x="true value", y="posterior mean")

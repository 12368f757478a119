"""The one figure of a report."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.plots.ecdf import draw_coverage, draw_ecdf
from hsbi.plots.narrowing import draw_contraction, draw_recovery
from hsbi.plots.style import COLORS, FAINT, VERDICT_COLORS, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS, _MAX_SITES, _MAX_ENTRIES, _MAX_CHARACTERS = 3, 30, 50, 36


def report(found: Any) -> "Figure":
    """Draw calibration, TARP, contraction, recovery, surrogates, the observed data and their fit in one figure.

    Args:
        found: A report of `hsbi.check`.

    Returns:
        The figure.
    """
    panels: list[Any] = []
    for name in ("globals", "locals"):
        if name in found.levels:
            level = found.levels[name]
            title = f"calibration of {name}"
            panels.append(lambda p, v=level, t=title: draw_ecdf(p, v.ranks, v.mask, v.columns, title=t))
    ranks = {name: (level.distance_ranks, level.mask) for name, level in found.levels.items()}
    panels.append(lambda p: draw_coverage(p, ranks, "TARP with references from data"))
    panels.append(lambda p: draw_contraction(p, found))
    first = found.levels.get("globals") or found.levels["locals"]
    panels.append(lambda p: draw_recovery(p, first, int(np.argmin(first.recovery))))
    if found.surrogates:
        panels.append(lambda p: _draw_surrogates(p, found.surrogates))
    if found.observation is not None:
        panels.append(lambda p: _draw_sites(p, found.observation))
        if found.observation.misfit is not None:
            panels.append(lambda p: _draw_fit(p, found.observation))
    panels.append(lambda p: _draw_verdicts(p, found.lines))
    rows = -(-len(panels) // _COLUMNS)
    figure, axes = new_figure(11.5, 3.2 * rows + 0.4, rows, _COLUMNS)
    for panel, draw in zip(axes.flat, panels, strict=False):
        draw(panel)
    for panel in axes.flat[len(panels) :]:
        panel.set_visible(False)
    figure.suptitle(found.header(), fontsize=11, x=0.01, ha="left", color=VERDICT_COLORS[found.verdict], weight="bold")
    return figure


def _draw_surrogates(panel: "Axes", surrogates: dict[str, Any]) -> None:
    """Draw the calibration of the surrogates, all entries of an observation together."""
    size = min(len(check.ranks) for check in surrogates.values())
    width = min(min(check.ranks.shape[1] for check in surrogates.values()), _MAX_ENTRIES)
    # Equally many simulations and entries of each, evenly chosen, so that one band holds for all.
    ranks = [
        check.ranks[_evenly(len(check.ranks), size)][:, _evenly(check.ranks.shape[1], width)]
        for check in surrogates.values()
    ]
    stacked = np.stack(ranks, axis=-1)
    draw_ecdf(panel, stacked, np.ones(stacked.shape[:2], bool), list(surrogates), title="surrogates")
    panel.set_xlabel("rank of the real simulation", fontsize=9)


def _evenly(total: int, count: int) -> np.ndarray:
    return np.linspace(0, total - 1, count).round().astype(int)


def _draw_sites(panel: "Axes", check: Any) -> None:
    """Draw how far out each observed site lies, beside what was simulated."""
    order = np.argsort(check.distance)[::-1][:_MAX_SITES]
    places = np.arange(order.size)
    outside = check.distance[order] > check.limit[-1]
    panel.axhspan(0, check.limit[1], color="#EEEEEE", lw=0, label="95 % of simulated data sets")
    panel.axhline(check.limit[-1], color=FAINT, lw=1, ls="--", label="farthest simulated")
    panel.vlines(places, 0, check.distance[order], color=COLORS[0], lw=1)
    panel.plot(places[~outside], check.distance[order][~outside], "o", color=COLORS[0], ms=4)
    if outside.any():
        panel.plot(places[outside], check.distance[order][outside], "X", color=COLORS[5], ms=7, label="outside")
    _name_sites(panel, check, order)
    polish(panel, title="observed data", x=check.plate, y="distance from center (sd)")
    panel.set_ylim(0, 1.3 * max(check.distance.max(), check.limit[-1]))
    panel.legend(fontsize=7, frameon=False, loc="upper right")


def _draw_fit(panel: "Axes", check: Any) -> None:
    """Draw how badly the posterior fits each observed site, beside the worst replicate."""
    order = np.argsort(check.misfit)[::-1][:_MAX_SITES]
    places, heights = np.arange(order.size), check.misfit[order]
    bad = heights > check.misfit_limit[-1]
    panel.axhspan(0, check.misfit_limit[1], color="#EEEEEE", lw=0, label="95 % of replicates' worst sites")
    panel.axhline(check.misfit_limit[-1], color=FAINT, lw=1, ls="--", label="worst replicate")
    panel.vlines(places, 0, heights, color=COLORS[0], lw=1)
    panel.plot(places[~bad], heights[~bad], "o", color=COLORS[0], ms=4)
    if bad.any():
        panel.plot(places[bad], heights[bad], "X", color=COLORS[5], ms=7, label="not reproduced")
    _name_sites(panel, check, order)
    polish(panel, title="posterior predictive", x=check.plate, y="squared misfit per value")
    panel.set_ylim(0, 1.3 * max(heights.max(), check.misfit_limit[-1]))
    panel.legend(fontsize=7, frameon=False, loc="upper right")


def _name_sites(panel: "Axes", check: Any, order: np.ndarray) -> None:
    """Name the members of the plate on the axis, upright where they would run into each other."""
    ticks = [check.labels[place].removeprefix(f"{check.plate} ") for place in order]
    crowded = sum(len(tick) + 1 for tick in ticks) > _MAX_CHARACTERS
    panel.set_xticks(np.arange(order.size), ticks, rotation=90 if crowded else 0)


def _draw_verdicts(panel: "Axes", lines: Any) -> None:
    """List the verdicts, each with its mark, so that color is not needed to tell them."""
    marks = {"trusted": "o", "doubtful": "^", "wrong": "X", "unknown": "."}
    panel.set_axis_off()
    panel.set(xlim=(0, 1), ylim=(len(lines) - 0.4, -1))
    for place, line in enumerate(lines):
        shade = VERDICT_COLORS[line.verdict]
        panel.plot(0.03, place, marks[line.verdict], color=shade, ms=8)
        panel.text(0.09, place, line.verdict, fontsize=9, va="center", color=shade, weight="bold")
        panel.text(0.36, place, line.name, fontsize=9, va="center")
    panel.set_title("verdicts", fontsize=10, loc="left")

"""Shrinkage of locals towards the population."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.plots.draws import read_draws
from hsbi.plots.style import COLORS, FAINT, INK, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LABELS = 12
# Neighbors nearer than this share of the axis get names at other heights, in points.
_NEAR, _OFFSETS = 0.05, (5, -11, 15, -21)


def shrinkage(result: Any, local: str, *, raw: Any, population: str | None = None, prob: float = 0.9) -> "Figure":
    """Draw each site's posterior against an estimate from its own data alone.

    Where sites learn from each other, posteriors leave the diagonal towards the population's mean.

    Args:
        result: An estimator with draws, an MCMC run, ArviZ data or a dict of draws.
        local: A local with one number per site.
        raw: The estimate of each site from its own data, such as its mean, `[sites]`.
        population: A global that is the locals' mean; the mean of the posterior medians is drawn by default.
        prob: Mass of the intervals.

    Returns:
        The figure.
    """
    draws = read_draws(result)
    if local not in draws.values:
        raise ValueError(f"There is no local {local!r}; there are {list(draws.values)}.")
    values, own = draws.values[local], np.asarray(raw, float)
    if values.ndim != 2 or own.shape != values.shape[1:]:
        raise ValueError(
            f"Draws of {local!r} have shape {values.shape} and raw {own.shape}; expected [draws, sites] and [sites]."
        )
    low, middle, high = np.percentile(values, [50 * (1 - prob), 50, 50 * (1 + prob)], axis=0)
    center = middle.mean() if population is None else float(np.median(draws.values[population]))
    figure, axes = new_figure(5.2, 4.4)
    panel = axes[0, 0]
    ends = np.array([own.min(), own.max()])
    ends = ends + np.array([-0.05, 0.05]) * (np.ptp(ends) or 1.0)
    panel.plot(ends, ends, color=FAINT, lw=1, ls="--", label="no pooling")
    panel.axhline(center, color=COLORS[1], lw=1.5, label=population or "mean of all")
    panel.vlines(own, low, high, color=COLORS[0], lw=1.2, alpha=0.7)
    panel.vlines(own, np.minimum(own, middle), np.maximum(own, middle), color=FAINT, lw=0.8, ls=":")
    panel.plot(own, middle, "o", color=COLORS[0], mec="white", ms=6, label=f"posterior, {100 * prob:.0f} %")
    plate = draws.plates[local] or "site"
    if len(own) <= _MAX_LABELS:
        _name_points(panel, [label[len(local) + 1 : -1] for label in draws.labels[local]], own, middle, plate)
    polish(panel, x=f"estimate of each {plate} from its own data", y=f"{local} (posterior)")
    panel.legend(fontsize=8, frameon=False)
    return figure


def _name_points(panel: "Axes", names: list[str], x: np.ndarray, y: np.ndarray, plate: str) -> None:
    """Write names beside points, above and below in turn where neighbors are close."""
    near = _NEAR * np.ptp(panel.get_xlim())
    level, last = 0, -np.inf
    for place in np.argsort(x):
        level = (level + 1) % len(_OFFSETS) if x[place] - last < near else 0
        last = x[place]
        name = names[place].removeprefix(f"{plate} ")
        options = {"textcoords": "offset points", "fontsize": 7, "color": INK}
        panel.annotate(name, (x[place], y[place]), xytext=(4, _OFFSETS[level]), **options)

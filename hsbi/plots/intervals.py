"""Forest plots: intervals of every scalar, results side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.plots.draws import pick_names, read_results, read_truths
from hsbi.plots.style import INK, MARKERS, color, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def forest(
    results: Any,
    *,
    var_names: Sequence[str] | None = None,
    truths: Mapping[str, Any] | None = None,
    prob: float = 0.9,
) -> "Figure":
    """Draw medians with 50 % and outer intervals of every scalar.

    Args:
        results: One result, or several by name, such as `{"hsbi": lf, "NUTS": hsbi.from_mcmc(mcmc)}`: estimators, MCMC
            runs, ArviZ data or dicts of draws.
        var_names: What to show; all that the results share by default.
        truths: True values by name.
        prob: Mass of the outer interval.

    Returns:
        The figure.
    """
    if not 0.5 < prob < 1:
        raise ValueError(f"prob is {prob}, expected the mass of the outer interval, between 0.5 and 1.")
    draws = read_results(results)
    names = pick_names(draws, var_names)
    labels = next(iter(draws.values())).columns(names)[1]
    num_rows, spread = len(labels), 0.6 * (1 - 1 / len(draws))
    figure, axes = new_figure(6.4, max(1.8, 0.9 + (0.16 + 0.12 * len(draws)) * num_rows))
    panel = axes[0, 0]
    rows = np.arange(num_rows)
    for band in rows[::2]:
        panel.axhspan(band - 0.5, band + 0.5, color="#F4F4F4", lw=0)
    for number, (label, one) in enumerate(draws.items()):
        values = one.columns(names)[0]
        tails = [50 * (1 - prob), 25, 50, 75, 50 * (1 + prob)]
        low, lower, middle, upper, high = np.percentile(values, tails, axis=0)
        y = rows + (0 if len(draws) == 1 else spread * (number / (len(draws) - 1) - 0.5))
        panel.hlines(y, low, high, color=color(number), lw=1.2)
        panel.hlines(y, lower, upper, color=color(number), lw=3.2)
        marker = MARKERS[number % len(MARKERS)]
        panel.plot(middle, y, marker, color=color(number), mec="white", mew=0.7, ms=5.5, label=label)
    exact = read_truths(truths, draws, names)
    if exact is not None:
        panel.plot(exact, rows, "|", color=INK, ms=14, mew=1.4, label="true value")
    panel.set_yticks(rows, labels)
    panel.set_ylim(num_rows - 0.5, -0.5)
    polish(panel, x=f"median, 50 % and {100 * prob:.0f} % intervals")
    if len(draws) > 1 or exact is not None:
        figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=len(draws) + 1)
    return figure

"""Training curves."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.plots.style import COLORS, MARKERS, line_style, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 3


def training(estimator: Any) -> "Figure":
    """Draw training and validation loss by epoch, one panel per stage.

    Args:
        estimator: A trained estimator, or its `losses`: by stage, an array of training and validation losses.

    Returns:
        The figure.
    """
    losses: Mapping[str, Any] = estimator if isinstance(estimator, Mapping) else estimator.losses
    if not losses:
        raise ValueError("There are no losses to draw. Train first, with run or fit.")
    rows = -(-len(losses) // _COLUMNS)
    columns = min(_COLUMNS, len(losses))
    figure, axes = new_figure(3.4 * columns, 2.5 * rows, rows, columns)
    for panel, (stage, values) in zip(axes.flat, losses.items(), strict=False):
        curve = np.asarray(values, float)
        epochs = np.arange(1, len(curve) + 1)
        for place, label in enumerate(("training", "validation")):
            look = {"color": COLORS[place], "marker": MARKERS[place], "ls": line_style(place)}
            panel.plot(epochs, curve[:, place], markersize=2.5, lw=1.2, label=label, **look)
        polish(panel, title=stage, x="epoch", y="loss")
        panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    for panel in axes.flat[len(losses) :]:
        panel.set_visible(False)
    axes.flat[0].legend(fontsize=8, frameon=False)
    return figure

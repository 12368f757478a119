"""Posterior predictive bands beside the data, over functional inputs."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.model.data import functional_inputs
from hsbi.plots.draws import read_group
from hsbi.plots.style import COLORS, INK, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS, _MAX_PANELS = 4, 12


def predictive(
    result: Any, observation: str | None = None, *, inputs: Any = None, input_name: str = "", prob: float = 0.9
) -> "Figure":
    """Draw what the posterior predicts beside the data, one panel per site.

    Args:
        result: An estimator with draws, or ArviZ data with `posterior_predictive` and `observed_data`.
        observation: The observation; the first by default.
        inputs: Functional inputs, one per entry of a site's observation, shared by sites or with one row each. By
            default those of the estimator, if they have one dimension; else entries are counted from 0. An observation
            that is one number per site is drawn over its sites.
        input_name: What to call them on the axis.
        prob: Mass of the outer band.

    Returns:
        The figure, of the first twelve sites.
    """
    estimator = hasattr(result, "_last")
    data = result.to_arviz() if estimator else result
    predicted, observed = read_group(data, "posterior_predictive"), read_group(data, "observed_data")
    if predicted is None or observed is None:
        raise ValueError(
            "There are no posterior predictive draws beside observed data. Pass an estimator, or ArviZ data with both."
        )
    name = observation or str(next(iter(predicted.data_vars)))
    if name not in predicted or name not in observed:
        raise ValueError(f"There is no observation {name!r}; there are {list(predicted.data_vars)}.")
    dims = [d for d in predicted[name].dims if d not in ("chain", "draw")]
    draws = np.asarray(predicted[name].transpose("chain", "draw", *dims), float)
    draws = draws.reshape(-1, *draws.shape[2:])
    values = np.asarray(observed[name], float)
    bands = np.percentile(draws, [50 * (1 - prob), 25, 50, 75, 50 * (1 + prob)], axis=0)
    plate = str(dims[0]) if dims else ""
    members = list(observed[name].coords[plate].values) if plate and plate in observed[name].coords else None
    if values.ndim < 2:
        figure, axes = new_figure(6.4, 3.2)
        labels = members or list(range(values.size))
        _draw_sites(axes[0, 0], bands.reshape(5, -1), values.reshape(-1), labels, prob)
        polish(axes[0, 0], title=f"{name}: data and posterior predictive", x=plate, y=name)
        figure.legend(fontsize=8, frameon=False, loc="outside upper right", ncols=3)
        return figure
    bands, values = bands.reshape(5, len(values), -1), values.reshape(len(values), -1)
    inputs = _read_inputs(result, name) if inputs is None and estimator else inputs
    x = np.arange(values.shape[1]) if inputs is None else np.asarray(inputs, float)
    x = np.broadcast_to(x.reshape(-1, values.shape[1]), values.shape)
    num_panels = min(len(values), _MAX_PANELS)
    columns = min(_COLUMNS, num_panels)
    rows = -(-num_panels // columns)
    figure, axes = new_figure(2.6 * columns + 0.4, 2.0 * rows + 0.5, rows, columns, sharex=True, sharey=True)
    for place, panel in enumerate(axes.flat):
        if place >= num_panels:
            panel.set_visible(False)
            continue
        order = np.argsort(x[place])
        _draw_bands(panel, x[place][order], bands[:, place][:, order], values[place][order], prob)
        title = f"{plate} {place if members is None else members[place]}"
        below = place + columns >= num_panels
        x_name = (input_name or ("entry" if inputs is None else "input")) if below else ""
        polish(panel, title=title, x=x_name, y=name if place % columns == 0 else "")
        panel.tick_params(labelbottom=below)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside upper right", ncols=4)
    return figure


def _read_inputs(estimator: Any, name: str) -> np.ndarray | None:
    """Give the functional inputs of an observation, `[sites, entries]`; None unless they have one dimension."""
    found = functional_inputs(estimator._last()[0]).get(name)
    return None if found is None or found.shape[-1] != 1 else np.asarray(found, float).reshape(len(found), -1)


def _draw_bands(panel: "Axes", x: np.ndarray, bands: np.ndarray, values: np.ndarray, prob: float) -> None:
    panel.fill_between(x, bands[0], bands[4], color=COLORS[0], alpha=0.18, lw=0, label=f"{100 * prob:.0f} %")
    panel.fill_between(x, bands[1], bands[3], color=COLORS[0], alpha=0.35, lw=0, label="50 %")
    panel.plot(x, bands[2], color=COLORS[0], lw=1.2, label="median")
    panel.plot(x, values, ".", color=INK, ms=4, label="data")


def _draw_sites(panel: "Axes", bands: np.ndarray, values: np.ndarray, labels: list[Any], prob: float) -> None:
    x = np.arange(values.size)
    panel.vlines(x, bands[0], bands[4], color=COLORS[0], alpha=0.35, lw=6, label=f"{100 * prob:.0f} %")
    panel.vlines(x, bands[1], bands[3], color=COLORS[0], alpha=0.8, lw=6, label="50 %")
    panel.plot(x, values, "o", color=INK, ms=4, mec="white", mew=0.6, label="data")
    every = max(1, -(-values.size // 20))
    panel.set_xticks(x[::every], [str(label) for label in labels[::every]])

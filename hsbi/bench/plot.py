"""Figures of benchmark rows: metrics against budget and against sites, methods as lines, one column per task."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hsbi.bench.rows import Cell, group_rows
from hsbi.bench.table import LABELS
from hsbi.bench.tasks import TASKS

DEFAULT_METRICS = ("global_mean_error", "local_mean_error", "global_c2st", "local_c2st")
# What exact draws give in the limit of many, where that is not zero.
_BEST = {"global_c2st": 0.5, "local_c2st": 0.5}
_COLORS = {
    "lf": "#0072b2",
    "tfmpe": "#d55e00",
    "direct": "#009e73",
    "pf": "#cc79a7",
    "mlp": "#e69f00",
    "no-grouping": "#56b4e9",
    "joint": "#8c6d31",
    "reference": "#777777",
}
_MARKERS = {"lf": "o", "tfmpe": "s", "direct": "^", "pf": "D", "mlp": "v", "no-grouping": "P", "joint": "X"}
_AXES = {"budget": "simulations", "sites": "sites"}

Groups = dict[Cell, list[dict[str, Any]]]


def plot_rows(
    rows: list[dict[str, Any]], folder: str | os.PathLike[str], *, metrics: Sequence[str] = DEFAULT_METRICS
) -> list[Path]:
    """Draw the metrics against budget and against sites, what does not vary held where most cells are.

    Args:
        rows: Rows of the benchmark.
        folder: Where the figures go.
        metrics: The metrics, one line of panels each.

    Returns:
        The files `budget.png` and `sites.png`.
    """
    groups = group_rows(rows)
    return [_draw(groups, axis, metrics, Path(folder) / f"{axis}.png") for axis in _AXES]


def choose_fixed(groups: Groups, axis: str) -> int:
    """Choose the value of the other of budget and sites: where this one varies most, then where most cells are."""
    other = "sites" if axis == "budget" else "budget"
    cells = [cell for cell in groups if cell.method != "reference"] or list(groups)
    varied: dict[int, set[int]] = {}
    for cell in cells:
        varied.setdefault(getattr(cell, other), set()).add(getattr(cell, axis))
    counts = Counter(getattr(cell, other) for cell in cells)
    return max(varied, key=lambda value: (len(varied[value]), counts[value], value))


def collect(
    groups: Groups, task: str, method: str, axis: str, metric: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the values of the axis, means of a metric over observations and seeds, and their standard errors."""
    other = "sites" if axis == "budget" else "budget"
    fixed = choose_fixed(groups, axis)
    found: dict[int, list[float]] = {}
    for cell, own in groups.items():
        if (cell.task, label(cell)) == (task, method) and getattr(cell, other) == fixed:
            values = [row["metrics"][metric] for row in own if metric in row["metrics"]]
            found.setdefault(getattr(cell, axis), []).extend(values)
    places = sorted(place for place, values in found.items() if values)
    means = [np.mean(found[place]) for place in places]
    errors = [
        np.std(found[place], ddof=1) / np.sqrt(len(found[place])) if len(found[place]) > 1 else 0.0 for place in places
    ]
    return np.asarray(places), np.asarray(means), np.asarray(errors)


def label(cell: Cell) -> str:
    """Name the method with its scale."""
    return cell.method if cell.scale == "full" else f"{cell.method} ({cell.scale})"


def _draw(groups: Groups, axis: str, metrics: Sequence[str], path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = [task for task in TASKS if any(cell.task == task for cell in groups)]
    order = list(_COLORS)
    methods = sorted({(order.index(cell.method), label(cell)) for cell in groups})
    figure = Figure(figsize=(2.3 * len(tasks) + 0.6, 1.8 * len(metrics) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(metrics), len(tasks), squeeze=False, sharex=True, sharey="row")
    handles: dict[str, Any] = {}
    for row, metric in enumerate(metrics):
        for column, task in enumerate(tasks):
            panel = panels[row, column]
            for number, name in methods:
                _draw_line(panel, collect(groups, task, name, axis, metric), order[number], name, handles)
            panel.axhline(_BEST.get(metric, 0.0), color="0.8", linewidth=0.8, zorder=0)
            _finish_panel(panel, groups, axis)
            if row == 0:
                panel.set_title(task.replace("_", " "), fontsize=9)
            if column == 0:
                panel.set_ylabel(LABELS[metric], fontsize=9)
            if row == len(metrics) - 1:
                panel.set_xlabel(_AXES[axis], fontsize=9)
    other = "sites" if axis == "budget" else "simulations"
    figure.suptitle(f"{choose_fixed(groups, axis):,} {other}; bars are one standard error", fontsize=9)
    if handles:
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _draw_line(
    panel: Any, line: tuple[np.ndarray, np.ndarray, np.ndarray], method: str, name: str, handles: dict[str, Any]
) -> None:
    places, means, errors = line
    if not len(places):
        return
    dashed = method == "reference"
    handles[name] = panel.errorbar(
        places,
        means,
        errors,
        color=_COLORS[method],
        marker=None if dashed and len(places) > 1 else _MARKERS.get(method, "_"),
        linestyle="--" if dashed else "-",
        markersize=4,
        linewidth=1.2,
        elinewidth=0.8,
    )


def _finish_panel(panel: Any, groups: Groups, axis: str) -> None:
    places = sorted({getattr(cell, axis) for cell in groups})
    panel.set_xscale("log")
    panel.set_xlim(places[0] / 1.3, places[-1] * 1.3)
    panel.minorticks_off()
    panel.set_xticks(
        places, [f"{place // 1000}k" if place >= 1000 and place % 1000 == 0 else str(place) for place in places]
    )
    panel.tick_params(labelsize=8)
    panel.grid(color="0.93", linewidth=0.6)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)

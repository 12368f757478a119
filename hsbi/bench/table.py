"""Tables of benchmark rows in Markdown."""

from typing import Any

import numpy as np

from hsbi.bench.rows import Cell, group_rows

_METRICS = {
    "global_mean_error": "global mean",
    "global_log_sd_ratio": "global log sd",
    "local_mean_error": "local mean",
    "local_log_sd_ratio": "local log sd",
    "global_c2st": "C2ST global",
    "local_c2st": "C2ST local",
    "all_mmd2": "MMD² all",
    "all_wasserstein": "SW all",
}


def make_table(rows: list[dict[str, Any]]) -> str:
    """Give one line per cell: means over observations, their number, and costs."""
    head = ["task", "method", "sites", "budget", "seed", "obs.", *_METRICS.values()]
    head += ["90 % global", "90 % local", "calls", "train s", "draw s", "GB"]
    lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 2)]
    groups = group_rows(rows)
    for cell in sorted(groups):
        lines.append(_line(cell, groups[cell]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def average(rows: list[dict[str, Any]], part: str, name: str) -> float:
    """Average a number over rows; not a number where none has it."""
    values = [row[part][name] for row in rows if row[part].get(name) is not None]
    return float(np.mean(values)) if values else float("nan")


def _line(cell: Cell, rows: list[dict[str, Any]]) -> list[str]:
    method = cell.method if cell.scale == "full" else f"{cell.method} ({cell.scale})"
    line = [cell.task, method, str(cell.sites), f"{cell.budget:,}", str(cell.seed), str(len(rows))]
    line += [f"{average(rows, 'metrics', name):.3f}" for name in _METRICS]
    line += [f"{average(rows, 'calibration', name):.2f}" for name in ("global_coverage", "local_coverage")]
    line += [f"{average(rows, 'costs', 'simulator_calls'):,.0f}", f"{average(rows, 'costs', 'train_seconds'):.0f}"]
    line += [f"{average(rows, 'costs', name):.1f}" for name in ("draw_seconds", "peak_gigabytes")]
    return line

"""Tables of benchmark rows in Markdown."""

from typing import Any

import numpy as np

from hsbi.bench.rows import Cell, group_rows
from hsbi.diagnostics import uniformity

LABELS = {
    "global_mean_error": "global mean",
    "global_log_sd_ratio": "global log sd",
    "local_mean_error": "local mean",
    "local_log_sd_ratio": "local log sd",
    "global_c2st": "C2ST global",
    "local_c2st": "C2ST local",
    "global_mmd2": "MMD² global",
    "local_mmd2": "MMD² local",
    "all_mmd2": "MMD² all",
    "global_wasserstein": "SW global",
    "local_wasserstein": "SW local",
    "all_wasserstein": "SW all",
    "global_lc2st": "l-C2ST global",
    "local_lc2st": "l-C2ST local",
}
_ALWAYS = tuple(name for name in LABELS if name.endswith(("_error", "_ratio", "_c2st")) or name.startswith("all_"))
_TESTS = {"all_mmd_p": "MMD² all", "global_lc2st_p": "l-C2ST global", "local_lc2st_p": "l-C2ST local"}
_LEVEL = 0.05
_LEAST_OBSERVATIONS = 5


def make_table(rows: list[dict[str, Any]]) -> str:
    """Give one line per cell: means over observations, their number, and costs.

    P-values of a cell are shares of observations with p below 0.05, for which exact draws give 0.05 on average.
    """
    groups = group_rows(rows)
    names = [name for name in LABELS if name in _ALWAYS or any(name in row["metrics"] for row in rows)]
    tests = [name for name in _TESTS if any(name in row["metrics"] for row in rows)]
    head = ["task", "method", "sites", "budget", "seed", "obs.", *(LABELS[name] for name in names)]
    head += [f"{_TESTS[name]} p < 0.05" for name in tests]
    head += ["90 % global", "90 % local", "rank p global", "rank p local", "calls", "train s", "draw s", "GB"]
    lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 2)]
    lines += [_line(cell, groups[cell], names, tests) for cell in sorted(groups)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def average(rows: list[dict[str, Any]], part: str, name: str) -> float:
    """Average a number over rows; not a number where none has it."""
    values = [row[part][name] for row in rows if row[part].get(name) is not None]
    return float(np.mean(values)) if values else float("nan")


def calibration_p(rows: list[dict[str, Any]], level: str) -> float:
    """Test the ranks of true values over the observations of a cell for uniformity.

    Every global, or every local of the first site, is tested by itself, and the smallest p-value is multiplied by their
    number. Ranks of other sites of the same observation would not be independent.

    Returns:
        The p-value; not a number with fewer than five observations, which the test does not take.
    """
    ranks = np.asarray([row["calibration"][f"{level}_ranks"] for row in rows])
    if len(ranks) < _LEAST_OBSERVATIONS:
        return float("nan")
    if level == "local":
        ranks = ranks[:, : ranks.shape[1] // rows[0]["sites"]]
    p_values = uniformity(ranks).p_value
    return float(min(1.0, np.min(p_values) * np.size(p_values)))


def _line(cell: Cell, rows: list[dict[str, Any]], names: list[str], tests: list[str]) -> list[str]:
    method = cell.method if cell.scale == "full" else f"{cell.method} ({cell.scale})"
    line = [cell.task, method, str(cell.sites), f"{cell.budget:,}", str(cell.seed), str(len(rows))]
    line += [_format(average(rows, "metrics", name), 3) for name in names]
    line += [_format(_share_below(rows, name), 2) for name in tests]
    line += [_format(average(rows, "calibration", f"{level}_coverage"), 2) for level in ("global", "local")]
    line += [_format(calibration_p(rows, level), 3) for level in ("global", "local")]
    line += [f"{average(rows, 'costs', 'simulator_calls'):,.0f}", _format(average(rows, "costs", "train_seconds"), 0)]
    line += [_format(average(rows, "costs", name), 1) for name in ("draw_seconds", "peak_gigabytes")]
    return line


def _share_below(rows: list[dict[str, Any]], name: str) -> float:
    values = [row["metrics"][name] < _LEVEL for row in rows if name in row["metrics"]]
    return float(np.mean(values)) if values else float("nan")


def _format(value: float, digits: int) -> str:
    return "" if np.isnan(value) else f"{value:.{digits}f}"

"""A planned list of cells, the most telling first, each in a fresh process."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from hsbi.bench.methods import effective_scale
from hsbi.bench.rows import Cell, missing_observations
from hsbi.bench.tasks import TASKS

# At the affordable scale where there is one.
_ABLATIONS = ("direct", "pf", "tfmpe", "mlp", "no-grouping", "joint")


def plan() -> list[Cell]:
    """List the cells of the benchmark in order."""

    def cells() -> Iterator[Cell]:
        for budget in (10_000, 5_000, 1_000):
            yield from (Cell(task=task, method="lf", sites=50, budget=budget) for task in TASKS)
        for sites in (1, 10, 20, 100):
            yield from (Cell(task=task, method="lf", sites=sites, budget=5_000) for task in TASKS)
        for sites in (20, 50):
            yield from (Cell(task=task, method="reference", sites=sites, budget=5_000) for task in TASKS)
        for method in _ABLATIONS:
            scale = effective_scale(method, "small")
            yield from (Cell(task=task, method=method, scale=scale, sites=20, budget=5_000) for task in TASKS)

    return list(cells())


def sweep(folder: str | os.PathLike[str], *, minutes: float, num_observations: int = 10) -> list[Cell]:
    """Run the plan until the time is over.

    A process holds the compiled code of one cell only, and its peak memory is its own. A cell that fails is reported
    and passed over.

    Args:
        folder: Where rows are kept.
        minutes: Minutes after which no cell is started, and the running one is ended.
        num_observations: Observations of each cell.

    Returns:
        The cells with rows left to run.
    """
    deadline = time.monotonic() + 60 * minutes
    for cell in plan():
        left = deadline - time.monotonic()
        if left <= 0:
            break
        if not missing_observations(folder, cell, num_observations):
            continue
        started = time.monotonic()
        outcome = _run_apart(folder, cell, num_observations, left)
        print(f"{cell}: {outcome}, {time.monotonic() - started:.0f} s", flush=True)
    return [cell for cell in plan() if missing_observations(folder, cell, num_observations)]


def _run_apart(folder: str | os.PathLike[str], cell: Cell, num_observations: int, seconds: float) -> str:
    command = [sys.executable, "-m", "hsbi.bench", "run", "--out", str(folder)]
    command += ["--task", cell.task, "--method", cell.method, "--scale", cell.scale, "--seed", str(cell.seed)]
    command += ["--sites", str(cell.sites), "--budget", str(cell.budget), "--observations", str(num_observations)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "out of time"
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return "done"

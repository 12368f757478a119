"""Train one cell of the benchmark and write a row for each observation that has none."""

import os
import platform
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

import hsbi
from hsbi.bench.lc2st import draw_pairs, local_tests
from hsbi.bench.methods import train
from hsbi.bench.metrics import calibration, compare
from hsbi.bench.rows import Cell, missing_observations, write_row
from hsbi.bench.tasks import TASKS, Task

# Observations are the same for every method, budget and seed.
_OBSERVATIONS = 2026


def observe(task: Task, num_sites: int, number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Give the true latents and the data of an observation of the benchmark."""
    return task.draw(_observation_key(number), num_sites)


def exact_draws(
    folder: str | os.PathLike[str], task: Task, y: np.ndarray, number: int, num_draws: int
) -> dict[str, np.ndarray]:
    """Draw from the exact posterior given an observation, or read the draws that an earlier run left in the folder."""
    path = Path(folder) / "references" / f"{task.name}-s{len(y)}-o{number}-d{num_draws}.npz"
    if path.exists():
        with np.load(path) as kept:
            return dict(kept)
    draws = task.reference(jax.random.fold_in(_observation_key(number), 1), y, num_draws)
    # As they will be read by later runs.
    draws = {name: np.asarray(value, np.float32) for name, value in draws.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}-{os.getpid()}.tmp.npz")
    np.savez(temporary, **draws)  # pyright: ignore[reportArgumentType]
    os.replace(temporary, path)
    return draws


def run(
    folder: str | os.PathLike[str], cell: Cell, *, num_observations: int, num_draws: int = 1000, lc2st_sets: int = 0
) -> list[Path]:
    """Train a cell unless all its rows exist, and write the rows that do not, each as soon as it is measured.

    Args:
        folder: Where rows are kept.
        cell: What to train.
        num_observations: How many observations are wanted in all.
        num_draws: Draws of the method and of the exact posterior.
        lc2st_sets: Simulated data sets for the local classifier two-sample test; 0 leaves it out.

    Returns:
        The files of the rows that were written.
    """
    wanted = missing_observations(folder, cell, num_observations)
    if not wanted:
        return []
    task = TASKS[cell.task]
    key = jax.random.key(cell.seed)
    trained = train(key, cell.method, task, num_sites=cell.sites, budget=cell.budget, scale=cell.scale)
    costs = {"simulator_calls": trained.simulator_calls, "train_seconds": trained.seconds}
    pairs = None
    if lc2st_sets:
        pairs = draw_pairs(jax.random.fold_in(key, 0), task, trained.sample, cell.sites, lc2st_sets)
    paths = []
    for position, number in enumerate(wanted):
        truth, y = observe(task, cell.sites, number)
        exact = exact_draws(folder, task, y, number, num_draws)
        keys = jax.random.split(jax.random.fold_in(key, 1 + number), 4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if position == 0:
                # The first call compiles.
                trained.sample(keys[0], y, num_draws)
            started = time.perf_counter()
            draws = {name: np.asarray(value) for name, value in trained.sample(keys[0], y, num_draws).items()}
            seconds = time.perf_counter() - started
        facts = _measure(keys[1:], task, draws, exact, truth)
        if pairs is not None:
            facts["metrics"] |= local_tests(keys[3], task, pairs, draws, y)
        facts |= {
            "costs": {**costs, "draw_seconds": seconds, "peak_gigabytes": _peak_memory()},
            "warnings": sorted({str(warning.message) for warning in caught}),
            "settings": trained.settings,
            "versions": _versions(),
        }
        paths.append(write_row(folder, cell, number, facts))
    return paths


def _measure(
    keys: Array, task: Task, draws: dict[str, np.ndarray], exact: dict[str, np.ndarray], truth: dict[str, np.ndarray]
) -> dict[str, Any]:
    finite = np.ones(len(next(iter(draws.values()))), bool)
    for name in (*task.global_names, *task.local_names):
        finite &= np.all(np.isfinite(draws[name]), axis=tuple(range(1, draws[name].ndim)))
    kept = {name: value[finite] for name, value in draws.items()}
    return {
        "num_draws": len(finite),
        "num_not_finite": int(np.sum(~finite)),
        "metrics": compare(keys[0], task, kept, exact),
        "calibration": calibration(keys[1], task, kept, truth),
    }


def _observation_key(number: int) -> Array:
    return jax.random.fold_in(jax.random.key(_OBSERVATIONS), number)


def _peak_memory() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def _versions() -> dict[str, str]:
    return {"hsbi": hsbi.__version__, "jax": jax.__version__, "python": platform.python_version()}

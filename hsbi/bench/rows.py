"""Rows of the benchmark: one JSON file each, written at once, so that a killed run leaves whole rows only."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """What one training serves: all observations of a task by a method with a budget.

    Attributes:
        task: The task's name.
        method: The method's name.
        scale: The name of the settings that the method was trained with.
        sites: Number of sites.
        budget: Number of single-site simulations allowed.
        seed: The seed of simulations and training.
    """

    task: str
    method: str
    scale: str = "full"
    sites: int
    budget: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be."""
        for name in ("sites", "budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more.")

    def __str__(self) -> str:
        """Give the cell's name, which its files begin with."""
        return f"{self.task}-{self.method}-{self.scale}-s{self.sites}-n{self.budget}-i{self.seed}"


def row_path(folder: str | os.PathLike[str], cell: Cell, observation: int) -> Path:
    """Say where a row is kept."""
    return Path(folder) / f"{cell}-o{observation}.json"


def missing_observations(folder: str | os.PathLike[str], cell: Cell, num_observations: int) -> list[int]:
    """List the observations of a cell that have no row yet."""
    return [number for number in range(num_observations) if not row_path(folder, cell, number).exists()]


def write_row(folder: str | os.PathLike[str], cell: Cell, observation: int, facts: dict[str, Any]) -> Path:
    """Write a row; it appears under its name only when it is complete.

    Args:
        folder: Where rows are kept.
        cell: What was trained.
        observation: The number of the observation.
        facts: The rest of the row, plain values.

    Returns:
        The row's file.
    """
    path = row_path(folder, cell, observation)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**dataclasses.asdict(cell), "observation": observation, **facts}, allow_nan=False)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
    return path


def read_rows(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read all rows of a folder, in order of their names."""
    rows = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    if not rows:
        raise ValueError(f"There are no rows in {folder}. Make some with python -m hsbi.bench run.")
    return rows


def group_rows(rows: Iterable[dict[str, Any]]) -> dict[Cell, list[dict[str, Any]]]:
    """Put the observations of each cell together."""
    names = [field.name for field in dataclasses.fields(Cell)]
    groups: dict[Cell, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(Cell(**{name: row[name] for name in names}), []).append(row)
    return groups

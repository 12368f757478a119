"""Checkpoints of training: what a killed fit needs to go on as if nothing had happened."""

import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.training.archive import read_archive, write_archive
from hsbi.training.facts import Facts, list_differences

_KIND, _VERSION = "checkpoint", 1
# Seconds between two checkpoints of an unfinished stage: what a kill costs at most, besides the current epoch.
INTERVAL = 10.0


class Numbers(NamedTuple):
    """What a stage knows beside its weights.

    Attributes:
        losses: Training and validation loss by epoch, `[num_epochs, 2]`.
        initial: The validation loss before training.
        best: The lowest validation loss.
        waited: Epochs since then.
        broken: The step of the last epoch whose loss was not finite, or -1.
    """

    losses: np.ndarray
    initial: float
    best: float
    waited: int
    broken: int


class Checkpoint:
    """A folder with one file for each stage of a training run.

    Stages that are over are kept, so that a run that is started again takes their results. Names of stages must differ
    within a run.
    """

    def __init__(self, folder: str | os.PathLike[str], facts: Facts) -> None:
        """Make the folder, if there is none.

        Args:
            folder: The folder.
            facts: What the run is: its key, its settings, its data. A checkpoint of a run with other facts is refused.
        """
        self.folder = Path(folder)
        self.facts = facts
        self.folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def keyed(cls, folder: str | os.PathLike[str], facts: Facts) -> "Checkpoint":
        """Use a folder of its own for each run inside the given one, so that none is ever refused."""
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        return cls(Path(folder) / digest[:16], facts)

    def stage(self, name: str, facts: Mapping[str, Any]) -> "Stage":
        """Give the checkpoint of one stage.

        Args:
            name: The stage's name.
            facts: What the stage is, beside the facts of the run.
        """
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        return Stage(self.folder / f"{slug}-{digest}.hsbi", self.facts, {f"stage {name!r}": facts})


class Stage:
    """The checkpoint of one stage, a file."""

    def __init__(self, path: Path, run: Facts, stage: Facts) -> None:
        """Start the clock."""
        self.path = path
        self._run, self._stage = run, stage
        self._written = time.monotonic()

    def is_due(self) -> bool:
        """Say whether the last checkpoint is old."""
        return time.monotonic() - self._written >= INTERVAL

    def write(self, tree: Any, numbers: Numbers, *, finished: bool = False) -> None:
        """Write the state of the stage, or its result.

        Args:
            tree: The arrays.
            numbers: The numbers.
            finished: Whether the stage is over.
        """
        leaves = {f"{place}": np.asarray(leaf) for place, (_, leaf) in enumerate(_leaves(tree))}
        scalars = np.asarray([numbers.initial, numbers.best, numbers.waited, numbers.broken], np.float64)
        facts = {
            "run": self._run,
            "stage": self._stage,
            "finished": finished,
            "paths": [path for path, _ in _leaves(tree)],
        }
        arrays = {**leaves, "losses": np.asarray(numbers.losses, np.float64), "scalars": scalars}
        write_archive(self.path, _KIND, _VERSION, facts, arrays)
        self._written = time.monotonic()

    def read(self, unfinished: Any, result: Any) -> tuple[bool, Any, Numbers] | None:
        """Read what was written.

        A damaged file is set aside with a warning, and the stage starts over.

        Args:
            unfinished: Arrays with structure, shapes and types of an unfinished state.
            result: The same of a result.

        Returns:
            Whether the stage is over, its arrays and its numbers; None if there is no checkpoint.

        Raises:
            ValueError: If the checkpoint is that of another run, with all that differs.
        """
        if not self.path.exists():
            return None
        try:
            facts, arrays = read_archive(self.path, _KIND, _VERSION)
        except ValueError as error:
            aside = self.path.with_suffix(".damaged")
            os.replace(self.path, aside)
            warnings.warn(f"{error} It was set aside as {aside.name}, and the stage starts over.", stacklevel=3)
            return None
        found = list_differences(facts["run"], self._run) or list_differences(facts["stage"], self._stage)
        finished = facts["finished"]
        template = result if finished else unfinished
        expected = [(path, jnp.shape(leaf), str(leaf.dtype)) for path, leaf in _leaves(template)]
        number = len(facts["paths"])
        kept = [(path, arrays[f"{k}"].shape, str(arrays[f"{k}"].dtype)) for k, path in enumerate(facts["paths"])]
        if not found and kept != expected:
            odd = next((pair for pair in zip(kept, expected, strict=False) if pair[0] != pair[1]), None)
            found = [f"its weights were {len(kept)} arrays, are {len(expected)}" if odd is None else f"weights {odd}"]
        if found:
            raise ValueError(
                f"The checkpoint {self.path} is that of another run: {'; '.join(found)}. "
                "Go on with what it was made with, choose another path, or delete it to start over."
            )
        # Copies: training donates its buffers.
        leaves = [jnp.array(arrays[f"{place}"]) for place in range(number)]
        tree = jax.tree.unflatten(jax.tree.structure(template), leaves)
        initial, best, waited, broken = (float(value) for value in arrays["scalars"])
        return finished, tree, Numbers(arrays["losses"], initial, best, int(waited), int(broken))


def describe_key(key: Array) -> str:
    """Give a random key as text."""
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return ",".join(str(word) for word in np.asarray(data).ravel())


def digest_arrays(tree: Any) -> str:
    """Hash every array of a tree, with its place and its shape."""
    digest = hashlib.sha256()
    for path, leaf in _leaves(tree):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{path} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data if array.dtype.kind in "biufc" else str(array.tolist()).encode())
    return digest.hexdigest()[:16]


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]

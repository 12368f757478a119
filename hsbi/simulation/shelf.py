"""A store that a run fills: rows are written as they are complete, and found again by the same call."""

import datetime
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from hsbi.model.calls import Done, Failure
from hsbi.model.data import functional_inputs, site_covariates
from hsbi.model.host import CallError, Status
from hsbi.model.program import Program
from hsbi.simulation.manifest import DESIGN, KINDS, check_run, describe_run, read_manifest, write_manifest
from hsbi.simulation.shards import (
    Columns,
    DamagedError,
    concatenate,
    list_shards,
    pack_columns,
    read_shards,
    set_aside,
    sweep,
    unpack_columns,
    warn_of_damage,
    write_file,
    write_shard,
)

# Rows are written when so many, or so many bytes, have come, or this long after the last time; one by one where a
# simulation takes longer than _SLOW seconds.
_FLUSH_ROWS, _FLUSH_BYTES, _FLUSH_SECONDS, _SLOW = 2048, 2**25, 30.0, 1.0
# Sooner at first: a run that is killed loses about this share of it, but files are not written more often than this.
_FLUSH_SHARE, _MIN_FLUSH_SECONDS = 0.2, 1.0
# Folders of more files than this are merged into files of about so many rows.
_MANY_FILES, _MERGED_ROWS = 256, 8192
_MAX_TRACEBACK = 4000


class Shelf:
    """A store that a run fills."""

    def __init__(self, path: str | os.PathLike[str], program: Program, key: Array, *, whole: bool = False) -> None:
        """Open or make a store for a run.

        Args:
            path: Its folder.
            program: The program.
            key: The key of all rows.
            whole: Whether a row has all sites.

        Raises:
            ValueError: If the store belongs to another model or key; the message lists what differs.
        """
        self.path = Path(path)
        run = describe_run(program, key, KINDS["sets" if whole or program.route == "whole" else "sites"])
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(error.errno, f"Cannot make the store {str(self.path)!r}: {error.strerror}.") from error
        known = read_manifest(self.path)
        if known is None:
            self._write_design(program)
            created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            write_manifest(self.path, {**run, "created": created})
        else:
            check_run(self.path, run, known)
            self._repair_design(program)
        sweep(self.path)
        self._buffer: list[tuple[Done, np.ndarray | None]] = []
        self._rows, self._bytes = 0, 0
        self._opened = self._flushed = time.monotonic()

    @property
    def place(self) -> str:
        """Say where the store is."""
        return repr(str(self.path))

    def _write_design(self, program: Program) -> None:
        covariates, names = site_covariates(program)
        design = {f"covariate_{name}": np.asarray(covariates[:, column]) for column, name in enumerate(names)}
        design |= {f"input_{name}": np.asarray(value) for name, value in functional_inputs(program).items()}
        write_file(self.path / DESIGN, pack_columns(design))

    def _repair_design(self, program: Program) -> None:
        """Write covariates and inputs again where they are damaged or gone: the arguments are known to be the same."""
        try:
            unpack_columns(self.path / DESIGN)
        except (DamagedError, FileNotFoundError):
            self._write_design(program)

    def restore(self, total: int) -> Iterator[Done]:
        """Give the rows that are there, of the first `total`; damaged files are set aside with a warning."""
        seen = np.zeros(total, bool)
        merge = len(list_shards(self.path)) > _MANY_FILES
        parts: list[tuple[Path, Columns, list[list[Any]]]] = []
        for path, columns, failures in read_shards(self.path):
            if isinstance(columns, DamagedError):
                warn_of_damage(path, columns, set_aside(path))
                continue
            numbers = columns["number"]
            wanted = numbers < total
            wanted[wanted] = ~seen[numbers[wanted]]
            seen[numbers[wanted]] = True
            if wanted.any():
                yield _to_done({name: value[wanted] for name, value in columns.items()}, failures)
            if merge:
                parts.append((path, columns, failures))
                if sum(part[1]["number"].size for part in parts) >= _MERGED_ROWS:
                    self._merge(parts)
                    parts = []
        if merge:
            self._merge(parts)

    def _merge(self, parts: list[tuple[Path, Columns, list[list[Any]]]]) -> None:
        """Replace small files by one; the new one is there before the old ones go."""
        if len(parts) < 2:
            return
        columns = concatenate([part[1] for part in parts])
        _, first = np.unique(columns["number"], return_index=True)
        failures = {(failure[0], failure[1]): failure for part in parts for failure in part[2]}
        written = write_shard(
            self.path, {name: value[first] for name, value in columns.items()}, list(failures.values())
        )
        for path, _, _ in parts:
            if path != written:
                path.unlink(missing_ok=True)

    def save(self, done: Done, sites: np.ndarray | None) -> None:
        """Take complete rows, and write when enough have come, or when it is time."""
        self._buffer.append((done, sites))
        self._rows += done.numbers.size
        self._bytes += sum(value.nbytes for value in (*done.values.values(), *done.observations.values()))
        slow = float(np.mean(done.seconds)) > _SLOW
        if slow or self._is_late() or self._rows >= _FLUSH_ROWS or self._bytes >= _FLUSH_BYTES:
            self.flush()

    def _is_late(self) -> bool:
        now = time.monotonic()
        longest = max(_MIN_FLUSH_SECONDS, _FLUSH_SHARE * (now - self._opened))
        return now - self._flushed > min(longest, _FLUSH_SECONDS)

    def flush(self) -> None:
        """Write what was taken."""
        if self._buffer:
            columns = concatenate([_to_columns(done, sites) for done, sites in self._buffer])
            failures = [
                [f.number, f.name, int(f.status), f.error.kind, f.error.message, f.error.traceback[-_MAX_TRACEBACK:]]
                for done, _ in self._buffer
                for f in done.failures
            ]
            write_shard(self.path, columns, failures)
        self._buffer, self._rows, self._bytes = [], 0, 0
        self._flushed = time.monotonic()


def _to_columns(done: Done, sites: np.ndarray | None) -> Columns:
    columns = {"number": done.numbers.astype(np.int64), "seconds": done.seconds.astype(np.float32)}
    if sites is not None:
        columns["site"] = sites.astype(np.int64)
    for kind, group in (("value", done.values), ("observation", done.observations), ("status", done.status)):
        columns |= {f"{kind}/{name}": np.asarray(value) for name, value in group.items()}
    return columns


def _to_done(columns: Columns, failures: list[list[Any]]) -> Done:
    def of(kind: str) -> Columns:
        prefix = f"{kind}/"
        return {name.removeprefix(prefix): value for name, value in columns.items() if name.startswith(prefix)}

    kept = set(columns["number"].tolist())
    listed = tuple(
        Failure(number, name, Status(status), CallError(*error))
        for number, name, status, *error in failures
        if number in kept
    )
    return Done(columns["number"], of("value"), of("observation"), of("status"), columns["seconds"], listed)

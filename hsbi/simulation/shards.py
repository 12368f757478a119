"""Files of a store: written whole or not at all, and read only if every byte is as it was written."""

import contextlib
import hashlib
import io
import json
import os
import secrets
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_COLUMNS = "columns"
_FAILURES = "failures"
# Temporary files of a process that was killed are swept after this many seconds.
_STALE = 3600.0

Columns = dict[str, np.ndarray]


class DamagedError(ValueError):
    """A file of a store whose content is not what was written."""


def write_file(path: Path, content: bytes) -> None:
    """Write a file through a temporary one, synced and renamed, so that it is there whole or not at all.

    Raises:
        OSError: If the disk is full or cannot be written; the message names the path.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(
            error.errno,
            f"Cannot write {str(path)!r}: {error.strerror or error}. Files written before stay readable: make room, "
            "then run the same call again to resume.",
        ) from error


def pack_columns(columns: Mapping[str, np.ndarray]) -> bytes:
    """Put arrays into the bytes of an `.npz` file with a list of its columns."""
    listed = np.frombuffer(json.dumps(list(columns)).encode(), np.uint8)
    buffer = io.BytesIO()
    # Names become keyword arguments of savez, one of which is called `file`.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, value in {_COLUMNS: listed, **columns}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(value), allow_pickle=False)
    return buffer.getvalue()


def unpack_columns(path: Path) -> Columns:
    """Read all arrays of an `.npz` file; the archive's checksums cover every one.

    Raises:
        DamagedError: If anything is not as it was written.
        FileNotFoundError: If the file is gone.
    """
    content = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = json.loads(_read(archive, _COLUMNS).tobytes().decode())
            columns = {name: _read(archive, name) for name in names}
    except Exception as error:
        # Damage may show as any exception of zipfile, zlib, struct, json or NumPy.
        raise DamagedError(f"{path.name} is damaged: {type(error).__name__}: {error}") from error
    return columns


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    # Read whole, as the checksum is compared at the end of a member.
    content = io.BytesIO(archive.read(f"{name}.npy"))
    return np.lib.format.read_array(content, allow_pickle=False)


def write_shard(folder: Path, columns: Columns, failures: Sequence[Sequence[Any]]) -> Path:
    """Write rows to a file named by their numbers: equal rows make equal files, whoever writes them."""
    numbers = columns["number"]
    order = np.argsort(numbers)
    columns = {name: value[order] for name, value in columns.items()}
    numbers = columns["number"]
    digest = hashlib.sha256(np.ascontiguousarray(numbers, np.int64).tobytes()).hexdigest()[:8]
    path = folder / f"rows-{int(numbers[0]):09d}-{int(numbers[-1]):09d}-{digest}.npz"
    listed = np.frombuffer(json.dumps([list(failure) for failure in failures]).encode(), np.uint8)
    write_file(path, pack_columns({**columns, _FAILURES: listed}))
    return path


def read_shard(path: Path) -> tuple[Columns, list[list[Any]]]:
    """Read rows, and what is known of those that failed."""
    columns = unpack_columns(path)
    try:
        failures = json.loads(columns.pop(_FAILURES).tobytes().decode())
        size = columns["number"].shape[0]
        if any(value.shape[0] != size for value in columns.values()):
            raise ValueError("columns have different lengths")
    except (KeyError, ValueError, IndexError) as error:
        raise DamagedError(f"{path.name} is damaged: {error}") from error
    return columns, failures


def list_shards(folder: Path) -> list[Path]:
    """List the files of rows, in the order of their first rows."""
    return sorted(folder.glob("rows-*.npz"))


def read_shards(folder: Path) -> Iterator[tuple[Path, Columns | DamagedError, list[list[Any]]]]:
    """Read all files of rows, also while another process writes, merges or removes some."""
    seen: set[Path] = set()
    while True:
        found = [path for path in list_shards(folder) if path not in seen]
        if not found:
            return
        for path in found:
            seen.add(path)
            try:
                columns, failures = read_shard(path)
            except FileNotFoundError:
                # Merged into another file in the meantime, which the next listing has.
                continue
            except DamagedError as error:
                yield path, error, []
                continue
            yield path, columns, failures


def set_aside(path: Path) -> Path | None:
    """Move a damaged file out of the way; gives its new place, or None where it cannot be moved."""
    place = path.parent / "damaged" / path.name
    try:
        place.parent.mkdir(exist_ok=True)
        os.replace(path, place)
    except OSError:
        return None
    return place


def warn_of_damage(path: Path, error: DamagedError, place: Path | None) -> None:
    """Say which file is damaged and where it is now."""
    where = "passed over" if place is None else f"moved to {str(place.parent)!r}"
    warnings.warn(f"{error}. It is {where}, and its simulations are run again when they are asked for.", stacklevel=4)


def sweep(folder: Path) -> None:
    """Remove temporary files that nobody will rename any more."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE:
                path.unlink()


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Join the rows of several files."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

"""Arrays and facts in one zip file: written whole or not at all, and checked byte by byte when read."""

import io
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_MANIFEST = "manifest.json"
# Booleans, integers, floats and complex numbers: what a .npy file holds without pickle and without loss.
_KINDS = "biufc"
# What zipfile, zlib and numpy raise on damaged bytes; a flipped flag asks for a password or an unknown compression.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, IndexError, TypeError),
    *(NotImplementedError, RuntimeError, OverflowError, MemoryError),
)


def write_archive(
    path: str | os.PathLike[str], kind: str, version: int, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write facts and arrays as one zip of `manifest.json` and `.npy` files, stored rather than compressed.

    The file appears under its name when it is complete and on disk; an earlier file of that name stays until then.

    Args:
        path: Where to write.
        kind: What the file is, such as `estimator`.
        version: The version of that kind's format.
        facts: What survives JSON.
        arrays: Arrays of numbers.

    Raises:
        OSError: If the file cannot be written, with its path.
    """
    path = Path(path)
    table = {name: {"dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays.items()}
    manifest = {"hsbi": kind, "version": version, "arrays": table, "facts": dict(facts)}
    text = json.dumps(manifest, indent=1, allow_nan=False)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                # A ZipInfo made from a name has a fixed date, so that equal contents are equal bytes.
                archive.writestr(zipfile.ZipInfo(_MANIFEST), text)
                for name, array in arrays.items():
                    archive.writestr(zipfile.ZipInfo(_member(name)), _to_bytes(name, array))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror or error}", str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_archive(path: str | os.PathLike[str], kind: str, version: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read what `write_archive` wrote.

    Nothing is unpickled and no code is run. Every byte that matters is covered by the zip's checksums.

    Args:
        path: The file.
        kind: What the file must be.
        version: The newest version of the format that can be read.

    Returns:
        The facts and the arrays.

    Raises:
        ValueError: If the file is damaged, foreign, of another kind or newer, with the reason.
        FileNotFoundError: If there is no such file.
    """
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] != b"PK":
        raise ValueError(f"{path} is not a file that hsbi wrote, or its beginning is damaged: it is no zip archive.")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            text = archive.read(_MANIFEST) if _MANIFEST in names else None
            manifest = None if text is None else _parse(text)
            members = {} if text is None else {name: archive.read(name) for name in names if name != _MANIFEST}
    except _DAMAGE as error:
        raise ValueError(f"{path} is truncated or damaged: {error or type(error).__name__}. Save it anew.") from error
    if manifest is None:
        raise ValueError(f"{path} is a zip archive, but not one that hsbi wrote: it has no hsbi manifest.")
    if manifest["hsbi"] != kind:
        raise ValueError(f"{path} is a saved {manifest['hsbi']}, expected a saved {kind}.")
    if manifest["version"] > version:
        raise ValueError(
            f"{path} has version {manifest['version']} of the format, but this hsbi reads up to version {version}. "
            "Load it with a newer hsbi."
        )
    try:
        return manifest["facts"], _read_arrays(manifest["arrays"], members, names)
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged or was changed: {error}. Save it anew.") from error


def _parse(text: bytes) -> dict[str, Any] | None:
    """Read a manifest; None if another program wrote it."""
    manifest = json.loads(text)
    fields = {"hsbi": str, "version": int, "arrays": dict, "facts": dict}
    if not isinstance(manifest, dict):
        return None
    return manifest if all(isinstance(manifest.get(name), kind) for name, kind in fields.items()) else None


def _read_arrays(table: Mapping[str, Any], members: Mapping[str, bytes], names: list[str]) -> dict[str, np.ndarray]:
    expected = [_MANIFEST, *(_member(name) for name in table)]
    if sorted(names) != sorted(expected):
        found = sorted(set(expected) ^ set(names)) or ["a member stored twice"]
        raise ValueError(f"its arrays are not those of its manifest ({', '.join(found)})")
    arrays: dict[str, np.ndarray] = {}
    for name, declared in table.items():
        stream = io.BytesIO(members[_member(name)])
        array = np.lib.format.read_array(stream, allow_pickle=False)
        if array.dtype.str != declared["dtype"] or list(array.shape) != declared["shape"] or stream.read(1):
            raise ValueError(
                f"array {name} is {array.dtype.str} of shape {array.shape}, but the manifest says "
                f"{declared['dtype']} of shape {tuple(declared['shape'])}"
            )
        if array.dtype.kind not in _KINDS:
            raise ValueError(f"array {name} has type {array.dtype}, expected numbers")
        arrays[name] = array
    return arrays


def _to_bytes(name: str, array: np.ndarray) -> bytes:
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"Array {name!r} has type {array.dtype}, which cannot be stored. Store numbers or booleans.")
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def _member(name: str) -> str:
    return f"arrays/{name}.npy"

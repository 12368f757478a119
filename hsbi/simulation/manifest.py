"""What a store says about the run that filled it, and how another run differs from it."""

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from hsbi.model.densities import find_simulators, list_other_densities, probe_densities
from hsbi.model.execution import Visit, execute, keep_data
from hsbi.model.host import name_of
from hsbi.model.program import Program, map_leaves
from hsbi.simulation.shards import list_shards, write_file

FORMAT = 1
MANIFEST, DESIGN = "manifest.json", "design.npz"
KINDS = {"sites": "single sites", "sets": "whole data sets"}
_VERSIONS = ("hsbi", "jax", "numpyro", "numpy")


def describe_run(program: Program, key: Array, kind: str) -> dict[str, Any]:
    """Describe a run by what its rows depend on, as plain JSON.

    Args:
        program: The program.
        key: The key of all rows.
        kind: What a row is.
    """
    structure = program.structure
    covariates = tuple(covariate for covariate in structure.covariates if covariate.data is None)
    facts = dataclasses.replace(structure, covariates=covariates)
    plate = structure.site_plate
    return {
        "format": FORMAT,
        "kind": kind,
        "key": {"words": np.asarray(jax.random.key_data(key)).ravel().tolist(), "impl": _implementation(key)},
        "fingerprint": facts.fingerprint(),
        "sites": {
            site.name: {
                "level": site.level,
                "distribution": site.distribution,
                "support": site.support,
                "shape": list(site.shape),
                "plates": list(site.plates),
                "parents": list(site.parents),
            }
            for site in structure.sites
        },
        "site_plate": None if plate is None else {"name": plate.name, "size": plate.size},
        "arguments": _summarize_arguments(program),
        "densities": probe_densities(program),
        "simulators": {name: _code(fn) for name, fn in find_simulators(program).items()},
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _VERSIONS},
    }


def _implementation(key: Array) -> str:
    typed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(key)) if typed else str(jax.config.jax_default_prng_impl)  # pyright: ignore


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _summarize_arguments(program: Program) -> dict[str, Any]:
    """Summarize every argument but the data, which simulations do not depend on."""
    data = {covariate.path for covariate in program.structure.covariates if covariate.data is not None}
    observed: list[np.ndarray] = []

    def read(visit: Visit) -> Any:
        if visit.data is not None:
            observed.append(np.asarray(visit.data))
        return keep_data(visit)

    execute(program, jax.random.key(0), observe=read)
    summary: dict[str, Any] = {}

    def note(path: str, leaf: Any) -> Any:
        if path not in data and leaf is not None:
            summary[path] = _summarize(leaf)
            if isinstance(summary[path], dict) and any(np.array_equal(np.asarray(leaf), value) for value in observed):
                del summary[path]
        return leaf

    map_leaves(note, program.arguments)
    return summary


def _summarize(leaf: Any) -> Any:
    if isinstance(leaf, bool | int | float | str):
        return leaf
    if isinstance(leaf, np.ndarray | np.generic | Array) and np.asarray(leaf).dtype != object:
        value = np.asarray(leaf)
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"shape": list(value.shape), "dtype": value.dtype.name, "sha256": digest}
    return type(leaf).__name__


def _code(fn: Any) -> dict[str, str]:
    """Name a simulator and hash its byte code, as far as it has any."""
    found = getattr(fn, "func", fn)
    code = getattr(found, "__code__", None) or getattr(vars(type(found)).get("__call__"), "__code__", None)
    digest = "" if code is None else hashlib.sha256(_walk(code).encode()).hexdigest()
    return {"function": name_of(fn), "code": digest}


def _walk(code: Any) -> str:
    constants = [_walk(value) if hasattr(value, "co_code") else repr(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def list_differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """List in words what differs between this run and that of a store."""
    found: list[str] = []
    if theirs["format"] != ours["format"]:
        return [f"its format is {theirs['format']}, and this version of hsbi reads {ours['format']}"]
    if ours["kind"] != theirs["kind"]:
        found.append(f"its rows are {theirs['kind']}, not {ours['kind']}")
    if ours["key"] != theirs["key"]:
        found.append(f"the random key is {ours['key']['words']}, the store's is {theirs['key']['words']}")
    for name in dict.fromkeys([*ours["sites"], *theirs["sites"]]):
        mine, other = ours["sites"].get(name), theirs["sites"].get(name)
        if mine is None or other is None:
            found.append(f"site {name!r} is only in {'the store' if mine is None else 'the model'}")
        else:
            found += [
                f"{fact} of site {name!r} is {mine[fact]!r}, in the store {other[fact]!r}"
                for fact in mine
                if mine[fact] != other[fact]
            ]
    for path in dict.fromkeys([*ours["arguments"], *theirs["arguments"]]):
        mine, other = ours["arguments"].get(path), theirs["arguments"].get(path)
        if mine != other:
            found.append(f"argument {path!r} {_compare(mine, other)}")
    if not found:
        # Stores of earlier versions have no densities.
        found += list_other_densities(theirs.get("densities", {}), ours["densities"])
    if not found and ours["fingerprint"] != theirs["fingerprint"]:
        found.append("the structure of the model")
    return found


def _compare(mine: Any, other: Any) -> str:
    if isinstance(mine, dict) and isinstance(other, dict):
        if (mine["shape"], mine["dtype"]) == (other["shape"], other["dtype"]):
            return "has other values"
        return f"is {mine['dtype']}{mine['shape']}, in the store {other['dtype']}{other['shape']}"
    if mine is None or other is None:
        return f"is only {'in the store' if mine is None else 'given now'}"
    return f"is {mine!r}, in the store {other!r}"


def list_changed_code(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """List simulators whose code has changed since, as far as byte code of one Python version shows it."""
    if ours["python"].rsplit(".", 1)[0] != theirs["python"].rsplit(".", 1)[0]:
        return []
    return [name for name, code in ours["simulators"].items() if theirs["simulators"].get(name, code) != code]


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write what a store says about itself, with a checksum."""
    write_file(folder / MANIFEST, json.dumps({**facts, "sha256": _digest(facts)}, indent=1).encode())


def _digest(facts: Mapping[str, Any]) -> str:
    content = {name: value for name, value in facts.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read what a store says about itself; None where there is no store."""
    path = folder / MANIFEST
    if not path.exists():
        if list_shards(folder):
            raise ValueError(
                f"The folder {str(folder)!r} has simulations but no {MANIFEST}, so whose they are is unknown. "
                "Restore the file from a copy, or use another folder."
            )
        return None
    try:
        manifest = json.loads(path.read_bytes())
        version = int(manifest["format"])
        digest = _digest(manifest)
        # Stores of earlier versions have no checksum, and those of later ones may have another.
        if version <= FORMAT and manifest.get("sha256", digest) != digest:
            raise ValueError("it is damaged, as its checksum is another one")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read: {error}. Restore it from a copy; simulations are not used without it."
        ) from error
    if version > FORMAT:
        raise ValueError(
            f"The store {str(folder)!r} has format {version}, and this version of hsbi reads up to {FORMAT}. "
            "Install a newer version."
        )
    return manifest


def check_run(folder: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse a store of another run, and warn where the code of a simulator has changed."""
    differences = list_differences(dict(ours), dict(theirs))
    if differences:
        raise ValueError(
            f"The store {str(folder)!r} belongs to another run: {'; '.join(differences)}. "
            "Pass the same model, arguments and key, or another store."
        )
    changed = list_changed_code(dict(ours), dict(theirs))
    if changed:
        warnings.warn(
            f"The code of the simulator of {', '.join(map(repr, changed))} has changed since the store "
            f"{str(folder)!r} was begun; rows of both versions would be mixed. Use another store unless they agree.",
            stacklevel=4,
        )

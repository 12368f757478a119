"""What a folder of simulations holds."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.model.host import Status
from hsbi.simulation.manifest import DESIGN, KINDS, read_manifest
from hsbi.simulation.shards import (
    Columns,
    DamagedError,
    concatenate,
    list_shards,
    read_shards,
    unpack_columns,
    warn_of_damage,
    write_shard,
)


class Store:
    """Simulations in a folder, as `LF(..., store=path)` wrote them.

    Examples:
        >>> store = hsbi.Store("simulations")  # doctest: +SKIP
        >>> print(store)  # doctest: +SKIP
        >>> store.to_xarray()  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a store.

        Args:
            path: Its folder.
        """
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        if self.manifest is None:
            raise FileNotFoundError(
                f"There is no store of simulations in {str(self.path)!r}. One is made by LF(..., store=...)."
            )
        self._columns: Columns | None = None
        self._failures: list[list[Any]] = []

    @property
    def key(self) -> Array:
        """The random key of its simulations, as `simulate` takes it."""
        assert self.manifest is not None
        words = np.array(self.manifest["key"]["words"], np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl=self.manifest["key"]["impl"])

    def columns(self) -> Columns:
        """Give all rows as arrays, sorted by number.

        Returns:
            `number`, `site`, `seconds`, and by name `value/...`, `observation/...` and `status/...`.
        """
        if self._columns is None:
            parts: list[Columns] = []
            seen: set[int] = set()
            for path, columns, failures in read_shards(self.path):
                if isinstance(columns, DamagedError):
                    warn_of_damage(path, columns, None)
                    continue
                new = np.array([number not in seen for number in columns["number"].tolist()], bool)
                seen.update(columns["number"].tolist())
                parts.append({name: value[new] for name, value in columns.items()})
                kept = set(columns["number"][new].tolist())
                self._failures += [failure for failure in failures if failure[0] in kept]
            joined = concatenate(parts) if parts else {"number": np.zeros(0, int), "seconds": np.zeros(0)}
            order = np.argsort(joined["number"])
            self._columns = {name: value[order] for name, value in joined.items()}
        return self._columns

    def __len__(self) -> int:
        """Count the rows."""
        return self.columns()["number"].size

    def counts(self) -> dict[str, dict[str, int]]:
        """Count the rows of each observation by status."""
        found: dict[str, dict[str, int]] = {}
        for name, status in self._of("status").items():
            codes, numbers = np.unique(status, return_counts=True)
            words = [Status(int(code)).name.lower() for code in codes]
            found[name] = dict(zip(words, numbers.tolist(), strict=True))
        return found

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Give the lowest and the highest finite value of each latent and observation."""
        found: dict[str, tuple[float, float]] = {}
        for name, value in {**self._of("value"), **self._of("observation")}.items():
            usable = np.isfinite(value) if value.dtype.kind == "f" else value != np.iinfo(value.dtype).min
            if usable.any():
                found[name] = (float(value[usable].min()), float(value[usable].max()))
        return found

    @property
    def seconds_per_simulation(self) -> float:
        """The mean time of a row in its simulators."""
        seconds = self.columns()["seconds"]
        return float(seconds.mean()) if seconds.size else 0.0

    def failures(self) -> list[dict[str, Any]]:
        """List the simulations that failed: number, site, parameters, status, exception type, message, traceback."""
        columns = self.columns()
        places = {int(number): place for place, number in enumerate(columns["number"])}
        found: list[dict[str, Any]] = []
        for number, name, status, kind, message, traceback in sorted(self._failures):
            place = places[number]
            found.append(
                {
                    "number": number,
                    "observation": name,
                    "site": int(columns["site"][place]) if "site" in columns else None,
                    "parameters": {latent: value[place] for latent, value in self._of("value").items()},
                    "status": Status(status).name.lower(),
                    "type": kind,
                    "message": message,
                    "traceback": traceback,
                }
            )
        return found

    def forget_failures(self) -> int:
        """Remove the rows that failed, to be simulated again by the next run; gives their number."""
        columns = self.columns()
        failed = np.zeros(columns["number"].size, bool)
        for status in self._of("status").values():
            failed |= status != Status.OK
        old = list_shards(self.path)
        kept = {name: value[~failed] for name, value in columns.items()}
        written = {write_shard(self.path, kept, [])} if kept["number"].size else set()
        for path in old:
            if path not in written:
                path.unlink(missing_ok=True)
        self._columns, self._failures = None, []
        return int(failed.sum())

    def to_xarray(self) -> Any:
        """Give everything as an `xarray.Dataset` with the dimension `simulation`."""
        import xarray

        columns = self.columns()
        assert self.manifest is not None
        single = self.manifest["kind"] == KINDS["sites"]
        plate = self.manifest["site_plate"]
        variables: dict[str, Any] = {}
        for name, value in {**self._of("value"), **self._of("observation")}.items():
            if single and plate is not None and plate["name"] in self.manifest["sites"][name]["plates"]:
                value = value[:, 0]
            variables[name] = (("simulation", *(f"{name}_dim_{axis}" for axis in range(value.ndim - 1))), value)
        for name, value in self._of("status").items():
            words = np.array([Status(int(code)).name.lower() for code in value], "U9")
            variables[f"status_{name}"] = ("simulation", words)
        coordinates: dict[str, Any] = {"simulation": columns["number"], "seconds": ("simulation", columns["seconds"])}
        if "site" in columns:
            coordinates["site"] = ("simulation", columns["site"])
            for name, value in self._design().items():
                dims = tuple(f"{name}_dim_{axis}" for axis in range(value.ndim - 1))
                variables[name] = (("simulation", *dims), value[columns["site"]])
        return xarray.Dataset(variables, coordinates, {"store": str(self.path)})

    def _design(self) -> Columns:
        path = self.path / DESIGN
        if not path.exists():
            return {}
        return unpack_columns(path)

    def _of(self, kind: str) -> Columns:
        prefix = f"{kind}/"
        return {name.removeprefix(prefix): v for name, v in self.columns().items() if name.startswith(prefix)}

    def __str__(self) -> str:
        """Show what is there."""
        assert self.manifest is not None
        lines = [f"store {self.path}: {len(self):,} rows of {self.manifest['kind']}"]
        lines.append(f"  time per simulation  {self.seconds_per_simulation:.3g} s")
        for name, counts in self.counts().items():
            lines.append(f"  status of {name}  " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        for name, (low, high) in self.ranges().items():
            lines.append(f"  range of {name}  {low:.4g} to {high:.4g}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Name the folder."""
        return f"Store({str(self.path)!r})"

"""Read draws from whatever holds them: hsbi's estimators, NumPyro's MCMC, ArviZ data, or a dict of arrays."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Draws(NamedTuple):
    """Draws by name, with names for their axes.

    Attributes:
        values: `[draws, ...]` by name.
        labels: For each name, one label per scalar of a draw, such as `theta[school 3]`, or `theta[Choate]` where
            members have names.
        plates: For each name, the plate or dim of the first axis after the draws; empty for scalars.
    """

    values: dict[str, np.ndarray]
    labels: dict[str, tuple[str, ...]]
    plates: dict[str, str]

    def columns(self, names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
        """Put the scalars of some names side by side, `[draws, columns]`, with their labels."""
        parts = [self.values[name].reshape(len(self.values[name]), -1) for name in names]
        return np.concatenate(parts, axis=1), tuple(label for name in names for label in self.labels[name])


def read_draws(result: Any) -> Draws:
    """Read the posterior draws of a result.

    Args:
        result: An estimator with draws, a NumPyro MCMC run, ArviZ data with a posterior, or a dict of arrays with draws
            along their first axes.
    """
    if hasattr(result, "_last"):
        result = result.to_arviz()
    elif hasattr(result, "get_samples"):
        result = result.get_samples()
    group = read_group(result, "posterior")
    if group is not None:
        return _from_dataset(group)
    if isinstance(result, Mapping) and result:
        values = {name: np.asarray(value, float) for name, value in result.items()}
        labels = {name: _label(name, [range(n) for n in value.shape[1:]]) for name, value in values.items()}
        return Draws(values, labels, {name: "site" if value.ndim > 1 else "" for name, value in values.items()})
    raise TypeError(
        f"Cannot read draws from {type(result).__name__}. Pass an estimator, an MCMC run, ArviZ data with a posterior, "
        "or a dict of arrays."
    )


def read_results(results: Any) -> dict[str, Draws]:
    """Read one result, or several by the name to show them under."""
    # Arrays have a dtype; an `xarray.DataTree` claims to be convertible to one and is not.
    several = isinstance(results, Mapping) and not any(hasattr(value, "dtype") for value in results.values())
    if several and read_group(results, "posterior") is None:
        return {name: read_draws(result) for name, result in results.items()}
    return {"draws": read_draws(results)}


def read_group(result: Any, name: str) -> Any:
    """Give a group of ArviZ data as an `xarray.Dataset`, or None if there is none."""
    if isinstance(result, dict) or not hasattr(result, "groups"):
        return None
    try:
        group = result[name]
    except KeyError:
        return None
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def pick_names(draws: Mapping[str, Draws], names: Sequence[str] | None, *, scalars: bool = False) -> tuple[str, ...]:
    """Choose the names to show: those asked for, or those that all results have."""
    first = next(iter(draws.values()))
    if names is None:
        names = [n for n in first.values if all(n in other.values for other in draws.values())]
        names = [n for n in names if not scalars or first.values[n].ndim == 1] or list(names)
    unknown = [n for n in names if any(n not in other.values for other in draws.values())]
    if unknown or not names:
        raise ValueError(f"Not every result has {unknown or 'a name to show'}; the first has {list(first.values)}.")
    return tuple(names)


def read_truths(
    truths: Mapping[str, Any] | None, draws: Mapping[str, Draws], names: Sequence[str]
) -> np.ndarray | None:
    """Put true values of some names side by side; NaN where there are none."""
    if truths is None:
        return None
    first = next(iter(draws.values()))
    parts = []
    for name in names:
        shape = first.values[name].shape[1:]
        value = np.asarray(truths.get(name, np.full(shape, np.nan)), float)
        if value.shape != shape:
            raise ValueError(f"The true value of {name!r} has shape {value.shape}, expected {shape} as its draws have.")
        parts.append(value.ravel())
    return np.concatenate(parts)


def _from_dataset(group: Any) -> Draws:
    values, labels, plates = {}, {}, {}
    for name, variable in group.data_vars.items():
        dims = [dim for dim in variable.dims if dim not in ("chain", "draw")]
        array = np.asarray(variable.transpose("chain", "draw", *dims), float)
        values[name] = array.reshape(-1, *array.shape[2:])
        labels[name] = _label(str(name), [_members(variable, str(name), str(dim)) for dim in dims])
        plates[name] = str(dims[0]) if dims else ""
    return Draws(values, labels, plates)


def _members(variable: Any, name: str, dim: str) -> list[Any]:
    """Name the members of a dim: numbers follow the name of the plate, which axes of an event have not."""
    members = list(variable.coords[dim].values) if dim in variable.coords else list(range(variable.sizes[dim]))
    if dim.startswith(f"{name}_dim_") or not all(isinstance(member, int | np.integer) for member in members):
        return members
    return [f"{dim} {member}" for member in members]


def _label(name: str, members: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Name every scalar by the coordinates of its axes."""
    shape = tuple(len(member) for member in members)
    if not shape:
        return (name,)
    return tuple(
        f"{name}[{', '.join(str(member[i]) for member, i in zip(members, index, strict=True))}]"
        for index in np.ndindex(shape)
    )

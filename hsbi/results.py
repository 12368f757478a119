"""Draws as arviz data and as text, in the layout that `hsbi.mcmc` gives NumPyro's draws too.

Each group is a plain `xarray.Dataset`; together they are an `arviz.InferenceData` on arviz 0.x and an `xarray.DataTree`
on arviz 1.x. Axes are `chain`, `draw`, then the plates by name, then event axes as arviz itself names them.
"""

import importlib.metadata
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from jax.typing import ArrayLike

from hsbi.model.structure import Structure

if TYPE_CHECKING:
    import xarray as xr

Arrays = Mapping[str, ArrayLike]
Coords = Mapping[str, Sequence[Any]]
Dims = Mapping[str, Sequence[str]]

_SAMPLE_DIMS = ("chain", "draw")


def to_arviz(
    structure: Structure,
    *,
    posterior: Arrays,
    sample_stats: Arrays | None = None,
    posterior_predictive: Arrays | None = None,
    observed_data: Arrays | None = None,
    constant_data: Arrays | None = None,
    prior: Arrays | None = None,
    coords: Coords | None = None,
    dims: Dims | None = None,
    library: str = "hsbi",
) -> Any:
    """Put draws and data into arviz groups.

    Args:
        structure: The program's structure, which knows the plates of each site.
        posterior: Draws by site, [chain, draw, *canonical shape].
        sample_stats: Facts about draws, [chain, draw, ...].
        posterior_predictive: Draws of observations, [chain, draw, *canonical shape].
        observed_data: Data by observation in canonical shape.
        constant_data: Other data, such as covariates by the path that the structure gives them.
        prior: Prior draws by site, [chain, draw, *canonical shape]; those of observations become `prior_predictive`.
        coords: Labels by dim, for plates and any other dim; members are counted from 0 where there are none.
        dims: Names by variable for its axes after `chain` and `draw`, from the first on, in place of the default names.
        library: The distribution that made the draws, noted with its version.

    Returns:
        An `arviz.InferenceData` on arviz 0.x, an `xarray.DataTree` on arviz 1.x, with the groups that were given.

    Raises:
        ValueError: If shapes do not fit the structure, draws differ in number, or labels differ from a dim in length.
        KeyError: If a site is not in the structure.
    """
    observations = set(structure.observations)
    prior = {} if prior is None else prior
    sampled = {
        "posterior": posterior,
        "posterior_predictive": posterior_predictive,
        "prior": {name: value for name, value in prior.items() if name not in observations},
        "prior_predictive": {name: value for name, value in prior.items() if name in observations},
    }
    variables = {group: _site_variables(structure, group, arrays, _SAMPLE_DIMS) for group, arrays in sampled.items()}
    variables["sample_stats"] = {name: (value, _SAMPLE_DIMS, ()) for name, value in _to_numpy(sample_stats).items()}
    variables["observed_data"] = _site_variables(structure, "observed_data", observed_data, ())
    variables["constant_data"] = {
        name: (value, (), _constant_plates(structure, name, value)) for name, value in _to_numpy(constant_data).items()
    }
    coords = {} if coords is None else coords
    dims = {} if dims is None else dims
    groups = {group: _dataset(group, entries, coords, dims, library) for group, entries in variables.items() if entries}
    _check_coords(groups, coords)
    return _wrap(groups)


def named_groups(
    groups: Mapping[str, Mapping[str, tuple[np.ndarray, Sequence[str]]]],
    *,
    coords: Coords | None = None,
    library: str = "hsbi",
) -> Any:
    """Put arrays with the names of all their axes into groups.

    Args:
        groups: By group and variable, an array and its dims.
        coords: Labels by dim; members are counted from 0 where there are none.
        library: The distribution that made them, noted with its version.

    Returns:
        An `arviz.InferenceData` on arviz 0.x, an `xarray.DataTree` on arviz 1.x, with the groups that have variables.
    """
    import xarray as xr

    attributes = {"inference_library": library, "inference_library_version": _version(library)}
    datasets = {}
    for group, variables in groups.items():
        if variables:
            data = xr.Dataset({name: (tuple(dims), value) for name, (value, dims) in variables.items()})
            labels = {d: (coords or {}).get(str(d), np.arange(size)) for d, size in data.sizes.items()}
            datasets[group] = data.assign_coords(labels).assign_attrs(attributes)
    return _wrap(datasets)


def pool_chains(results: Mapping[str, Any]) -> dict[str, Any]:
    """Give the posteriors of several results one chain of equally many draws each, to plot them side by side.

    arviz 1.x aligns what it compares by chain and draw and leaves out a result that has fewer than another. Chains are
    joined, and the longer results thinned evenly to the length of the shortest.

    Args:
        results: What `to_arviz` or `from_mcmc` gave, by a name to plot it under.

    Returns:
        Results that hold the posteriors only, by the same names.
    """
    posteriors = {name: _group(result, "posterior") for name, result in results.items()}
    count = min(data.sizes["chain"] * data.sizes["draw"] for data in posteriors.values())
    pooled = {}
    for name, data in posteriors.items():
        flat = data.stack(pooled=_SAMPLE_DIMS, create_index=False).drop_vars(_SAMPLE_DIMS)
        flat = flat.isel(pooled=np.linspace(0, flat.sizes["pooled"] - 1, count).round().astype(int))
        flat = flat.rename(pooled="draw").expand_dims("chain").transpose(*_SAMPLE_DIMS, ...)
        pooled[name] = _wrap({"posterior": flat.assign_coords(chain=[0], draw=np.arange(count))})
    return pooled


def summary_table(samples: Arrays, *, prob: float = 0.9) -> str:
    """Summarize draws in the manner of NumPyro's `print_summary`, one row per scalar.

    Args:
        samples: Draws by site, [num_draws, ...].
        prob: Mass of the central interval whose ends are printed beside mean, standard deviation and median.

    Returns:
        The table. It has no effective sample size or r-hat, which mean nothing for independent draws.

    Raises:
        ValueError: If `prob` is not between 0 and 1.
    """
    if not 0.0 < prob < 1.0:
        raise ValueError(f"prob is {prob}, expected the mass of an interval, between 0 and 1.")
    tails = (50.0 * (1.0 - prob), 50.0 * (1.0 + prob))
    columns = ("mean", "std", "median", *(f"{tail:.1f}%" for tail in tails))
    rows = []
    for name, draws in _to_numpy(samples).items():
        draws = draws.astype(float)
        spread = draws.std(axis=0, ddof=1) if len(draws) > 1 else np.full(draws.shape[1:], math.nan)
        low, median, high = np.percentile(draws, (tails[0], 50.0, tails[1]), axis=0)
        table = np.stack([draws.mean(axis=0), spread, median, low, high], axis=-1)
        for index in np.ndindex(draws.shape[1:]):
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            rows.append((label, *(f"{number:.2f}" for number in table[index])))
    width = max((len(row[0]) for row in rows), default=0)
    lines = [" " * width + "".join(f"{column:>11}" for column in columns)]
    lines += [f"{row[0]:>{width}}" + "".join(f"{number:>11}" for number in row[1:]) for row in rows]
    return "\n".join(lines)


def _to_numpy(arrays: Arrays | None) -> dict[str, np.ndarray]:
    return {} if arrays is None else {name: np.asarray(value) for name, value in arrays.items()}


def _site_variables(
    structure: Structure, group: str, arrays: Arrays | None, sample_dims: tuple[str, ...]
) -> dict[str, tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]]:
    """Check arrays of sites, and give each with its sample dims and plates."""
    variables, problems = {}, []
    for name, value in _to_numpy(arrays).items():
        site = structure[name]
        expected = (*sample_dims, *site.shape)
        if value.shape[len(sample_dims) :] != site.shape or value.ndim != len(expected):
            wanted = ", ".join(map(str, expected))
            problems.append(f"site {name!r} has shape {value.shape}, expected ({wanted})")
        variables[name] = (value, sample_dims, site.plates)
    if problems:
        raise ValueError(f"Arrays of group {group!r} do not fit the structure: {'; '.join(problems)}.")
    counts = {name: value.shape[: len(sample_dims)] for name, (value, _, _) in variables.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"Sites of group {group!r} differ in their numbers of chains and draws: {counts}.")
    return variables


def _constant_plates(structure: Structure, name: str, value: np.ndarray) -> tuple[str, ...]:
    """Give the plate of a covariate whose first axis runs over sites."""
    plate = structure.site_plate
    covariate = next((c for c in structure.covariates if c.path == name), None)
    if plate is None or covariate is None or covariate.axis % value.ndim != 0 or value.shape[0] != plate.size:
        return ()
    return (plate.name,)


def _dataset(
    group: str,
    entries: Mapping[str, tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]],
    coords: Coords,
    dims: Dims,
    library: str,
) -> "xr.Dataset":
    import xarray as xr

    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    sizes: dict[str, int] = {}
    for name, (value, sample_dims, plates) in entries.items():
        given = tuple(dims.get(name, plates))
        axes = value.shape[len(sample_dims) :]
        if len(given) > len(axes):
            raise ValueError(
                f"dims names {len(given)} axes of {name!r}, {given}, but in group {group!r} it has {len(axes)} "
                f"of sizes {axes} besides chain and draw."
            )
        names = (*sample_dims, *given, *_default_dims(name, len(given), len(axes)))
        variables[name] = (names, value)
        for dim, size in zip(names, value.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(
                    f"Dim {dim!r} has size {size} in {name!r} but {sizes[dim]} in another variable of group {group!r}. "
                    "Give their axes different names in dims."
                )
            if dim in coords and len(coords[dim]) != size:
                raise ValueError(
                    f"coords gives {len(coords[dim])} labels for dim {dim!r}, but it has size {size} in {name!r} of "
                    f"group {group!r}. Pass one label per member."
                )
    labels = {dim: np.asarray(coords[dim]) if dim in coords else np.arange(size) for dim, size in sizes.items()}
    attributes = {"inference_library": library, "inference_library_version": _version(library)}
    return xr.Dataset(variables, coords=labels, attrs=attributes)


def _default_dims(name: str, num_named: int, num_axes: int) -> tuple[str, ...]:
    """Name axes as `arviz.from_numpyro` would: 0.x counts the named axes in front, 1.x does not."""
    start = num_named if _arviz_major() < 1 else 0
    return tuple(f"{name}_dim_{start + axis}" for axis in range(num_axes - num_named))


def _check_coords(groups: Mapping[str, "xr.Dataset"], coords: Coords) -> None:
    known = {str(dim): None for dataset in groups.values() for dim in dataset.dims}
    unknown = [dim for dim in coords if dim not in known]
    if unknown:
        warnings.warn(
            f"coords has labels for {', '.join(map(repr, unknown))}, which no variable has as a dim. "
            f"The dims are {', '.join(map(repr, known))}.",
            UserWarning,
            stacklevel=3,
        )


def _group(result: Any, name: str) -> "xr.Dataset":
    return result[name].to_dataset() if _arviz_major() >= 1 else result[name]


def _wrap(groups: Mapping[str, "xr.Dataset"]) -> Any:
    if _arviz_major() >= 1:
        import xarray as xr

        return xr.DataTree.from_dict({f"/{group}": dataset for group, dataset in groups.items()})
    return _import_arviz().InferenceData(**groups)


def _import_arviz() -> Any:
    """Import arviz 0.x, also where home is read-only."""
    with warnings.catch_warnings():
        # arviz 0.23 announces its refactoring on the first import of each day, which it notes in the user's cache.
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor", category=FutureWarning)
        try:
            import arviz
        except OSError:
            with tempfile.TemporaryDirectory() as place, mock.patch("platformdirs.user_cache_dir", return_value=place):
                import arviz
    return arviz


def _arviz_major() -> int:
    return int(importlib.metadata.version("arviz").split(".")[0])


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

"""Read the structure of a NumPyro program: `inspect`, and the two layouts of a value."""

import inspect as _inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.ops.provenance import eval_provenance

from hsbi.model.record import (
    Recorder,
    Recording,
    Statement,
    base_distribution,
    describe_support,
    record,
    undo_reparam,
)
from hsbi.model.structure import Covariate, Level, Plate, Role, Site, Structure

__all__ = ["canonicalize", "inspect", "restore", "undo_reparam"]


def inspect(model: Callable[..., Any], *args: Any, observed: Sequence[str] = (), **kwargs: Any) -> Structure:
    """Read what a NumPyro program is: its sites, levels, plates, shapes and parents.

    The program is traced, not run: no simulator is called.

    Args:
        model: The NumPyro program.
        *args: The program's positional arguments.
        observed: Names of sites that are observed although no data are given for them. `Simulator` sites always are.
        **kwargs: The program's keyword arguments.

    Returns:
        The structure; `print` it for a table.
    """
    program = undo_reparam(model)
    observed = (observed,) if isinstance(observed, str) else tuple(observed)
    recording, latents = _trace(program, args, kwargs, observed)
    plates = _find_plates(recording)
    parents = _find_parents(program, args, kwargs, observed, latents)
    site_plate = next((plate.name for plate in plates if plate.role == "site"), None)
    sites = tuple(_make_site(statement, site_plate, parents[statement.name]) for statement in recording.statements)
    covariates = _find_covariates(program, args, kwargs, recording, plates)
    return Structure(sites=sites, plates=plates, covariates=covariates)


def canonicalize(site: Site, value: Any) -> Array:
    """Bring a value from the program's layout to the canonical one.

    Args:
        site: The site that the value belongs to.
        value: Its value, with any number of leading draw axes. Plates may have other sizes than the structure's.

    Returns:
        The value with its plates first, the site plate leading, then the event; draw axes stay in front.
    """
    value = _as_array(value)
    num_axes = len(site.program_shape)
    lead = value.ndim - num_axes
    if lead < 0:
        raise ValueError(
            f"Site {site.name!r} has shape {site.program_shape} in the program, but the value has shape {value.shape}. "
            "Pass a value with every axis of the program, after any draw axes."
        )
    order = _permutation(site)
    value = value.transpose((*range(lead), *(lead + axis for axis in order)))
    plates = value.shape[lead : lead + len(site.plates)]
    return value.reshape((*value.shape[:lead], *plates, *site.event_shape))


def restore(site: Site, value: Any) -> Array:
    """Bring a value from the canonical layout back to the program's; the inverse of `canonicalize`."""
    value = _as_array(value)
    lead = value.ndim - len(site.shape)
    if lead < 0:
        raise ValueError(
            f"Site {site.name!r} has the canonical shape {site.shape}, but the value has shape {value.shape}. "
            "Pass a value with every plate and event axis, after any draw axes."
        )
    order = _permutation(site)
    plates = value.shape[lead : lead + len(site.plates)]
    rest = tuple(site.program_shape[axis] for axis in order[len(site.plates) :])
    value = value.reshape((*value.shape[:lead], *plates, *rest))
    return value.transpose((*range(lead), *(lead + int(axis) for axis in np.argsort(order))))


def _as_array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray | Array) else jnp.asarray(value)


def _permutation(site: Site) -> tuple[int, ...]:
    """Order the program's axes: plates first, in canonical order, then the others as they come."""
    num_axes = len(site.program_shape)
    plates = tuple(num_axes + axis for axis in site.plate_axes)
    return (*plates, *(axis for axis in range(num_axes) if axis not in plates))


def _trace(
    program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], observed: tuple[str, ...]
) -> tuple[Recording, dict[str, jax.ShapeDtypeStruct]]:
    """Record the program's statements, and the shapes of its latents."""
    recorder = Recorder(observed)

    def body() -> dict[str, Any]:
        recording = record(program, args, kwargs, recorder)
        return {statement.name: jnp.asarray(statement.value) for statement in recording.of_kind("latent")}

    shapes = jax.eval_shape(body)
    # JAX sorts the keys of a dict; parents are listed in program order.
    latents = {statement.name: shapes[statement.name] for statement in recorder.recording.of_kind("latent")}
    return recorder.recording, latents


def _find_plates(recording: Recording) -> tuple[Plate, ...]:
    """List the plates around statements with their roles, the site plate first."""
    dims: dict[str, tuple[int, int]] = {}
    for statement in recording.statements:
        for frame in statement.frames:
            dims.setdefault(frame.name, (frame.size, frame.dim))
    site_plate = find_site_plate(recording)
    carriers = {frame.name for statement in recording.of_kind("observed") for frame in statement.frames}

    def role(name: str) -> Role:
        if name == site_plate:
            return "site"
        return "replicate" if site_plate is not None and name in carriers else "other"

    plates = [Plate(name=name, size=size, dim=dim, role=role(name)) for name, (size, dim) in dims.items()]
    return tuple(sorted(plates, key=lambda plate: plate.role != "site"))


def find_site_plate(recording: Recording) -> str | None:
    """Find the plate of sites: the outermost that all observations share, one with latents before one without."""
    observations = recording.of_kind("observed")
    if not observations:
        return None
    shared = [
        frame.name
        for frame in observations[0].frames
        if all(frame.name in {other.name for other in statement.frames} for statement in observations)
    ]
    carriers = {frame.name for statement in recording.of_kind("latent") for frame in statement.frames}
    with_latents = [name for name in shared if name in carriers]
    return next(iter(with_latents or shared), None)


def _find_parents(
    program: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    observed: tuple[str, ...],
    latents: Mapping[str, Any],
) -> dict[str, tuple[str, ...]]:
    """Find the latents that each statement depends on directly, by tracking them through the traced program."""
    prefix = "site "

    def body(**values: Any) -> dict[str, list[Any]]:
        given = {name.removeprefix(prefix): value for name, value in values.items()}
        recording = record(program, args, kwargs, Recorder(observed, given))
        return {statement.name: dependencies(statement) for statement in recording.statements}

    found = eval_provenance(body, **{prefix + name: value for name, value in latents.items()})
    parents = {}
    for name, sources in found.items():
        union = frozenset().union(*sources)
        parents[name] = tuple(latent for latent in latents if prefix + latent in union and latent != name)
    return parents


def dependencies(statement: Statement) -> list[Any]:
    """Give the arrays through which a statement depends on others: its distribution's, or a deterministic's value."""
    if statement.fn is None:
        return jax.tree.leaves(statement.value)
    return [leaf for leaf in _arrays(base_distribution(statement.fn), set())]


def _arrays(node: Any, seen: set[int]) -> list[Any]:
    """Collect arrays from the attributes of distributions, transforms and constraints.

    A distribution's pytree may leave parameters out, its attributes do not.
    """
    if id(node) in seen or isinstance(node, str | bytes | type):
        return []
    seen.add(id(node))
    if isinstance(node, jax.Array):
        return [node]
    if isinstance(node, dict):
        return [leaf for child in node.values() for leaf in _arrays(child, seen)]
    if isinstance(node, list | tuple):
        return [leaf for child in node for leaf in _arrays(child, seen)]
    if callable(node) and hasattr(node, "__closure__"):
        cells = [cell.cell_contents for cell in node.__closure__ or () if _filled(cell)]
        return _arrays(cells, seen)
    if type(node).__module__.startswith("jax"):
        return []
    return _arrays(vars(node), seen) if hasattr(node, "__dict__") else []


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _make_site(statement: Statement, site_plate: str | None, parents: tuple[str, ...]) -> Site:
    """Turn one statement into its static facts."""
    program_shape = statement.program_shape
    frames = sorted(statement.frames, key=lambda frame: frame.name != site_plate)
    event_dim = _event_dim(statement)
    if event_dim is None:
        frames, event_dim = [], len(program_shape)
    plate_axes = tuple(frame.dim - event_dim for frame in frames)
    taken = {len(program_shape) + axis for axis in plate_axes}
    batch = [
        size
        for axis, size in enumerate(program_shape[: len(program_shape) - event_dim])
        if axis not in taken and (size != 1 or not frames)
    ]
    event_shape = (*batch, *program_shape[len(program_shape) - event_dim :])
    sizes = tuple(program_shape[axis] for axis in plate_axes)
    site = Site(
        name=statement.name,
        level=_level(statement, site_plate),
        plates=tuple(frame.name for frame in frames),
        shape=(*sizes, *event_shape),
        event_shape=event_shape,
        program_shape=program_shape,
        plate_axes=plate_axes,
        distribution="" if statement.fn is None else type(base_distribution(statement.fn)).__name__,
        support="" if statement.fn is None else describe_support(statement.fn.support),
        discrete=statement.fn is not None and statement.fn.is_discrete,
        parents=parents,
        inputs=None if statement.inputs is None else tuple(jnp.shape(statement.inputs)),
        missing=0 if statement.data else None,
    )
    return site


def _level(statement: Statement, site_plate: str | None) -> Level:
    if statement.kind == "deterministic":
        return "deterministic"
    if statement.kind == "observed":
        return "observation"
    return "local" if site_plate in {frame.name for frame in statement.frames} else "global"


def _event_dim(statement: Statement) -> int | None:
    """Count event dimensions; a deterministic's are the fewest that leave its plates their sizes, None if none do."""
    if statement.fn is not None:
        return statement.event_dim
    shape = statement.program_shape
    for event_dim in range(len(shape) + 1):
        axes = [(frame.dim - event_dim, frame.size) for frame in statement.frames]
        if all(-axis <= len(shape) and shape[axis] == size for axis, size in axes):
            return event_dim
    return None


def _find_covariates(
    program: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    recording: Recording,
    plates: tuple[Plate, ...],
) -> tuple[Covariate, ...]:
    """List the array arguments with one entry per site, and say which are data."""
    plate = next((plate for plate in plates if plate.role == "site"), None)
    if plate is None:
        return ()
    covariates = []
    for path, leaf in argument_arrays(program, args, kwargs):
        data = next((s for s in recording.of_kind("observed") if s.data and is_data(leaf, s.value)), None)
        axes = [axis for axis, size in enumerate(np.shape(leaf)) if size == plate.size]
        if not axes:
            continue
        axis = axes[0]
        if data is not None:
            frame = next(frame for frame in data.frames if frame.name == plate.name)
            axis = np.ndim(leaf) + frame.dim - data.event_dim
        covariates.append(
            Covariate(path=path, axis=axis, shape=tuple(np.shape(leaf)), data=None if data is None else data.name)
        )
    return tuple(covariates)


def argument_arrays(
    program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """List the arrays among the arguments with their paths, such as `sigma` or `data['x']`."""
    arrays = []
    for name, value in bind_arguments(program, args, kwargs).items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if isinstance(leaf, np.ndarray | Array) and np.ndim(leaf) > 0:
                arrays.append((name + jax.tree_util.keystr(path), leaf))
    return arrays


def bind_arguments(
    program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Name the arguments by the program's signature; those of `**kwargs` by their keyword."""
    signature = _inspect.signature(program)
    bound = signature.bind(*args, **kwargs)
    named = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is _inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


def is_data(leaf: Any, value: Any) -> bool:
    """Say whether an argument is the data of an observation: the same array, or one with equal entries."""
    if leaf is value:
        return True
    if isinstance(value, jax.core.Tracer) or np.shape(leaf) != np.shape(value):
        return False
    return bool(np.array_equal(np.asarray(leaf), np.asarray(value), equal_nan=np.asarray(leaf).dtype.kind == "f"))

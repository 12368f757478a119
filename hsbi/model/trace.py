"""Read the structure of a NumPyro program: `inspect`, and the two layouts of a value."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.model.arguments import array_arguments, bind_arguments, find_covariates, per_site_arrays
from hsbi.model.bijections import unconstrained_shape
from hsbi.model.dependence import Parents, Probe, Readout
from hsbi.model.independence import independence_reasons
from hsbi.model.notes import call_notes, data_notes, expansion_notes, hidden_notes, loop_notes, mask_notes
from hsbi.model.record import Recording, Statement, describe_support, is_traced, undo_reparam
from hsbi.model.refusals import (
    captured_reasons,
    data_reasons,
    level_reasons,
    parent_reasons,
    plate_reasons,
    refuse,
    statement_reasons,
)
from hsbi.model.structure import Level, Plate, Role, Site, Structure

__all__ = ["bind_arguments", "canonicalize", "inspect", "restore", "undo_reparam"]


def inspect(model: Callable[..., Any], *args: Any, observed: Sequence[str] = (), **kwargs: Any) -> Structure:
    """Read what a NumPyro program is: its sites, levels, plates, shapes and parents.

    The program is traced and its priors are drawn from, but no simulator is called.

    Args:
        model: The NumPyro program.
        *args: The program's positional arguments.
        observed: Names of sites that are observed although no data are given for them. `Simulator` sites always are.
        **kwargs: The program's keyword arguments.

    Returns:
        The structure; `print` it for a table, `plot` it for a diagram.

    Raises:
        ValueError: If the program cannot be used, with all reasons and what to change.
    """
    if not callable(model):
        raise TypeError(
            f"model is a {type(model).__name__}, expected a NumPyro program, a function. Pass the function itself, and "
            "its arguments after it: hsbi.inspect(model, *args, **kwargs)."
        )
    program = undo_reparam(model)
    observed = (observed,) if isinstance(observed, str) else tuple(observed)
    probe = Probe(program, args, kwargs, observed)
    recording, latents = probe.trace()
    refuse(statement_reasons(recording, observed) + plate_reasons(recording) + data_reasons(recording))
    parents = probe.parents(latents)
    recording, notes = _drop_constants(recording, parents)
    site_plate = find_site_plate(recording)
    refuse(
        level_reasons(recording, site_plate)
        + parent_reasons(recording, site_plate, parents.direct)
        + captured_reasons(parents.captured)
    )
    arguments = array_arguments(program, args, kwargs)
    plates = _find_plates(recording, site_plate)
    plate = next((plate for plate in plates if plate.role == "site"), None)
    if plate is not None:
        probe.open_arguments(per_site_arrays(arguments, plate.size), latents)
    refuse(independence_reasons(recording, probe, site_plate, latents))
    data, missing = _read_data(recording, probe, latents)
    covariates = find_covariates(arguments, recording, data, plate, probe, latents)
    expansions = expansion_notes(recording, site_plate)
    hidden: list[str] = []
    if covariates.complete is False and plate is not None and not expansions:
        hidden = hidden_notes(plate.name, plate.size, bind_arguments(program, args, kwargs))
    notes += expansions + mask_notes(recording) + loop_notes(recording, site_plate) + call_notes(recording)
    notes += data_notes(covariates.both) + hidden
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    sites = (
        _make_site(statement, site_plate, parents.direct[statement.name], missing.get(statement.name))
        for statement in recording.statements
    )
    return Structure(sites=tuple(sites), plates=plates, covariates=covariates.found, notes=tuple(notes))


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


def _drop_constants(recording: Recording, parents: Parents) -> tuple[Recording, list[str]]:
    """Leave out sites that `condition` fixed: observed ones without latent parents, outside the others' plates."""
    observations = recording.of_kind("observed")
    informed = [s for s in observations if parents.direct[s.name]]
    plates = {frame.name for s in informed for frame in s.frames}
    fixed = [s.name for s in observations if s not in informed and informed and not s.frames and (plates or s.data)]
    notes = [
        f"Site {name!r} is observed and depends on no latent: it is treated as a constant, not as an observation."
        for name in fixed
    ]
    kept = [s for s in recording.statements if s.name not in fixed]
    return dataclasses.replace(recording, statements=kept), notes


def _read_data(
    recording: Recording, probe: Probe, latents: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Get the data of each observation and count their missing values: NaN, or masked out."""
    given = [s for s in recording.of_kind("observed") if s.data]
    traced = any(is_traced(x) for s in given for x in (s.value, s.mask))
    readouts: dict[str, Readout] = probe.read(probe.draw(0, latents)) if traced else {}
    data, missing = {}, {}
    for s in given:
        value = np.asarray(readouts[s.name].value if traced else s.value)
        mask = readouts[s.name].mask if traced else s.mask
        present = ~np.isnan(value) if value.dtype.kind == "f" else np.ones(value.shape, bool)
        if mask is not None:
            extra = (1,) * s.event_dim if np.ndim(mask) <= value.ndim - s.event_dim else ()
            present = present & np.reshape(np.asarray(mask), np.shape(mask) + extra)
        data[s.name] = value
        missing[s.name] = int(present.size - present.sum())
    return data, missing


def _find_plates(recording: Recording, site_plate: str | None) -> tuple[Plate, ...]:
    """List the plates around statements with their roles, the site plate first."""
    dims: dict[str, tuple[int, int]] = {}
    for statement in recording.statements:
        for frame in statement.frames:
            dims.setdefault(frame.name, (frame.size, frame.dim))
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


def _make_site(statement: Statement, site_plate: str | None, parents: tuple[str, ...], missing: int | None) -> Site:
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
    plates_are_sites = bool(frames) and frames[0].name == site_plate
    return Site(
        name=statement.name,
        level=_level(statement, site_plate),
        plates=tuple(frame.name for frame in frames),
        shape=(*sizes, *event_shape),
        event_shape=event_shape,
        program_shape=program_shape,
        plate_axes=plate_axes,
        distribution=statement.distribution,
        support="" if statement.fn is None else describe_support(statement.fn.support),
        discrete=statement.fn is not None and statement.fn.is_discrete,
        parents=parents,
        num_coordinates=_count_coordinates(statement, sizes[0] if plates_are_sites else 1),
        inputs=None if statement.inputs is None else tuple(jnp.shape(statement.inputs)),
        missing=missing,
    )


def _count_coordinates(statement: Statement, num_sites: int) -> int:
    """Count the free numbers of a latent per site."""
    if statement.kind != "latent" or statement.fn is None or statement.fn.support is None:
        return 0
    return math.prod(unconstrained_shape(statement.fn.support, statement.program_shape)) // num_sites


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

"""Warn of programs that can be used but say something else than their author may think."""

import re
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
from jax import Array

from hsbi.model.dependence import Uses
from hsbi.model.record import Recording
from hsbi.model.simulator import find_simulator

# So many numbered observations of one kind look like a loop over sites.
_MANY = 3


def expansion_notes(recording: Recording, site_plate: str | None) -> list[str]:
    """Warn of latents that look like locals but are outside the plate of sites."""
    observations = recording.of_kind("observed")
    if site_plate is not None:
        size = next(frame.size for s in observations for frame in s.frames if frame.name == site_plate)
        sizes, place = {size}, f"plate {site_plate!r} has members"
    else:
        sizes = {size for s in observations if s.fn is not None for size in s.fn.batch_shape}
        place = "an observation outside every plate has entries"
    notes = []
    for statement in recording.of_kind("latent"):
        shape = statement.program_shape
        # Without a plate there is no number of sites to compare an event with, only one batch with another.
        entries = shape if site_plate is not None else shape[: len(shape) - statement.event_dim]
        size = next((size for size in entries if size > 1 and size in sizes), None)
        if size is not None and not statement.frames:
            notes.append(
                f"Latent {statement.name!r} has shape {shape}, made by expand, sample_shape or its parameters, with as "
                f"many entries as {place} ({size}), but is in no plate: it is treated as one global vector. If each "
                "site has its own, sample it and the observation inside one plate."
            )
    return notes


def hidden_notes(site_plate: str, size: int, arguments: Mapping[str, Any]) -> list[str]:
    """Warn of sites that differ by something hsbi cannot see."""
    unread = [
        f"{name!r} (a {type(value).__name__})"
        for name, value in arguments.items()
        if isinstance(value, Sized) and not isinstance(value, np.ndarray | Array | str) and len(value) == size
    ]
    hint = f" Is it {' or '.join(unread)}, which is no array?" if unread else ""
    return [
        f"Members of plate {site_plate!r} differ by something that is no argument of the model, such as an array it "
        "closes over or the plate's index, so it cannot be learned from single sites. "
        f"Pass it to the model as an argument, a NumPy or JAX array with one entry per member.{hint}"
    ]


def mask_notes(recording: Recording) -> list[str]:
    """Warn of masks on priors."""
    return [
        f"Latent {statement.name!r} is masked: the mask is ignored and its prior holds for every member. "
        "Put the mask around the observation only."
        for statement in recording.of_kind("latent")
        if statement.mask is not None and statement.mask is not True
    ]


def loop_notes(recording: Recording, site_plate: str | None) -> list[str]:
    """Warn of numbered observations that a loop over sites has made."""
    if site_plate is not None:
        return []
    families: dict[tuple[str, str], list[str]] = {}
    for statement in recording.of_kind("observed"):
        stem = re.sub(r"\d+", "", statement.name)
        if stem != statement.name:
            families.setdefault((stem, statement.distribution), []).append(statement.name)
    return [
        f"Observations {names[0]!r} to {names[-1]!r}, {len(names)} of them, look like a loop over sites. Each is read "
        "as a variable of its own, and all latents as globals. If they are sites of one kind, write one statement "
        "inside numpyro.plate in place of the loop, and simulations of one site will do."
        for names in families.values()
        if len(names) >= _MANY
    ]


def call_notes(recording: Recording) -> list[str]:
    """Warn of simulators with an axis of calls that no plate names."""
    notes = []
    for statement in recording.of_kind("observed"):
        found = None if statement.fn is None else find_simulator(statement.fn)
        if found is None or statement.fn is None:
            continue
        batch = tuple(statement.fn.batch_shape)
        plates = {len(batch) + frame.dim for frame in statement.frames}
        unnamed = [size for axis, size in enumerate(batch) if axis not in plates and size > 1]
        if unnamed and statement.frames:
            shapes = ", ".join(str(tuple(value.shape)) for value in found[0].params)
            notes.append(
                f"Simulator site {statement.name!r} makes {int(np.prod(unnamed))} calls per member of its plates, as "
                f"its parameters have shapes {shapes} and no plate names the axis of size {unnamed[0]}. If one call "
                "takes a whole row, say so with param_event_dims; if not, put the axis in a numpyro.plate."
            )
    return notes


def data_notes(both: Mapping[str, Uses]) -> list[str]:
    """Warn of arguments that are data and set distributions as well."""
    return [
        f"Argument {path!r} is observed at {uses.data[0]!r} and also sets the distribution of "
        f"{uses.distributions[0]!r}, so that what is simulated depends on the data: what is learned holds for "
        "these data only. Pass data and covariates as arguments of their own."
        for path, uses in both.items()
    ]

"""Check that sites are independent given the globals, by perturbing latents and looking at what changes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import Array

from hsbi.model.dependence import Probe, Readout, frame_of, mix, plate_axis, split_masks
from hsbi.model.record import Frame, Recording, Statement

# Two prior draws to start from: one may by chance lie where a model saturates and hides a dependence.
_SEEDS = ((1, 2), (3, 4))


def independence_reasons(
    recording: Recording, probe: Probe, site_plate: str | None, shapes: Mapping[str, Any]
) -> list[str]:
    """Find statements of one site that depend on another site's locals, and members of other plates picked by index.

    Every ordered pair of sites is separated: the locals of half the sites are drawn anew, and nothing at the other half
    may change, for 2 log2(S) halves.
    """
    latents = recording.of_kind("latent")
    locals_ = [s for s in latents if site_plate is not None and frame_of(s, site_plate)]
    plated = [(s, frame) for s in latents if s not in locals_ for frame in s.frames]
    if not locals_ and not plated:
        return []
    reasons = []
    for first, second in _SEEDS:
        values, others = probe.draw(first, shapes), probe.draw(second, shapes)
        before = probe.read(values)
        if locals_ and site_plate is not None:
            reasons.extend(_mixing_reasons(recording, probe, locals_, site_plate, values, others, before))
        for latent, frame in plated:
            reasons.extend(_index_reasons(recording, probe, latent, frame, values, others, before))
        if reasons:
            return reasons
    return []


def _mixing_reasons(
    recording: Recording,
    probe: Probe,
    locals_: list[Statement],
    site_plate: str,
    values: Mapping[str, Array],
    others: Mapping[str, Array],
    before: Mapping[str, Readout],
) -> list[str]:
    """Find statements inside the site plate that change at a site when only other sites' locals change."""
    inside = [s for s in recording.of_kind("latent", "observed") if frame_of(s, site_plate)]
    size = _frame(locals_[0], site_plate).size

    def changes(names: set[str], mask: np.ndarray) -> dict[str, np.ndarray]:
        """Give, per statement, which sites changed when these locals were perturbed at the masked sites."""
        mixed = dict(values)
        for s in locals_:
            if s.name in names:
                axis = plate_axis(s, _frame(s, site_plate))
                mixed[s.name] = mix(values[s.name], others[s.name], mask, axis)
        after = probe.read(mixed)
        found = {}
        for s in inside:
            batch = probe.changed(s, before[s.name], after[s.name])
            axis = batch.ndim + _frame(s, site_plate).dim
            found[s.name] = np.moveaxis(batch, axis, 0).reshape(size, -1).any(axis=1)
        return found

    reasons: dict[str, str] = {}
    everything = {s.name for s in locals_}
    for mask in split_masks(size):
        for name, sites in changes(everything, mask).items():
            affected = np.flatnonzero(sites & ~mask)
            if name in reasons or not affected.size:
                continue
            target = int(affected[0])
            culprits = [local for local in everything if changes({local}, mask)[name][target]] or sorted(everything)
            local = sorted(culprits)[0]
            source = _find_source(lambda m, n=name, t=target, c=local: bool(changes({c}, m)[n][t]), mask)
            level = "Local" if recording[name].kind == "latent" else "Observation"
            reasons[name] = (
                f"{level} {name!r} of site {target} depends on local {local!r} of another site, {source} (plate "
                f"{site_plate!r}). Sites must be independent given the globals: let each use its own {local!r} only, "
                "without sums, means, orderings or indices across the plate. Where an index picks the local, put the "
                "observations in a replicate plate inside the site plate, with a mask for ragged sizes."
            )
    return list(reasons.values())


def _find_source(changes: Callable[[np.ndarray], bool], mask: np.ndarray) -> int:
    """Halve the set of perturbed sites until one is left that still makes the change."""
    members = np.flatnonzero(mask)
    while members.size > 1:
        for half in np.array_split(members, 2):
            if changes(np.isin(np.arange(mask.size), half)):
                members = half
                break
        else:
            break
    return int(members[0])


def _index_reasons(
    recording: Recording,
    probe: Probe,
    latent: Statement,
    frame: Frame,
    values: Mapping[str, Array],
    others: Mapping[str, Array],
    before: Mapping[str, Readout],
) -> list[str]:
    """Find observations each of which depends on exactly one member of a plate that it is not in.

    An observation that uses two members differs, for some bit of their indices, both when the members with that bit are
    perturbed and when those without it are.
    """
    observations = [s for s in recording.of_kind("observed") if frame_of(s, frame.name) is None]
    if frame.size < 2 or not observations:
        return []
    axis = plate_axis(latent, frame)
    single = {s.name: True for s in observations}
    members = {s.name: set() for s in observations}
    halves = [
        probe.read({**values, latent.name: mix(values[latent.name], others[latent.name], mask, axis)})
        for mask in split_masks(frame.size)
    ]
    for s in observations:
        changed = [probe.changed(s, before[s.name], after[s.name]) for after in halves]
        pairs = list(zip(changed[::2], changed[1::2], strict=True))
        single[s.name] = not any((with_bit & without_bit).any() for with_bit, without_bit in pairs)
        codes = sum((with_bit.astype(np.int64) << bit for bit, (with_bit, _) in enumerate(pairs)), np.int64(0))
        used = pairs[0][0] | pairs[0][1]
        members[s.name] = set(np.unique(np.asarray(codes)[used]).tolist())
    return [
        f"Observation {s.name!r} picks one member of latent {latent.name!r} in plate {frame.name!r} (size {frame.size})"
        f" by index, but is not in that plate. Put {s.name!r} inside plate {frame.name!r}, with a replicate plate "
        "inside it and a mask for ragged sizes; or, to infer it as one global vector, replace the plate by "
        ".expand([n]).to_event(1)."
        for s in observations
        if single[s.name] and len(members[s.name]) > 1
    ]


def _frame(statement: Statement, plate: str) -> Frame:
    frame = frame_of(statement, plate)
    assert frame is not None
    return frame

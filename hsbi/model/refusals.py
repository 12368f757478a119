"""Say why a program cannot be used: one sentence per offender, with its name, what was found and what to change."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpyro.distributions as dist
from jax import Array

from hsbi.model.arguments import NO_NUMBERS
from hsbi.model.record import Recording, Statement, base_distribution, is_improper
from hsbi.model.simulator import Simulator


def refuse(reasons: Iterable[str]) -> None:
    """Raise one error with all reasons, if there are any."""
    found = list(dict.fromkeys(reasons))
    if len(found) == 1:
        raise ValueError(found[0])
    if found:
        raise ValueError(
            "The model cannot be used, for these reasons:\n" + "\n".join(f"- {reason}" for reason in found)
        )


def statement_reasons(recording: Recording, observed: Sequence[str]) -> list[str]:
    """Find statements that simulation-based inference cannot use."""
    reasons = _name_reasons(recording, observed)
    for statement in recording.of_kind("factor"):
        reasons.append(
            f"Site {statement.name!r} is a numpyro.factor, a density without a draw, so it cannot be simulated. "
            "Write it as numpyro.sample with a distribution and obs=..., or remove it."
        )
    for statement in recording.of_kind("param"):
        reasons.append(
            f"Site {statement.name!r} is a numpyro.param, which has no prior. Give it one with numpyro.sample, "
            "or pass its value as an argument."
        )
    for statement in recording.of_kind("latent"):
        reasons.extend(_latent_reasons(statement))
    for statement in recording.of_kind("observed"):
        if statement.in_scan and not statement.data:
            reasons.append(
                f"Simulator site {statement.name!r} is inside numpyro's scan or cond, so its calls cannot be made one "
                "by one. Move the loop or the choice into the simulator function."
            )
    return reasons


def _name_reasons(recording: Recording, observed: Sequence[str]) -> list[str]:
    names = [statement.name for statement in recording.statements]
    reasons = [
        f"Site {name!r} appears {count} times in the model. Give every statement its own name."
        for name, count in Counter(names).items()
        if count > 1
    ]
    known = [statement.name for statement in recording.of_kind("latent", "observed")]
    for name in observed:
        if name not in known:
            reasons.append(
                f"observed names {name!r}, but the model has no sample site {name!r}. "
                f"Its sample sites are {', '.join(known) or 'none'}."
            )
    if not recording.of_kind("observed") and not recording.of_kind("factor"):
        reasons.append(
            f"The model has no observation: none of its sample sites ({', '.join(known) or 'none'}) was given data. "
            "Pass data to the model, name the observed sites with observed=('y',), or use hsbi.Simulator."
        )
    if not recording.of_kind("latent") and known:
        reasons.append(
            f"The model has no latent site, so there is nothing to infer: all its sample sites ({', '.join(known)}) "
            "are observed. Leave the data of the sites to infer out."
        )
    return reasons


def _latent_reasons(statement: Statement) -> list[str]:
    fn, name = statement.fn, statement.name
    assert fn is not None
    kind = statement.distribution
    if statement.in_scan:
        return [
            f"Site {name!r} is a latent inside numpyro's scan or cond, which is not supported. "
            "Move it out, or put the loop or the choice into an hsbi.Simulator."
        ]
    if is_improper(fn):
        return [
            f"Site {name!r} has the improper prior {kind}, from which nothing can be drawn. "
            "Give it a proper prior, such as a wide dist.Normal."
        ]
    if isinstance(base_distribution(fn), dist.Delta):
        return [
            f"Site {name!r} is a latent with a Delta distribution, so it is no unknown. "
            f"Write numpyro.deterministic({name!r}, value)."
        ]
    if fn.is_discrete:
        return [
            f"Site {name!r} is a discrete latent ({kind}), and only continuous latents can be inferred. "
            "Sum it out, for example with dist.MixtureSameFamily, or draw it inside an hsbi.Simulator."
        ]
    if statement.fixed:
        return [
            f"Site {name!r} is a latent whose value is fixed by handlers.substitute. "
            "Fix it with handlers.condition, or leave the substitution out to infer it."
        ]
    if statement.scaled:
        return [_scale_reason(statement)]
    return []


def _scale_reason(statement: Statement) -> str:
    return (
        f"Site {statement.name!r} has a scaled log density (handlers.scale), which a simulation cannot have. "
        "Remove the scale."
    )


def plate_reasons(recording: Recording) -> list[str]:
    """Find plates that do not stand for one fixed set of members."""
    reasons = []
    sizes: dict[str, set[int]] = {}
    subsampled = set()
    for name, size, subsample_size in recording.plates:
        sizes.setdefault(name, set()).add(size)
        if subsample_size != size and name not in subsampled:
            subsampled.add(name)
            reasons.append(
                f"Plate {name!r} is subsampled, {subsample_size} of {size} members. "
                "Remove subsample_size: all members are needed."
            )
    for name, found in sizes.items():
        if len(found) > 1:
            text = " and ".join(str(size) for size in sorted(found))
            reasons.append(f"Plate {name!r} has two sizes, {text}. Give plates of different sizes different names.")
    for statement in recording.statements:
        dims: dict[int, str] = {}
        for frame in statement.frames:
            if frame.dim in dims:
                reasons.append(
                    f"Plates {dims[frame.dim]!r} and {frame.name!r} around site {statement.name!r} both have dim "
                    f"{frame.dim}, because both were built before either was entered. Pass dim=... to one of them."
                )
            dims[frame.dim] = frame.name
        if statement.kind == "observed" and statement.scaled and not subsampled:
            reasons.append(_scale_reason(statement))
    return reasons


def data_reasons(recording: Recording) -> list[str]:
    """Find data whose shape is not the shape that the program draws."""
    reasons = []
    for statement in recording.of_kind("observed"):
        value = statement.value
        if statement.data and not isinstance(value, np.ndarray | np.generic | Array | float | int):
            kind = type(value).__name__
            reasons.append(f"Data of site {statement.name!r} are a {kind}. Pass a NumPy or JAX array.")
        elif statement.data and not isinstance(value, float | int) and value.dtype.kind in NO_NUMBERS:
            reasons.append(
                f"Data of site {statement.name!r} have dtype {value.dtype}, expected real numbers. "
                "Convert them, for example with np.asarray(data, float)."
            )
        elif statement.data and not statement.in_scan:
            reasons.extend(_shape_reasons(statement))
    return reasons


def _shape_reasons(statement: Statement) -> list[str]:
    got, expected = tuple(np.shape(statement.value)), statement.program_shape
    if got == expected:
        return []
    name, event_dim = statement.name, statement.event_dim
    event = expected[len(expected) - event_dim :]
    reasons = []
    if len(got) < event_dim or got[len(got) - event_dim :] != event:
        verb = "returns" if statement.distribution == Simulator.__name__ else "draws"
        return [
            f"Data of site {name!r} have shape {got}, which does not end in {event}, the event shape that its "
            f"{statement.distribution} {verb}. "
            f"Pass data of shape {expected}, or change the event shape."
        ]
    for frame in statement.frames:
        axis = frame.dim - event_dim
        size = got[axis] if -axis <= len(got) else None
        if size == frame.size:
            continue
        if size is None or size == 1:
            entries = f"shape {got}, no axis" if size is None else f"shape {got}, 1 entry"
            reasons.append(
                f"Data of site {name!r} have {entries} along plate {frame.name!r}, which has size {frame.size}: they "
                f"would be broadcast silently. Pass data of shape {expected}, one row per member of the plate."
            )
        else:
            reasons.append(
                f"Data of site {name!r} have {size} entries along plate {frame.name!r}, which has size {frame.size} "
                f"(shape {got}, expected {expected}). Pass data with one row per member of the plate."
            )
    return reasons or [
        f"Data of site {name!r} have shape {got}, but the model draws shape {expected}. "
        "Put the site in a numpyro.plate for every further axis of the data, or pass data of the drawn shape."
    ]


def level_reasons(recording: Recording, site_plate: str | None) -> list[str]:
    """Find sites whose plates make no two-level model of globals, locals and observations."""
    observations = recording.of_kind("observed")
    if site_plate is None:
        if any(statement.frames for statement in observations):
            found = ", ".join(f"{statement.name!r} in {_plates(statement)}" for statement in observations)
            return [
                f"The observations share no plate: {found}. Put all observations in one plate of sites, or in none."
            ]
        return []
    reasons = []
    inner = {frame.name for statement in observations for frame in statement.frames} - {site_plate}
    for statement in recording.of_kind("latent"):
        names = [frame.name for frame in statement.frames]
        others = [name for name in names if name != site_plate]
        if site_plate in names and others:
            reasons.append(
                f"Latent {statement.name!r} is in plate {others[-1]!r} inside the site plate {site_plate!r}, a second "
                "level of latents, which is not supported. Make the inner plate an event, "
                f"dist.{statement.distribution}(...).expand([n]).to_event(1), "
                "or keep that plate for observations only."
            )
        crossed = [name for name in others if name in inner]
        if site_plate not in names and crossed:
            reasons.append(
                f"Latent {statement.name!r} is in plate {crossed[0]!r}, which crosses the site plate {site_plate!r} at "
                "the observations, a second level of latents, which is not supported. Make it one global vector, "
                f"dist.{statement.distribution}(...).expand([n]).to_event(1)."
            )
    return reasons


def _plates(statement: Statement) -> str:
    names = [frame.name for frame in statement.frames]
    return f"plate {' and '.join(repr(name) for name in names)}" if names else "no plate"


def parent_reasons(recording: Recording, site_plate: str | None, parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Find globals that depend on locals."""
    levels = {
        statement.name: site_plate is not None and site_plate in {frame.name for frame in statement.frames}
        for statement in recording.of_kind("latent")
    }
    return [
        f"Global {name!r} depends on local {parent!r} of plate {site_plate!r}: it is drawn outside the plate from "
        f"values inside it. Draw {name!r} before the plate, or inside it."
        for name, local in levels.items()
        if not local
        for parent in parents[name]
        if levels.get(parent)
    ]


def captured_reasons(captured: Mapping[str, Sequence[str]]) -> list[str]:
    """Say which simulators take latents from their closure."""
    return [
        f"The function of {Simulator.__name__} site {name!r} captures {', '.join(repr(latent) for latent in latents)} "
        "instead of taking it as a parameter, so one site's simulation cannot be separated. "
        "Pass it: hsbi.Simulator(fn, value, ...)."
        for name, latents in captured.items()
        if latents
    ]

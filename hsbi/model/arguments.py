"""Name the model's arguments and find those with one entry per site."""

import inspect
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from hsbi.model.dependence import Probe, Uses, frame_of
from hsbi.model.record import Recording, Statement
from hsbi.model.structure import Covariate, Plate

_MAX_READINGS = 64
# NumPy's kinds of objects, strings, times and complex numbers.
NO_NUMBERS = "OSUMmc"


class ArrayArgument(NamedTuple):
    """An array among the arguments.

    Attributes:
        path: Its place, such as `sigma` or `data['x']`.
        position: Its position among the leaves of `(args, kwargs)`.
        value: The array.
    """

    path: str
    position: int
    value: Any


class _Candidate(NamedTuple):
    """An argument that may have one entry per site, and the axes along which it may; None where it has not."""

    argument: ArrayArgument
    data: str | None
    axes: tuple[int | None, ...]


class Covariates(NamedTuple):
    """The arguments with one entry per site.

    Attributes:
        found: The covariates.
        complete: Whether they account for all differences between sites; None where that cannot be tested.
        both: Those that reach data as well as distributions, by path.
    """

    found: tuple[Covariate, ...]
    complete: bool | None
    both: dict[str, Uses]


def bind_arguments(program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name the arguments by the program's signature; those of `**kwargs` by their keyword.

    A handler used as a decorator does not pass the signature on, so the model inside all handlers is asked.
    """
    signature = _signature(program)
    bound = signature.bind(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


def unbind_arguments(
    program: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give positional and keyword arguments from named ones; the inverse of `bind_arguments`."""
    signature = _signature(program)
    named = {name: value for name, value in arguments.items() if name in signature.parameters}
    extra = {name: value for name, value in arguments.items() if name not in signature.parameters}
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named[parameter.name], extra = extra, {}
    bound = inspect.BoundArguments(signature, OrderedDict(named))
    return bound.args, {**bound.kwargs, **extra}


def _signature(program: Callable[..., Any]) -> inspect.Signature:
    inner: Any = program
    while callable(getattr(inner, "fn", None)):
        inner = inner.fn
    return inspect.signature(inner)


def array_arguments(program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[ArrayArgument]:
    """List the arrays of numbers among the arguments; scalars are not arrays."""
    positions = jax.tree.unflatten(
        jax.tree.structure((tuple(args), dict(kwargs))), range(len(jax.tree.leaves((tuple(args), dict(kwargs)))))
    )
    named = bind_arguments(program, *positions)
    leaves = jax.tree.leaves((tuple(args), dict(kwargs)))
    found = []
    for name, tree in named.items():
        for path, position in jax.tree_util.tree_leaves_with_path(tree):
            leaf = leaves[position]
            if isinstance(leaf, np.ndarray | Array) and np.ndim(leaf) > 0 and leaf.dtype.kind not in NO_NUMBERS:
                found.append(ArrayArgument(name + jax.tree_util.keystr(path), position, leaf))
    return found


def find_covariates(
    arguments: Sequence[ArrayArgument],
    recording: Recording,
    data: Mapping[str, Any],
    plate: Plate | None,
    probe: Probe,
    latents: Mapping[str, Any],
) -> Covariates:
    """List the array arguments with one entry per site, and say which are data.

    An axis as long as the site plate may be so by chance. So the sites are put in another order, locals and arguments
    alike: where the arguments are understood, the distributions come out in that order and otherwise unchanged.

    Args:
        arguments: The array arguments.
        recording: The program's statements.
        data: The observations' data.
        plate: The site plate.
        probe: The program to run.
        latents: Shapes of the latents.
    """
    if plate is None:
        return Covariates((), None, {})
    candidates = [c for a in arguments if (c := _candidate(a, recording, data, plate)) is not None]
    uses = _find_uses(candidates, probe)
    candidates = [_tell_data(c, uses.get(c.argument.position), recording, plate) for c in candidates]
    choice, complete = [c.axes[0] for c in candidates], None
    if plate.size > 1 and probe.is_open([c.argument.position for c in candidates]):
        readings = itertools.islice(itertools.product(*(c.axes for c in candidates)), _MAX_READINGS)
        # The reading that changes least comes first.
        ordered = sorted(
            readings, key=lambda reading: sum(a != c.axes[0] for a, c in zip(reading, candidates, strict=True))
        )
        good = _find_reading(candidates, ordered, recording, plate, probe, latents)
        complete = good is not None
        choice = choice if good is None else list(good)
    covariates = [
        Covariate(path=c.argument.path, axis=axis, shape=tuple(np.shape(c.argument.value)), data=c.data)
        for c, axis in zip(candidates, choice, strict=True)
        if axis is not None
    ]
    both = {c.argument.path: used for c in candidates if (used := uses.get(c.argument.position)) and all(used)}
    return Covariates(tuple(covariates), complete, both)


def _find_uses(candidates: Sequence[_Candidate], probe: Probe) -> dict[int, Uses]:
    positions = [c.argument.position for c in candidates]
    return probe.uses(positions) if probe.is_open(positions) else {}


def _tell_data(candidate: _Candidate, uses: Uses | None, recording: Recording, plate: Plate) -> _Candidate:
    """Mark an argument as data where it does nothing but become data, as in `obs=jnp.log(raw)`."""
    if candidate.data is not None or uses is None or uses.distributions or not uses.data:
        return candidate
    statement = recording[uses.data[0]]
    own = _own_axis(candidate.argument, statement, plate)
    same_axes = np.ndim(candidate.argument.value) == np.ndim(statement.value)
    return candidate._replace(data=statement.name, axes=(own,) if same_axes and own is not None else candidate.axes)


def _own_axis(argument: ArrayArgument, statement: Statement, plate: Plate) -> int | None:
    """Give the axis along which data of a statement have one entry per site, where they have."""
    shape, frame = np.shape(argument.value), frame_of(statement, plate.name)
    axis = -1 if frame is None else len(shape) + frame.dim - statement.event_dim
    return axis if axis >= 0 and shape[axis] == plate.size else None


def per_site_arrays(arguments: Sequence[ArrayArgument], size: int) -> dict[int, Any]:
    """Give the numeric arguments with an axis of the site plate's size, by position."""
    return {
        a.position: a.value for a in arguments if size in np.shape(a.value) and np.asarray(a.value).dtype.kind in "biuf"
    }


def _candidate(
    argument: ArrayArgument, recording: Recording, data: Mapping[str, Any], plate: Plate
) -> _Candidate | None:
    """List the axes along which an argument may have one entry per site, the likeliest first."""
    shape = np.shape(argument.value)
    axes = [axis for axis, size in enumerate(shape) if size == plate.size]
    statement = _find_data(argument, recording, data)
    if statement is not None:
        own = _own_axis(argument, statement, plate)
        return None if own is None else _Candidate(argument, statement.name, (own,))
    return _Candidate(argument, None, (*axes, None)) if axes else None


def _find_reading(
    candidates: Sequence[_Candidate],
    readings: Sequence[tuple[int | None, ...]],
    recording: Recording,
    plate: Plate,
    probe: Probe,
    latents: Mapping[str, Any],
) -> tuple[int | None, ...] | None:
    """Find the first reading of the arguments under which the order of sites does not matter."""
    order = np.roll(np.arange(plate.size), 1)
    inside = [(s, frame) for s in recording.of_kind("latent", "observed") if (frame := frame_of(s, plate.name))]
    values = probe.draw(0, latents)
    moved: dict[str, Any] = dict(values)
    for statement, frame in inside:
        if statement.kind == "latent":
            moved[statement.name] = np.take(
                np.asarray(values[statement.name]), order, axis=frame.dim - statement.event_dim
            )
    before = probe.read(values)
    for reading in readings:
        after = probe.read(
            moved,
            {
                c.argument.position: c.argument.value
                if axis is None
                else np.take(np.asarray(c.argument.value), order, axis=axis)
                for c, axis in zip(candidates, reading, strict=True)
            },
        )
        if not any(
            probe.changed(s, probe.reorder(s, before[s.name], frame.dim, order), after[s.name], rounding=True).any()
            for s, frame in inside
        ):
            return reading
    return None


def _find_data(argument: ArrayArgument, recording: Recording, data: Mapping[str, Any]) -> Statement | None:
    """Find the observation whose data an argument is: the same array, or one with equal entries."""
    candidates = [s for s in recording.of_kind("observed") if s.name in data]
    for statement in candidates:
        if statement.value is argument.value:
            return statement
    equal = [s for s in candidates if _equal(argument.value, data[s.name])]
    named = [s for s in equal if s.name == argument.path]
    return next(iter(named or equal), None)


def _equal(leaf: Any, value: Any) -> bool:
    left, right = np.asarray(leaf), np.asarray(value)
    if left.shape != right.shape:
        return False
    # On its way the program may have cast the data to single precision, and filled in what is missing.
    same, missing = left.astype(right.dtype) == right, left != left
    return bool(np.all(same | missing) and np.any(same | (missing & (right != right))))

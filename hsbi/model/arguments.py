"""Name the model's arguments and find those with one entry per site."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from hsbi.model.record import Recording, Statement
from hsbi.model.structure import Covariate, Plate


def bind_arguments(program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name the arguments by the program's signature; those of `**kwargs` by their keyword."""
    signature = inspect.signature(program)
    bound = signature.bind(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


def argument_arrays(
    program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """List the arrays among the arguments with their paths, such as `sigma` or `data['x']`; scalars are not arrays."""
    arrays = []
    for name, value in bind_arguments(program, args, kwargs).items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if isinstance(leaf, np.ndarray | Array) and np.ndim(leaf) > 0:
                arrays.append((name + jax.tree_util.keystr(path), leaf))
    return arrays


def find_covariates(
    arrays: Sequence[tuple[str, Any]], recording: Recording, values: Mapping[str, Any], plate: Plate | None
) -> tuple[Covariate, ...]:
    """List the array arguments with one entry per site, and say which are data.

    Args:
        arrays: Paths and arrays, from `argument_arrays`.
        recording: The program's statements.
        values: The observations' data.
        plate: The site plate.
    """
    if plate is None:
        return ()
    covariates = []
    for path, leaf in arrays:
        shape = tuple(np.shape(leaf))
        data = _find_data(path, leaf, recording, values)
        axes = [axis for axis, size in enumerate(shape) if size == plate.size]
        if data is not None:
            frame = next(frame for frame in data.frames if frame.name == plate.name)
            own = len(shape) + frame.dim - data.event_dim
            axes = [own] if own in axes else axes
        if axes:
            covariates.append(Covariate(path=path, axis=axes[0], shape=shape, data=None if data is None else data.name))
    return tuple(covariates)


def _find_data(path: str, leaf: Any, recording: Recording, values: Mapping[str, Any]) -> Statement | None:
    """Find the observation whose data an argument is: the same array, or one with equal entries."""
    candidates = [s for s in recording.of_kind("observed") if s.name in values]
    for statement in candidates:
        if statement.value is leaf:
            return statement
    equal = [s for s in candidates if _equal(leaf, values[s.name])]
    named = [s for s in equal if s.name == path]
    return next(iter(named or equal), None)


def _equal(leaf: Any, value: Any) -> bool:
    left, right = np.asarray(leaf), np.asarray(value)
    if left.shape != right.shape:
        return False
    # The program may have cast the data to single precision on its way.
    return bool(np.all((left.astype(right.dtype) == right) | ((left != left) & (right != right))))

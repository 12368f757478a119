"""Parameters of a simulator: which dimensions count calls, which go whole into one, and what one call gives."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.model.host import NUMERIC_KINDS, DtypeError, name_of


def as_parameter(fn: Callable[..., Any], position: int, value: ArrayLike) -> Array:
    """Make a parameter an array, or refuse what is none."""
    numeric = isinstance(value, bool | int | float | np.generic | np.ndarray | Array)
    if numeric and not isinstance(value, Array):
        numeric = np.asarray(value).dtype.kind in NUMERIC_KINDS
    if not numeric:
        raise TypeError(
            f"Parameter {position} of simulator {name_of(fn)!r} is a {type(value).__name__}, expected an array or a "
            "number. Pass each array as its own parameter, or close over constants with functools.partial."
        )
    return jnp.asarray(value)


def check_event_dims(
    fn: Callable[..., Any], params: tuple[Array, ...], param_event_dims: Sequence[int] | None
) -> tuple[int, ...]:
    """Say how many trailing dimensions of each parameter go whole into one call."""
    dims = tuple(0 for _ in params) if param_event_dims is None else tuple(int(dim) for dim in param_event_dims)
    if len(dims) != len(params):
        raise ValueError(
            f"Simulator {name_of(fn)!r} has {len(params)} parameters, but param_event_dims has {len(dims)} entries. "
            "Pass one number per parameter."
        )
    for position, (value, dim) in enumerate(zip(params, dims, strict=True)):
        if not 0 <= dim <= value.ndim:
            raise ValueError(
                f"Parameter {position} of simulator {name_of(fn)!r} has shape {value.shape}, but param_event_dims "
                f"says {dim} of its dimensions go into one call. Pass a number from 0 to {value.ndim}."
            )
    return dims


def broadcast_batches(fn: Callable[..., Any], params: tuple[Array, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Give the batch shape that parameters have together."""
    shapes = [value.shape[: value.ndim - dim] for value, dim in zip(params, dims, strict=True)]
    try:
        return jnp.broadcast_shapes(*shapes) if shapes else ()
    except ValueError as error:
        raise ValueError(
            f"Parameters of simulator {name_of(fn)!r} have batch shapes {tuple(shapes)}, which do not broadcast. "
            "Say with param_event_dims which trailing dimensions belong to one call."
        ) from error


def infer_event_shape(fn: Callable[..., Any], params: tuple[Array, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Find the shape of one output by tracing one call abstractly; nothing is computed."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    one = [jax.ShapeDtypeStruct(v.shape[v.ndim - dim :], v.dtype) for v, dim in zip(params, dims, strict=True)]
    try:
        result = jax.eval_shape(fn, key, *one)
    except jax.errors.JAXTypeError as error:
        raise TypeError(
            f"Simulator {name_of(fn)!r} cannot be traced by JAX. Write it with jax.numpy, or pass host=True and "
            "event_shape=... to run it as plain Python."
        ) from error
    except Exception as error:
        # The function is the user's own, and may raise anything.
        raise TypeError(
            f"Simulator {name_of(fn)!r} raised {type(error).__name__}: {error}. JAX calls it as fn(key, *params), with "
            f"a key of jax.random and {len(one)} parameters of shapes {tuple(value.shape for value in one)}. If it is "
            "plain Python that takes a numpy.random.Generator, pass host=True and event_shape=..."
        ) from error
    if not hasattr(result, "shape"):
        raise TypeError(
            f"Simulator {name_of(fn)!r} returned a {type(result).__name__}, expected one array. "
            "Stack the outputs into one array, or write one site per output."
        )
    if not any(jnp.issubdtype(result.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise DtypeError(
            f"Simulator {name_of(fn)!r} returned dtype {result.dtype}, expected real numbers. "
            "Return an array of floats, integers or booleans."
        )
    return tuple(result.shape)

"""One call of a simulator outside JAX: its generator, its arguments, the checks of what comes back."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NUMERIC_KINDS = "biuf"


def host_generator(key_data: np.ndarray) -> np.random.Generator:
    """Make the generator of one host call from the words of its JAX key (counter-based Philox)."""
    words = [int(word) for word in np.asarray(key_data).ravel()]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def host_value(
    fn: Callable[..., Any],
    rng: np.random.Generator,
    params: Sequence[np.ndarray],
    event_shape: tuple[int, ...],
    dtype: np.dtype,
    discrete: bool,
) -> np.ndarray:
    """Make one call of a host function and check what comes back.

    Floating parameters are passed on as float64 and integers as int64, so that arithmetic runs in the precision that
    NumPy users expect. A count that is not finite, or too large for its type, becomes the smallest
    integer, outside every count support.
    """
    arguments = [_host_argument(value) for value in params]
    try:
        value = np.asarray(fn(rng, *arguments))
    except Exception as error:
        shapes = tuple(np.shape(value) for value in params)
        raise RuntimeError(
            f"Simulator {name_of(fn)!r} raised {type(error).__name__}: {error} (parameter shapes {shapes})."
        ) from error
    if value.dtype.kind not in NUMERIC_KINDS:
        raise TypeError(
            f"Simulator {name_of(fn)!r} returned dtype {value.dtype}, expected real numbers. "
            "Return an array of floats, integers or booleans."
        )
    check_output_shape(fn, event_shape, value.shape)
    if discrete:
        broken = value[np.isfinite(value) & (value != np.floor(value))]
        if broken.size:
            raise ValueError(
                f"Simulator {name_of(fn)!r} returned {broken[0]} at a count site, expected whole numbers. "
                "Round in the simulator, or give it a continuous support."
            )
        info = np.iinfo(dtype)
        usable = (value > info.min) & (value < info.max)
        return np.where(usable, value, info.min).astype(dtype)
    with np.errstate(over="ignore"):
        return value.astype(dtype)


def run_host(
    fn: Callable[..., Any],
    param_event_dims: tuple[int, ...],
    event_shape: tuple[int, ...],
    dtype: np.dtype,
    discrete: bool,
    key_data: np.ndarray,
    *params: np.ndarray,
) -> np.ndarray:
    """Loop over the rows of a callback, whose arrays have equally many leading dimensions, of full size or one."""
    words = np.asarray(key_data)
    arrays = [np.asarray(value) for value in params]
    event_shapes = [value.shape[value.ndim - dims :] for value, dims in zip(arrays, param_event_dims, strict=True)]
    leads = [value.shape[: value.ndim - dims] for value, dims in zip(arrays, param_event_dims, strict=True)]
    lead = np.broadcast_shapes(words.shape[:-1], *leads)
    words = np.broadcast_to(words, lead + words.shape[-1:])
    arrays = [np.broadcast_to(value, lead + shape) for value, shape in zip(arrays, event_shapes, strict=True)]
    out = np.empty(lead + event_shape, dtype)
    for row in np.ndindex(*lead):
        rng = host_generator(words[row])
        out[row] = host_value(fn, rng, [value[row] for value in arrays], event_shape, dtype, discrete)
    return out


def check_output_shape(fn: Callable[..., Any], expected: tuple[int, ...], got: tuple[int, ...]) -> None:
    """Refuse an output of another shape than the event's."""
    if expected != got:
        raise ValueError(
            f"Simulator {name_of(fn)!r} returned shape {got} for one site, expected event_shape {expected}. "
            "Change the function or event_shape, or say with param_event_dims which parameter dimensions belong to "
            "one call."
        )


def _host_argument(value: np.ndarray) -> Any:
    kind = np.asarray(value).dtype.kind
    wide = {"f": np.float64, "i": np.int64, "u": np.int64}.get(kind, np.asarray(value).dtype)
    # Indexing with () turns a zero-dimensional array into a scalar and leaves others as they are.
    return np.array(value, dtype=wide)[()]


def name_of(fn: Callable[..., Any]) -> str:
    """Give the name a user knows a function by, through partials and wrappers."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return getattr(fn, "__name__", type(fn).__name__)

"""One call of a simulator outside JAX: its generator, its arguments, the checks of what comes back.

Worker processes import this module, so it needs NumPy and nothing else.
"""

import dataclasses
import enum
import functools
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

NUMERIC_KINDS = "biuf"
# Host simulators compute in the precision that NumPy users expect.
_WIDE: dict[str, Any] = {"f": np.float64, "i": np.int64, "u": np.int64}


class Status(enum.IntEnum):
    """How a simulation ended."""

    OK = 0
    ERROR = 1
    TIMEOUT = 2
    KILLED = 3
    NONFINITE = 4
    SHAPE = 5


class ShapeError(ValueError):
    """An output of another shape than was declared."""


class DtypeError(TypeError):
    """An output that is not made of real numbers."""


class OutputError(ValueError):
    """An output that no run should go on after, such as half a count."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostSpec:
    """What one call of a host simulator must give.

    Attributes:
        name: The observation it simulates.
        event_shape: The shape of one output.
        dtype: The type that outputs are cast to, as NumPy writes it.
        discrete: Whether outputs are counts.
    """

    name: str
    event_shape: tuple[int, ...]
    dtype: str
    discrete: bool

    @property
    def fill(self) -> float:
        """What stands for an output that is not there: NaN, or the smallest integer, outside every count support."""
        return np.iinfo(self.dtype).min if self.discrete else np.nan


class CallError(NamedTuple):
    """Why a call gave no usable output.

    Attributes:
        kind: The type of the exception; empty where there was none.
        message: What it said.
        traceback: Where it came from; empty where nothing was raised.
        fatal: Whether the run should stop.
    """

    kind: str
    message: str
    traceback: str = ""
    fatal: bool = False


class Attempt(NamedTuple):
    """What one call came to.

    Attributes:
        status: How it ended.
        value: What came back, cast; None where nothing usable did.
        error: What was wrong, or None.
        dtype: The type of what came back, before it was cast; None where nothing did.
    """

    status: Status
    value: np.ndarray | None
    error: CallError | None
    dtype: np.dtype | None = None


class _KeyWords(ISpawnableSeedSequence):
    """The words of a JAX key as the key of a counter-based generator.

    They are random already; hashing them once more would cost a third of a simulation of 0.1 ms.
    """

    def __init__(self, words: np.ndarray, state: np.ndarray | None) -> None:
        self._words, self._state = words, state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        if n_words == 2 and dtype is np.uint64 and self._state is not None:
            return self._state
        return np.random.SeedSequence(self._words.tolist()).generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        return np.random.SeedSequence(self._words.tolist()).spawn(n_children)


def host_generator(key_data: np.ndarray) -> np.random.Generator:
    """Make the generator of one host call from the words of its JAX key (counter-based Philox)."""
    return HostInputs(np.asarray(key_data).reshape(1, -1), ())[0][0]


class HostInputs:
    """Generators and arguments of many calls, prepared at once: one by one that takes longer than a quick simulator."""

    def __init__(self, keys: np.ndarray, params: Sequence[np.ndarray]) -> None:
        """Prepare calls.

        Args:
            keys: The words of their keys, `[n, w]`.
            params: Their parameters, `[n, ...]` each. Floats become float64 and integers int64.
        """
        self._words = np.ascontiguousarray(keys, np.uint32)
        number, width = self._words.shape
        self._states = np.zeros((number, 2), np.uint64) if width <= 4 else None
        if self._states is not None:
            self._states.view(np.uint32)[:, :width] = self._words
        self._params = [value.astype(_WIDE.get(value.dtype.kind, value.dtype)) for value in params]

    def __getitem__(self, position: int) -> tuple[np.random.Generator, list[Any]]:
        """Give the generator and the arguments of one call."""
        state = None if self._states is None else self._states[position]
        seed: Any = _KeyWords(self._words[position], state)
        # Arrays are copied, as a simulator may write into its arguments.
        arguments = [value[position] if value.ndim == 1 else value[position].copy() for value in self._params]
        return np.random.Generator(np.random.Philox(seed)), arguments


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
    try:
        value = np.asarray(fn(rng, *[_host_argument(value) for value in params]))
    except Exception as error:
        shapes = tuple(np.shape(value) for value in params)
        raise RuntimeError(
            f"Simulator {name_of(fn)!r} raised {type(error).__name__}: {error} (parameter shapes {shapes})."
        ) from error
    return _check(fn, value, event_shape, dtype, discrete)


def _check(
    fn: Callable[..., Any], value: np.ndarray, event_shape: tuple[int, ...], dtype: np.dtype, discrete: bool
) -> np.ndarray:
    """Refuse what is no array of numbers of the right shape, and cast the rest."""
    if value.dtype.kind not in NUMERIC_KINDS:
        raise DtypeError(
            f"Simulator {name_of(fn)!r} returned dtype {value.dtype}, expected real numbers. "
            "Return an array of floats, integers or booleans."
        )
    check_output_shape(fn, event_shape, value.shape)
    if discrete:
        broken = value[np.isfinite(value) & (value != np.floor(value))]
        if broken.size:
            raise OutputError(
                f"Simulator {name_of(fn)!r} returned {broken[0]} at a count site, expected whole numbers. "
                "Round in the simulator, or give it a continuous support."
            )
        info = np.iinfo(dtype)
        usable = (value > info.min) & (value < info.max)
        return np.where(usable, value, info.min).astype(dtype)
    if value.dtype == dtype:
        return value
    with np.errstate(over="ignore"):
        return value.astype(dtype)


def attempt(fn: Callable[..., Any], spec: HostSpec, rng: np.random.Generator, arguments: Sequence[Any]) -> Attempt:
    """Make one call and never raise: a pool of processes would break over an exception that cannot be sent.

    Interrupts by the keyboard pass through.
    """
    try:
        raw = np.asarray(fn(rng, *arguments))
        value = _check(fn, raw, spec.event_shape, np.dtype(spec.dtype), spec.discrete)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _explain(error)
    usable = value != spec.fill if spec.discrete else np.isfinite(value)
    if usable.all():
        return Attempt(Status.OK, value, None, raw.dtype)
    message = f"{usable.size - np.count_nonzero(usable)} of {usable.size} numbers are not finite as {spec.dtype}"
    return Attempt(Status.NONFINITE, value, CallError("", message), raw.dtype)


def _explain(error: BaseException) -> Attempt:
    try:
        message = str(error)
    except Exception:
        message = f"a {type(error).__name__} that cannot be printed"
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:
        lines = ""
    status = Status.SHAPE if isinstance(error, ShapeError) else Status.ERROR
    fatal = isinstance(error, OutputError | DtypeError)
    return Attempt(status, None, CallError(type(error).__name__, message, lines, fatal))


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


def check_output_shape(
    fn: Callable[..., Any], expected: tuple[int, ...], got: tuple[int, ...], site: str | None = None
) -> None:
    """Refuse an output of another shape than the event's."""
    if expected != got:
        where = "" if site is None else f" at site {site!r}"
        raise ShapeError(
            f"Simulator {name_of(fn)!r}{where} returned shape {got} for one site, expected event_shape {expected}. "
            "Change the function or event_shape, or say with param_event_dims which parameter dimensions belong to "
            "one call."
        )


def _host_argument(value: np.ndarray) -> Any:
    dtype = np.asarray(value).dtype
    # Indexing with () turns a zero-dimensional array into a scalar and leaves others as they are.
    return np.array(value, dtype=_WIDE.get(dtype.kind, dtype))[()]


def name_of(fn: Callable[..., Any]) -> str:
    """Give the name a user knows a function by, through partials and wrappers."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return getattr(fn, "__name__", type(fn).__name__)

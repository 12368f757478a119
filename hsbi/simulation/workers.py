"""What worker processes run: batches of calls of a host simulator.

Imported by every worker, so it needs NumPy and the standard library alone; JAX would cost seconds per worker. Nothing
here raises on behalf of a simulator: an exception that cannot be sent would break a pool of processes.
"""

import hashlib
import json
import mmap
import multiprocessing
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hsbi.model.calls import PENDING
from hsbi.model.host import Attempt, CallError, HostInputs, HostSpec, Status, attempt

_HEADER = struct.Struct("<qqd")
_DTYPE_BYTES = 16


class Calls(NamedTuple):
    """Calls of one simulator: words of their keys `[n, w]`, and parameters `[n, ...]` each."""

    keys: np.ndarray
    params: tuple[np.ndarray, ...]

    def take(self, part: slice | np.ndarray) -> "Calls":
        """Select calls."""
        return Calls(self.keys[part], tuple(value[part] for value in self.params))


class Outcome(NamedTuple):
    """What a batch of calls came to.

    Attributes:
        status: `[n]`, the status of each call, or `PENDING` where it has not ended.
        seconds: `[n]`, the time each took.
        values: `[n, *event_shape]`.
        errors: What was wrong, by position in the batch.
        dtype: The type of the first output before it was cast.
        current: The position of the last call that was begun; -1 where none was.
    """

    status: np.ndarray
    seconds: np.ndarray
    values: np.ndarray
    errors: dict[int, CallError]
    dtype: str
    current: int


def empty_outcome(spec: HostSpec, number: int) -> Outcome:
    """Give the outcome of a batch of which nothing has run."""
    values = np.full((number, *spec.event_shape), spec.fill, spec.dtype)
    return Outcome(np.full(number, PENDING, np.uint8), np.zeros(number), values, {}, "", -1)


def run_calls(fn: Callable[..., Any], spec: HostSpec, calls: Calls) -> Iterator[tuple[int, Attempt, float]]:
    """Make calls one after another; gives position, result and seconds of each as it ends."""
    inputs = HostInputs(calls.keys, calls.params)
    for position in range(calls.keys.shape[0]):
        started = time.perf_counter()
        result = attempt(fn, spec, *inputs[position])
        yield position, result, time.perf_counter() - started


def run_returned(blob: bytes, spec: HostSpec, calls: Calls, tries: int = 0) -> Outcome:
    """Make a batch of calls in whatever process this is, and give the outcome back.

    Args:
        blob: The pickled simulator.
        spec: What its calls must give.
        calls: The calls.
        tries: How often they were tried before; an executor that remembers results must not give back an old one.
    """
    fn = _load(blob)
    outcome = empty_outcome(spec, calls.keys.shape[0])
    if isinstance(fn, CallError):
        outcome.status[:] = Status.ERROR
        return outcome._replace(errors=dict.fromkeys(range(outcome.status.size), fn), current=outcome.status.size - 1)
    dtype = ""
    for position, result, seconds in run_calls(fn, spec, calls):
        outcome.status[position], outcome.seconds[position] = result.status, seconds
        if result.value is not None:
            outcome.values[position] = result.value
        if result.error is not None:
            outcome.errors[position] = result.error
        if not dtype and result.dtype is not None:
            dtype = result.dtype.name
    return outcome._replace(dtype=dtype, current=outcome.status.size - 1)


_FUNCTIONS: dict[bytes, Any] = {}


def _load(blob: bytes) -> Any:
    """Unpickle a simulator once per process; gives a `CallError` where that fails."""
    digest = hashlib.sha256(blob).digest()
    if digest not in _FUNCTIONS:
        import cloudpickle

        try:
            _FUNCTIONS[digest] = cloudpickle.loads(blob)
        except Exception as error:
            message = f"The simulator could not be loaded in a worker process: {error}"
            return CallError(type(error).__name__, message, "", True)
    return _FUNCTIONS[digest]


def _allocate(path: Path, size: int) -> None:
    """Make a file whose bytes are all there: writing a hole into a map would end the process on a full disk.

    Raises:
        OSError: If there is no room; the message names the path.
    """
    try:
        with open(path, "wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
    except OSError as error:
        raise OSError(
            error.errno,
            f"Cannot write {str(path)!r}, where workers leave their results: {error.strerror or error}. Make room, or "
            "set TMPDIR to another place; then run the same call again.",
        ) from error


class Board:
    """A file in which one batch records its calls as they end, so that they outlive the process that made them.

    It is mapped into memory by the worker and by its parent: process id, position and start of the current call, type
    of the outputs, then status, seconds and output of every call. Errors go to a second file, one line each.
    """

    def __init__(self, path: Path, spec: HostSpec, number: int, create: bool) -> None:
        """Map the file, which is made first where `create` is set."""
        self.path, self.spec, self.number = path, spec, number
        count = int(np.prod(spec.event_shape, dtype=int))
        dtype = np.dtype(spec.dtype)
        # Every section begins at a multiple of eight bytes.
        starts = np.cumsum([_HEADER.size + _DTYPE_BYTES, 8 * -(-number // 8), 8 * number]).tolist()
        size = starts[2] + dtype.itemsize * count * number
        if create:
            _allocate(path, size)
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._status = np.frombuffer(self._map, np.uint8, number, starts[0])
        self._seconds = np.frombuffer(self._map, np.float64, number, starts[1])
        values = np.frombuffer(self._map, dtype, count * number, starts[2])
        self._values = values.reshape(number, *spec.event_shape)
        if create:
            self._status[:] = PENDING
            self._values[...] = spec.fill
            self._put(0, -1)

    def _put(self, pid: int, position: int) -> None:
        _HEADER.pack_into(self._map, 0, pid, position, time.monotonic())

    def begin(self, position: int) -> None:
        """Say which call is next."""
        self._put(os.getpid(), position)

    def record(self, position: int, result: Attempt, seconds: float) -> None:
        """Write down how a call ended, its status last."""
        if result.value is not None:
            self._values[position] = result.value
        if result.error is not None:
            with open(self.path.with_suffix(".errors"), "a") as file:
                file.write(json.dumps([position, *result.error]) + "\n")
        if position == 0 and result.dtype is not None:
            self._map[_HEADER.size : _HEADER.size + _DTYPE_BYTES] = result.dtype.name.encode().ljust(_DTYPE_BYTES)
        self._seconds[position] = seconds
        self._status[position] = result.status

    def running(self) -> tuple[int, int, float]:
        """Give the worker's process id, the current position and the seconds it has been running."""
        pid, position, started = _HEADER.unpack_from(self._map, 0)
        return pid, position, time.monotonic() - started

    def pending(self, position: int) -> bool:
        """Say whether a call has not ended."""
        return bool(self._status[position] == PENDING)

    def read(self) -> Outcome:
        """Give what has been recorded, as copies."""
        errors: dict[int, CallError] = {}
        path = self.path.with_suffix(".errors")
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    position, *error = json.loads(line)
                except ValueError:
                    # The last line of a worker that was killed as it wrote.
                    continue
                errors[position] = CallError(*error)
        dtype = bytes(self._map[_HEADER.size : _HEADER.size + _DTYPE_BYTES]).decode().strip("\0 ")
        return Outcome(self._status.copy(), self._seconds.copy(), self._values.copy(), errors, dtype, self.running()[1])

    def close(self, *, remove: bool = False) -> None:
        """Unmap the file, and delete it where `remove` is set."""
        del self._status, self._seconds, self._values
        self._map.close()
        if remove:
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".errors").unlink(missing_ok=True)


_BLOBS: dict[str, bytes] = {}


def start_worker(blobs: dict[str, bytes], folder: str) -> None:
    """Prepare a worker process: take the pickled simulators, and end when the parent does.

    Args:
        blobs: The pickled simulators, by observation.
        folder: Where the parent keeps the boards; it goes when the parent is gone.
    """
    _BLOBS.update(blobs)
    threading.Thread(target=_follow_parent, args=(folder,), daemon=True).start()


def _follow_parent(folder: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def run_mapped(path: str, spec: HostSpec, calls: Calls) -> None:
    """Make a batch of calls in a worker process and record each on the batch's board."""
    board = Board(Path(path), spec, calls.keys.shape[0], create=False)
    fn = _load(_BLOBS[spec.name])
    if isinstance(fn, CallError):
        for position in range(board.number):
            board.record(position, Attempt(Status.ERROR, None, fn), 0.0)
        return
    board.begin(0)
    for position, result, seconds in run_calls(fn, spec, calls):
        board.record(position, result, seconds)
        if position + 1 < board.number:
            board.begin(position + 1)
    board.close()

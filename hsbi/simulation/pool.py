"""Where batches run: a local pool of spawned processes, or any executor."""

import contextlib
import multiprocessing
import multiprocessing.context
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import cloudpickle

from hsbi.model.calls import Host
from hsbi.model.failures import SimulationError
from hsbi.model.host import CallError, HostSpec, name_of
from hsbi.simulation.schedule import Batch
from hsbi.simulation.workers import Board, Outcome, empty_outcome, run_mapped, run_returned, start_worker

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
# Seconds between looks at the workers, and those for which one must be gone before its batch is given up.
_LOOK, _GONE = 0.25, 0.5


def pickle_hosts(hosts: Mapping[str, Host]) -> dict[str, bytes]:
    """Pickle simulators for other processes, or say which object cannot be."""
    blobs: dict[str, bytes] = {}
    for name, host in hosts.items():
        try:
            blobs[name] = cloudpickle.dumps(host.fn)
        except Exception as error:
            raise TypeError(
                f"Simulator {name_of(host.fn)!r} of {name!r} cannot be sent to other processes{_culprit(host.fn)}: "
                f"{type(error).__name__}: {error}. Make that object inside the simulator, or run with workers=0."
            ) from error
    return blobs


def _culprit(fn: Callable[..., Any]) -> str:
    """Name the variables of a function, or the attributes of an object, that cannot be pickled."""
    inner = getattr(fn, "__wrapped__", fn)
    found: dict[str, Any] = dict(getattr(inner, "__dict__", {}))
    cells = getattr(inner, "__closure__", None) or ()
    names = inner.__code__.co_freevars if cells else ()
    found.update({name: cell.cell_contents for name, cell in zip(names, cells, strict=True)})
    code = getattr(inner, "__code__", None)
    if code is not None:
        found.update({name: inner.__globals__[name] for name in code.co_names if name in inner.__globals__})
    bad = []
    for name, value in found.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            bad.append(f"{name!r} (a {type(value).__name__})")
    return f" because of {', '.join(bad)}" if bad else ""


_LAUNCH = threading.Lock()


class _Process(multiprocessing.context.SpawnProcess):
    """A spawned process that does not import the main module again.

    Simulators arrive by value where they were defined there, and a script needs no guard around its main part.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        main = sys.modules["__main__"]
        with _LAUNCH:
            kept = {name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)}
            main.__spec__ = None
            vars(main).pop("__file__", None)
            try:
                return multiprocessing.context.SpawnProcess._Popen(process_obj)  # pyright: ignore
            finally:
                vars(main).update(kept)


class _Context(multiprocessing.context.SpawnContext):
    Process = _Process


class LocalPool:
    """Spawned processes on this machine; a fork would hang once JAX has started threads."""

    def __init__(self, hosts: Mapping[str, Host], workers: int, timeout: float | None) -> None:
        """Get ready.

        Args:
            hosts: The simulators.
            workers: How many processes.
            timeout: The most seconds a call may take, or None.
        """
        self.workers, self._timeout = workers, timeout
        self.patience = _LOOK if timeout is None else min(0.05, timeout)
        self._blobs = pickle_hosts(hosts)
        self._folder = Path(tempfile.mkdtemp(prefix="hsbi-"))
        self._boards: dict[Batch, Board] = {}
        self._overdue: set[Batch] = set()
        self._gone: dict[Batch, float] = {}
        self._number = 0
        self._broken = False
        self._pool = self._start()

    def _start(self) -> Any:
        from pebble import ProcessPool

        return ProcessPool(
            max_workers=self.workers,
            initializer=start_worker,
            initargs=(self._blobs, str(self._folder)),
            context=_Context(),  # pyright: ignore[reportArgumentType]
        )

    def submit(self, batch: Batch, spec: HostSpec, tries: int) -> Future:
        """Start a batch."""
        if self._broken:
            self._stop()
            self._pool, self._broken = self._start(), False
        self._number += 1
        path = self._folder / f"{self._number}.board"
        self._boards[batch] = Board(path, spec, batch.positions.size, create=True)
        return self._pool.schedule(run_mapped, args=(str(path), spec, batch.calls))

    def watch(self, batches: list[Batch]) -> None:
        """Kill workers whose call takes too long, and give up batches whose worker is gone.

        A simulator may end its process with status 0, as a STOP in Fortran does; the pool takes that for a worker that
        has done its work, and would wait for its batch for ever.
        """
        alive = {child.pid for child in multiprocessing.active_children()}
        now = time.monotonic()
        for batch in batches:
            pid, position, seconds = self._boards[batch].running()
            if not pid or batch.future is None or batch.future.done():
                continue
            late = self._timeout is not None and seconds > self._timeout and self._boards[batch].pending(position)
            if pid not in alive:
                if now - self._gone.setdefault(batch, now) > _GONE:
                    batch.future.cancel()
            elif late and batch not in self._overdue:
                self._overdue.add(batch)
                _kill(pid)

    def read(self, batch: Batch, spec: HostSpec, *, final: bool) -> tuple[Outcome, CallError | None]:
        """Give what came of a batch, and why the rest is lost, where it is."""
        board = self._boards[batch]
        lost = None
        if final:
            assert batch.future is not None
            error = None if batch.future.cancelled() else batch.future.exception()
            if error is not None:
                self._broken |= isinstance(error, BrokenExecutor)
                lost = CallError(type(error).__name__, f"the worker process ended: {error}")
            elif batch.future.cancelled():
                lost = CallError("SystemExit", "the worker process ended with status 0")
            if batch in self._overdue:
                lost = CallError("TimeoutError", f"the call took longer than timeout={self._timeout:g} s")
        outcome = board.read()
        if final:
            self._boards.pop(batch).close(remove=True)
            self._overdue.discard(batch)
            self._gone.pop(batch, None)
        return outcome, lost

    def loses_one(self) -> bool:
        """Say that the board tells which call was running."""
        return True

    def close(self) -> None:
        """Kill the workers and delete the boards."""
        for board in self._boards.values():
            pid, position, _ = board.running()
            if pid and board.pending(position):
                _kill(pid)
        self._stop()
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _stop(self) -> None:
        self._pool.stop()
        self._pool.join()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, _KILL)


class RemotePool:
    """Any executor: what it runs, and where, is its own business."""

    def __init__(self, hosts: Mapping[str, Host], executor: Executor, workers: int) -> None:
        """Get ready.

        Args:
            hosts: The simulators.
            executor: Runs the batches; it is not shut down.
            workers: About how many batches it runs at once.
        """
        self.workers, self._executor = workers, executor
        self.patience = 1.0
        self._blobs = pickle_hosts(hosts)
        self._futures: list[Future] = []

    def submit(self, batch: Batch, spec: HostSpec, tries: int) -> Future:
        """Start a batch."""
        try:
            future = self._executor.submit(run_returned, self._blobs[spec.name], spec, batch.calls, tries)
        except (BrokenExecutor, RuntimeError) as error:
            raise SimulationError(
                f"The executor takes no more work: {type(error).__name__}: {error}. Pass one that is running; with "
                "workers=... instead, a pool is made that replaces workers which die."
            ) from error
        self._futures = [*(future for future in self._futures if not future.done()), future]
        return future

    def watch(self, batches: list[Batch]) -> None:
        """Leave batches alone."""

    def read(self, batch: Batch, spec: HostSpec, *, final: bool) -> tuple[Outcome, CallError | None]:
        """Give what came of a batch, and why it is lost, where it is."""
        future = batch.future
        assert future is not None
        if future.done() and not future.cancelled() and future.exception() is None:
            return future.result(), None
        empty = empty_outcome(spec, batch.positions.size)
        if not future.done():
            return empty, None
        error = None if future.cancelled() else future.exception()
        return empty, CallError(type(error).__name__, f"the executor lost the call: {error}")

    def loses_one(self) -> bool:
        """Say that a lost batch is lost as a whole."""
        return False

    def close(self) -> None:
        """Cancel what has not begun."""
        for future in self._futures:
            future.cancel()


def executor_workers(executor: Executor) -> int:
    """Guess how many tasks an executor runs at once."""
    client = getattr(executor, "_client", None)
    if client is not None and hasattr(client, "nthreads"):
        return max(1, sum(client.nthreads().values()))
    return int(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
